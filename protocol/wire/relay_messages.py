"""The messages of a circuit: two peers without a connection talk through a third one.

    caller -> relay    ["relay", target]      on ``/gossamer/relay/1``
    relay  -> target   ["relayed", caller, introduces]    on ``/gossamer/relayed/1``
    target -> relay    ["answer", problem, false]         an empty problem accepts
    relay  -> caller   ["answer", problem, introduces]

From then on both streams carry frames without a message. Their payloads together are one byte
stream, in which caller and target run the same handshake as on a connection of their own. So the
relay sees sizes and times, and neither content nor keys.

A relay that *introduces* carries no more than it takes to cross both ends' routers, and then ends
the circuit.
"""

from __future__ import annotations

import msgspec

from gossamer.protocol import limits
from gossamer.protocol.decoding import ArrayStruct, decoded
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import PeerId, public_key_of

RELAY_PROTOCOL = "/gossamer/relay/1"
RELAYED_PROTOCOL = "/gossamer/relayed/1"

RELAY_MESSAGE_BYTES_MAX = 512
"""A peer id, or a problem of `limits.TEXT_CHARACTERS_MAX` characters."""

PIECE_BYTES_MAX = 64 * limits.KIB
"""Payload of one frame: a relay holds one piece of each direction of a circuit in memory."""


class RelayRequest(ArrayStruct, frozen=True, tag="relay"):
    """The caller asks the relay for a circuit to this peer."""

    target: str


class Relayed(ArrayStruct, frozen=True, tag="relayed"):
    """This peer wants to be connected with you. The relay says so: the handshake proves it."""

    caller: str
    introduces: bool = False
    """Whether the relay introduces only."""


class RelayAnswer(ArrayStruct, frozen=True, tag="answer"):
    """The answer that says whether the circuit stands."""

    problem: str = ""
    """The reason for people why there is no circuit; empty if there is one."""
    introduces: bool = False
    """Whether the relay introduces only."""


RelayMessage = RelayRequest | Relayed | RelayAnswer

_decoder: msgspec.msgpack.Decoder[RelayMessage] = msgspec.msgpack.Decoder(RelayMessage)


def decode_relay_message(data: bytes | bytearray) -> RelayMessage:
    """One message, after its values were checked. Raises MalformedError for anything else."""
    message = decoded(_decoder, data, "a relay message")
    match message:
        case RelayRequest():
            public_key_of(PeerId(message.target))
        case Relayed():
            public_key_of(PeerId(message.caller))
        case RelayAnswer():
            if len(message.problem) > limits.TEXT_CHARACTERS_MAX:
                raise MalformedError("a relay's answer that is too long")
    return message
