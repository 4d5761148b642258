"""Two peers behind routers get a connection of their own: both dial at once.

The messages are libp2p's (DCUtR, "direct connection upgrade through relay"): over a circuit both
ends name the addresses under which others see them. One end measures the round trip and says when,
and each dials the other's address from its own listening port. Both routers take the other's dial
for an answer to their own machine's. TCP makes one connection of it
(`over_libp2p.noise.simultaneous`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import trio
from google.protobuf.message import DecodeError
from libp2p.relay.circuit_v2.dcutr import PROTOCOL_ID
from libp2p.relay.circuit_v2.pb.dcutr_pb2 import HolePunch
from libp2p.utils import encode_varint_prefixed
from multiaddr import Multiaddr

from gossamer.node.network.over_libp2p.addresses import endpoint_of
from gossamer.node.network.over_libp2p.delimited import read_delimited
from gossamer.node.network.reachability import Endpoint
from gossamer.node.network.transport import ORDINARY_ENDS, Stream, TransportError
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import PeerId

logger = logging.getLogger(__name__)

PROTOCOL = str(PROTOCOL_ID)

TRIES_MAX = 3
"""Crossings that are tried one after another, as the specification says."""

ANSWER_SECONDS_MAX = 10.0
"""Longest wait for the other end's message: one round trip over the circuit."""

DIAL_SECONDS = 5.0
"""Time for which both ends dial. A router that answers an early dial with a reset spoils it, and
one that drops it costs a repetition of the kernel, after 1 s and 3 s."""

STREAMS_MAX = 2
"""Crossings that one peer may ask for at a time: one, and one that is ending. Each makes this node
dial for `DIAL_SECONDS`."""

ADDRESSES_MAX = 4
"""Addresses of one peer that are dialled: what a few observers saw, in two families."""

MESSAGE_BYTES_MAX = 4096
"""Bound on a message, as the specification says."""


class Crossing:
    """Crosses routers with one peer after another."""

    def __init__(
        self,
        dial: Callable[[PeerId, list[Endpoint], float], Awaitable[bool]],
        mine: Callable[[], list[Endpoint]],
    ) -> None:
        """
        Args:
            dial: dials a peer's addresses from the listening port for so many seconds; says whether
                there is a direct connection then.
            mine: addresses under which others see this node.
        """
        self._dial = dial
        self._mine = mine

    async def begin(self, peer: PeerId, open_stream: Callable[[], Awaitable[Stream]]) -> bool:
        """Says whether there is a direct connection after at most `TRIES_MAX` tries."""
        for _ in range(TRIES_MAX):
            try:
                stream = await open_stream()
            except TransportError as error:
                logger.debug("no crossing with %s: %s", peer, error)
                return False
            try:
                with trio.fail_after(ANSWER_SECONDS_MAX):
                    await _say(stream, HolePunch.CONNECT, self._mine())
                    asked_seconds = trio.current_time()
                    theirs = await _hear(stream, HolePunch.CONNECT)
                    round_trip_seconds = trio.current_time() - asked_seconds
                    await _say(stream, HolePunch.SYNC, [])
            except ORDINARY_ENDS as error:
                logger.debug("no crossing with %s: %s", peer, error)
                return False
            finally:
                await stream.close()
            await trio.sleep(round_trip_seconds / 2)
            if await self._dial(peer, theirs, DIAL_SECONDS):
                return True
        return False

    async def answer(self, stream: Stream) -> None:
        """Serves the other end of `begin`."""
        with trio.fail_after(ANSWER_SECONDS_MAX):
            theirs = await _hear(stream, HolePunch.CONNECT)
            await _say(stream, HolePunch.CONNECT, self._mine())
            await _hear(stream, HolePunch.SYNC)
        await self._dial(stream.peer_id, theirs, DIAL_SECONDS)


async def _say(stream: Stream, kind: HolePunch.Type.ValueType, endpoints: list[Endpoint]) -> None:
    addresses = [Multiaddr(endpoint.address).to_bytes() for endpoint in endpoints[:ADDRESSES_MAX]]
    message = HolePunch(type=kind, ObsAddrs=addresses).SerializeToString()
    await stream.send(encode_varint_prefixed(message))


async def _hear(stream: Stream, kind: HolePunch.Type.ValueType) -> list[Endpoint]:
    data = await read_delimited(stream.receive_exactly, MESSAGE_BYTES_MAX, "a crossing's message")
    message = HolePunch()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise MalformedError(f"not a crossing's message: {error}") from None
    if message.type != kind:
        raise MalformedError("a crossing's message out of turn")
    found = [endpoint_of(data) for data in message.ObsAddrs[:ADDRESSES_MAX]]
    return [endpoint for endpoint in found if endpoint is not None]
