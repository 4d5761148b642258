"""Streams and a transport that say what a test wrote down, whatever is said to them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import trio

from gossamer.node.base.rate_limit import NO_LIMIT, RateLimit
from gossamer.node.network.identity import Identity
from gossamer.node.network.transport import (
    PING_SECONDS,
    Bytes,
    GossipHandler,
    MayRelay,
    OffenceHandler,
    Path,
    PeerTest,
    ReachReport,
    Stream,
    StreamClosed,
    StreamHandler,
)
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import PeerId

ME = Identity.from_seed(bytes(32))
ROGUE = Identity.from_seed(b"\x01" * 32)


class ScriptedStream:
    """Gives out `data`, then ends."""

    def __init__(self, data: bytes, protocol: str = "") -> None:
        self.peer_id = ROGUE.peer_id
        self.protocol = protocol
        self.was_reset = False
        self._data = data

    async def send(self, *parts: Bytes) -> None:
        """Takes everything."""
        await trio.lowlevel.checkpoint()

    async def receive_exactly(self, num_bytes: int) -> bytearray:
        """The next bytes of the script."""
        await trio.lowlevel.checkpoint()
        if len(self._data) < num_bytes:
            raise StreamClosed("the script is at its end")
        given, self._data = self._data[:num_bytes], self._data[num_bytes:]
        return bytearray(given)

    async def close(self) -> None:
        """Nothing to do."""

    async def reset(self) -> None:
        """Notes the reset."""
        self.was_reset = True


class ScriptedTransport:
    """A transport with one connected peer; every stream to it answers `answer`."""

    def __init__(self, answer: bytes = b"") -> None:
        self.peer_id = ME.peer_id
        self.answer = answer
        self.fixed: dict[str, bytes] = {}
        """Answers of the streams of a protocol, in the place of `answer`."""
        self.handlers: dict[str, StreamHandler] = {}
        self.topics: dict[str, GossipHandler] = {}
        self.banned: list[PeerId] = []

    def addresses(self) -> list[str]:
        return []

    async def connect(self, address: str) -> PeerId:
        return ROGUE.peer_id

    def is_answering(self, peer_id: PeerId) -> bool:
        return False

    async def connect_any(self, peer_id: PeerId, addresses: Sequence[str]) -> str:
        return addresses[0]

    async def connect_through(self, relay: PeerId, peer_id: PeerId) -> None:
        pass

    def relay_for(
        self, may_relay: MayRelay, rate: RateLimit = NO_LIMIT, *, introduces: bool = False
    ) -> None:
        """See `Transport.relay_for`."""

    def path(self, peer_id: PeerId) -> Path | None:
        return Path("direct")

    def reach(self) -> ReachReport:
        return ReachReport("open")

    async def open_stream(self, peer_id: PeerId, protocol: str, *, at_once: bool = False) -> Stream:
        return ScriptedStream(self.fixed.get(protocol, self.answer), protocol)

    def admit(self, admits: PeerTest) -> None:
        pass

    def let_in(self, peer_id: PeerId) -> None:
        """Nobody is a stranger here."""

    def keep_places_of(
        self, is_known: PeerTest, has_standing: PeerTest, is_expected: PeerTest
    ) -> None:
        pass

    def handle(
        self,
        protocol: str,
        handler: StreamHandler,
        *,
        streams_per_peer_max: int = 4,
        for_strangers: bool = False,
    ) -> None:
        self.handlers[protocol] = handler

    async def publish(self, topic: str, data: bytes) -> None:
        pass

    def subscribe(self, topic: str, handler: GossipHandler, *, retains: bool = False) -> None:
        self.topics[topic] = handler

    def peers(self) -> list[PeerId]:
        return [ROGUE.peer_id]

    def network_of(self, peer_id: PeerId) -> str:
        return ""

    def on_peers_changed(self, handler: Callable[[], None]) -> None:
        pass

    async def disconnect(self, peer_id: PeerId) -> None:
        pass

    def ban(self, peer_id: PeerId, seconds: float, *, is_offender: bool = True) -> None:
        self.banned.append(peer_id)

    def on_offence(self, handler: OffenceHandler) -> None:
        pass

    def traffic(self) -> dict[str, tuple[int, int]]:
        return {}

    def round_trip_seconds(self, peer_id: PeerId) -> float | None:
        return None

    def heard_seconds(self, peer_id: PeerId) -> float | None:
        return None

    def signs_seconds(self) -> float:
        return PING_SECONDS

    def listen(self, peers: Collection[PeerId]) -> Callable[[], None]:
        return lambda: None


class Offences:
    """Offences that peers were blamed for."""

    def __init__(self) -> None:
        self.noted: list[tuple[PeerId, str]] = []
        self.roll: object = None

    def is_banned(self, peer: PeerId) -> bool:
        """Nobody is banned here."""
        return False

    def share(self, newcomer: PeerId, others: Iterable[PeerId]) -> None:
        """Nobody is banned here."""

    def note(self, peer: PeerId, error: RemoteProtocolError) -> None:
        assert isinstance(error, RemoteProtocolError)
        self.noted.append((peer, error.reason))
