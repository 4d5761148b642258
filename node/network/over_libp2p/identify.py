"""Asks a connected peer from which address it sees this node (libp2p identify, version 1.0.0)."""

from __future__ import annotations

import ipaddress

import trio
from google.protobuf.message import DecodeError
from libp2p.identity.identify.identify import ID as IDENTIFY_PROTOCOL
from libp2p.identity.identify.pb.identify_pb2 import Identify
from multiaddr import Multiaddr

from gossamer.node.network.reachability import Endpoint
from gossamer.node.network.transport import Stream
from gossamer.protocol.errors import MalformedError

PROTOCOL = str(IDENTIFY_PROTOCOL)

ANSWER_SECONDS_MAX = 10.0
"""Two round trips, at a peer that may be busy."""

ANSWER_BYTES_MAX = 16 * 1024
"""An answer has a key, some addresses and protocol names: about 1 KiB."""

_LENGTH_BYTES_MAX = 3
"""Bytes of a varint up to `ANSWER_BYTES_MAX`."""


async def ask_observed(stream: Stream) -> Endpoint | None:
    """The address that the other end sees; None if it does not say one.

    Raises:
        MalformedError: the answer is not one.
        StreamClosed: the stream ended before.
        trio.TooSlowError: no answer in `ANSWER_SECONDS_MAX`.
    """
    with trio.fail_after(ANSWER_SECONDS_MAX):
        size = await _varint(stream)
        if size > ANSWER_BYTES_MAX:
            raise MalformedError(f"an identify answer of {size} bytes")
        data = await stream.receive_exactly(size)
    answer = Identify()
    try:
        answer.ParseFromString(bytes(data))
    except DecodeError as error:
        raise MalformedError(f"not an identify answer: {error}") from None
    return endpoint_of(answer.observed_addr)


async def _varint(stream: Stream) -> int:
    value = 0
    for place in range(_LENGTH_BYTES_MAX):
        (byte,) = await stream.receive_exactly(1)
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value
    raise MalformedError("an identify answer without a length")


def endpoint_of(data: bytes) -> Endpoint | None:
    """The TCP endpoint of a multiaddr's bytes; None if it is none."""
    try:
        maddr = Multiaddr(data)
        kinds = [protocol.name for protocol in maddr.protocols()]
        if len(kinds) < 2 or kinds[0] not in ("ip4", "ip6") or kinds[1] != "tcp":
            return None
        host = ipaddress.ip_address(str(maddr.value_for_protocol(kinds[0])))
        port = int(maddr.value_for_protocol("tcp") or 0)
    except Exception:
        return None
    return Endpoint(str(host), port) if port else None
