"""The messages by which a peer learns whether others can dial it.

    asker  -> helper   ["dial back", ports]   on ``/gossamer/dial-back/1``
    helper -> asker    ["dialled", port]      the first port at which the asker answers; 0: none

The helper dials the host from which it sees the asker, and no other one, from a port that it has
not used with it. So a stranger cannot make it dial a third party.
"""

from __future__ import annotations

import msgspec

from gossamer.protocol.decoding import ArrayStruct, decoded
from gossamer.protocol.errors import MalformedError

DIAL_BACK_PROTOCOL = "/gossamer/dial-back/1"

DIAL_BACK_BYTES_MAX = 64

PORTS_MAX = 4
"""The listening port, one that a router forwards, and those that the operator names."""

PORT_MAX = 65_535


class DialBack(ArrayStruct, frozen=True, tag="dial back"):
    """The asker wants to be dialled at these TCP ports."""

    ports: tuple[int, ...]


class Dialled(ArrayStruct, frozen=True, tag="dialled"):
    """The asker answered at this port; 0: at none."""

    port: int


DialBackMessage = DialBack | Dialled

_decoder: msgspec.msgpack.Decoder[DialBackMessage] = msgspec.msgpack.Decoder(DialBackMessage)


def decode_dial_back(data: bytes | bytearray) -> DialBackMessage:
    """One message, after its values were checked. Raises MalformedError for anything else."""
    message = decoded(_decoder, data, "a message of a dial-back")
    match message:
        case DialBack():
            is_valid = 0 < len(message.ports) <= PORTS_MAX and all(
                0 < port <= PORT_MAX for port in message.ports
            )
        case Dialled():
            is_valid = 0 <= message.port <= PORT_MAX
    if not is_valid:
        raise MalformedError("a message of a dial-back with ports out of range")
    return message
