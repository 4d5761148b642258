"""One peer of `memory_transport`: a `Transport` whose network is in this process."""

from __future__ import annotations

import heapq
import logging
import math
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING

import trio

from gossamer.node.base.rate_limit import NO_LIMIT, RateLimit
from gossamer.node.network.counted import counted
from gossamer.node.network.places import network_of
from gossamer.node.network.racing import RaceLost, race
from gossamer.node.network.relay import RelayTerms
from gossamer.node.network.spreading import num_passed_on
from gossamer.node.network.transport import (
    ADDRESSES_TRIED_MAX,
    ORDINARY_ENDS,
    PING_SECONDS,
    RACE_SECONDS,
    STREAMS_PER_PEER_MAX,
    ConnectError,
    GossipHandler,
    MayRelay,
    OffenceHandler,
    Path,
    PeerTest,
    ProtocolRefused,
    ReachReport,
    Stream,
    StreamClosed,
    StreamHandler,
    reason_of,
)
from gossamer.protocol.ids import PeerId
from gossamer.protocol.limits import GOSSIP_BYTES_MAX
from tests.support.jumping_clock import Sleeper
from tests.support.memory_stream import MemoryConnection, MemoryStream

if TYPE_CHECKING:
    from tests.support.memory_transport import MemoryNetwork

logger = logging.getLogger(__name__)

CONNECT_SECONDS_MAX = 10.0
OPEN_STREAM_SECONDS_MAX = 10.0
GOSSIP_SEEN_MAX = 10_000  # message ids a peer remembers; older ones might be delivered again

_ADDRESS = re.compile(r"(/ip4/[0-9.]+/tcp/[0-9]+)(?:/p2p/([A-Za-z0-9]+))?")


class MemoryPeer:
    """`gossamer.node.network.transport.Transport` inside a `MemoryNetwork`."""

    def __init__(
        self,
        network: MemoryNetwork,
        peer_id: PeerId,
        address: str,
        nursery: trio.Nursery,
        scope: trio.CancelScope,
    ) -> None:
        self.network = network
        self.scope = scope
        self.connections: dict[PeerId, MemoryConnection] = {}
        self.carried: list[MemoryConnection] = []
        """Connections of others that this peer carries."""
        self.is_known: PeerTest = lambda _peer: False
        self.has_standing: PeerTest = lambda _peer: False
        self.is_expected: PeerTest = lambda _peer: False
        self.relay_terms = RelayTerms()
        self._peer_id = peer_id
        self._address = address
        self._nursery = nursery
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._sleeper = Sleeper()
        self._handlers: dict[str, StreamHandler] = {}
        self._for_strangers: set[str] = set()
        self.admits: PeerTest = lambda _peer: True
        self.peers_changed: Callable[[], None] = lambda: None
        self._topics: dict[str, GossipHandler] = {}
        self._retained: dict[str, tuple[bytes, int] | None] = {}
        """Newest message and its number of each topic that new peers are sent it of."""
        self._seen: OrderedDict[int, None] = OrderedDict()
        self._banned: dict[PeerId, float] = {}
        self.listened: Counter[PeerId] = Counter()
        """Peers that `listen` names, and how often."""
        self._traffic: dict[str, list[int]] = {}
        self._answering: Counter[PeerId] = Counter()
        """Dials under way that will be answered, by peer."""
        self.ended = False

    @property
    def peer_id(self) -> PeerId:
        """Our own id."""
        return self._peer_id

    def addresses(self) -> list[str]:
        """See `Transport.addresses`."""
        return [f"{self._address}/p2p/{self._peer_id}"]

    # -- events

    def schedule(self, time: float, number: int, action: Callable[[], None]) -> None:
        """Run `action` here at `time`."""
        heapq.heappush(self._events, (time, number, action))
        self._sleeper.wake()

    async def run(self) -> None:
        """Let events happen in order; the network's task of this peer."""
        while True:
            await self._sleeper.sleep_until(self._events[0][0] if self._events else math.inf)
            self._happen()

    def _happen(self) -> None:
        """Lets all events happen whose time has come."""
        now = trio.current_time()
        while self._events and self._events[0][0] <= now:
            heapq.heappop(self._events)[2]()

    def end(self) -> None:
        """The process is gone: nothing arrives, and the others see their connections break."""
        self.ended = True
        for _, connection in sorted(self.connections.items()):
            connection.end("the peer is gone")
        for connection in self.carried.copy():
            connection.end("the relay is gone")

    # -- connections

    async def connect(self, address: str) -> PeerId:
        """See `Transport.connect`."""
        match = _ADDRESS.fullmatch(address)
        if match is None:
            raise ConnectError(
                f"{address!r} is not a TCP multiaddr; expected /ip4/HOST/tcp/PORT/p2p/PEER_ID"
            )
        expected = PeerId(match[2]) if match[2] else None
        other = self.network.find(match[1])
        if other is self or expected == self._peer_id:
            raise ConnectError(f"{address} is this node's own address; give another peer's")
        if expected is not None and self._is_direct(expected):
            return expected
        if other is None:
            await trio.sleep(0.01)
            raise ConnectError(f"cannot connect to {address}: connection refused")
        if not self.network.can_dial(self._peer_id, other.peer_id):
            await trio.sleep(CONNECT_SECONDS_MAX)
            raise ConnectError(f"cannot connect to {address}: no answer through its router")
        to, back = self.network.links(self._peer_id, other.peer_id)
        if to.silent or back.silent or self.network.stopped_at(other.peer_id) is not None:
            await trio.sleep(CONNECT_SECONDS_MAX)
            raise ConnectError(
                f"cannot connect to {address}: no answer in {CONNECT_SECONDS_MAX:.0f} s; "
                "is it running and reachable?"
            )
        self._answering[other.peer_id] += 1
        try:
            await trio.sleep(2 * (to.latency_seconds + back.latency_seconds))
        finally:
            self._answering[other.peer_id] -= 1
        if expected is not None and expected != other.peer_id:
            raise ConnectError(f"cannot connect to {address}: another peer answered there")
        if self.is_banned(other.peer_id) or other.is_banned(self._peer_id):
            raise ConnectError(f"cannot connect to {address}: banned for a while")
        if other.ended or self.ended or to.silent:
            raise ConnectError(f"cannot connect to {address}: connection reset")
        if not self._is_direct(other.peer_id):
            MemoryConnection(self, other)  # a circuit goes on beside it
        return other.peer_id

    def _is_direct(self, peer_id: PeerId) -> bool:
        connection = self.connections.get(peer_id)
        return connection is not None and connection.relay is None

    async def connect_any(self, peer_id: PeerId, addresses: Sequence[str]) -> str:
        """See `Transport.connect_any`."""

        async def attempt(address: str) -> None:
            whole = address if "/p2p/" in address else f"{address}/p2p/{peer_id}"
            if not whole.endswith(f"/p2p/{peer_id}"):
                raise ConnectError(f"{address} belongs to another peer")
            await self.connect(whole)

        ways = addresses[:ADDRESSES_TRIED_MAX]
        try:
            address, _ = await race(attempt, ways, RACE_SECONDS, ConnectError)
        except RaceLost as lost:
            listed = str(lost) or "no address is known"
            raise ConnectError(f"cannot reach peer {peer_id}: {listed}") from None
        return address

    def is_answering(self, peer_id: PeerId) -> bool:
        """See `Transport.is_answering`."""
        return self._answering[peer_id] > 0

    async def connect_through(self, relay: PeerId, peer_id: PeerId) -> None:
        """See `Transport.connect_through`."""
        middle, other = self.network.get(relay), self.network.get(peer_id)
        first, second = (
            self.network.links(self._peer_id, relay),
            self.network.links(relay, peer_id),
        )
        await trio.sleep(2 * sum(link.latency_seconds for link in first))
        if middle is None or self.ended or middle.path(self._peer_id) != Path("direct"):
            raise ConnectError(f"no circuit through {relay}: it is not connected")
        if any(link.silent for link in first) or self.network.stopped_at(relay) is not None:
            await trio.sleep(CONNECT_SECONDS_MAX)
            raise ConnectError(f"no circuit through {relay}: no answer")
        if other is None or middle.path(peer_id) != Path("direct"):
            raise ConnectError(f"no circuit through {relay}: it is not connected to {peer_id}")
        if middle.relay_terms.introduces:  # no router here can be crossed: it leads nowhere
            raise ConnectError(f"no circuit through {relay}: it only introduces")
        if problem := middle.relay_terms.may_relay(self._peer_id, peer_id):
            raise ConnectError(f"no circuit through {relay}: it says: {problem}")
        await trio.sleep(2 * sum(link.latency_seconds for link in second))
        if any(link.silent for link in second) or self.network.stopped_at(peer_id) is not None:
            await trio.sleep(CONNECT_SECONDS_MAX)
            raise ConnectError(f"no circuit through {relay}: no answer")
        if self.is_banned(peer_id) or other.is_banned(self._peer_id):
            raise ConnectError(f"no circuit to {peer_id}: banned for a while")
        ends = (self, middle, other)
        if any(end.ended for end in ends) or {middle.path(e.peer_id) for e in (self, other)} != {
            Path("direct")
        }:
            raise ConnectError(f"no circuit through {relay}: it is not connected")
        if peer_id not in self.connections:
            MemoryConnection(self, other, middle)

    def relay_for(
        self, may_relay: MayRelay, rate: RateLimit = NO_LIMIT, *, introduces: bool = False
    ) -> None:
        """See `Transport.relay_for`."""
        self.relay_terms = RelayTerms(may_relay, rate, introduces)

    def path(self, peer_id: PeerId) -> Path | None:
        """See `Transport.path`."""
        connection = self.connections.get(peer_id)
        if connection is None:
            return None
        if connection.relay is None:
            return Path("direct")
        return Path("relayed", connection.relay.peer_id)

    def network_of(self, peer_id: PeerId) -> str:
        """See `Transport.network_of`."""
        connection = self.connections.get(peer_id)
        if connection is None:
            return ""
        other = connection.relay or connection.ends[peer_id]
        return network_of(other._address.split("/")[2])

    def reach(self) -> ReachReport:
        """See `Transport.reach`."""
        return ReachReport("open")

    def peers(self) -> list[PeerId]:
        """See `Transport.peers`."""
        return sorted(filter(self.admits, self.connections))

    def on_peers_changed(self, handler: Callable[[], None]) -> None:
        """See `Transport.on_peers_changed`."""
        self.peers_changed = handler

    def admit(self, admits: PeerTest) -> None:
        """See `Transport.admit`."""
        self.admits = admits

    def let_in(self, peer_id: PeerId) -> None:
        """See `Transport.let_in`; each message of gossip asks here whether a peer is admitted."""
        self.peers_changed()
        if peer_id in self.connections:
            other = self.connections[peer_id].ends[peer_id]
            self.tell_retained(other)
            other.tell_retained(self)

    def keep_places_of(
        self, is_known: PeerTest, has_standing: PeerTest, is_expected: PeerTest
    ) -> None:
        """See `Transport.keep_places_of`; places are not short here."""
        self.is_known, self.has_standing, self.is_expected = is_known, has_standing, is_expected

    async def disconnect(self, peer_id: PeerId) -> None:
        """See `Transport.disconnect`."""
        await trio.lowlevel.checkpoint()
        connection = self.connections.get(peer_id)
        if connection is not None:
            connection.end("disconnected")

    def ban(self, peer_id: PeerId, seconds: float, *, is_offender: bool = True) -> None:
        """See `Transport.ban`; peers have no networks here."""
        self._banned[peer_id] = trio.current_time() + seconds
        connection = self.connections.get(peer_id)
        if connection is not None:
            connection.end("banned")

    def is_banned(self, peer_id: PeerId) -> bool:
        """Returns whether a ban holds now."""
        return self._banned.get(peer_id, 0.0) > trio.current_time()

    def round_trip_seconds(self, peer_id: PeerId) -> float | None:
        """See `Transport.round_trip_seconds`."""
        if peer_id not in self.connections:
            return None
        return sum(link.latency_seconds for link in self.network.links(self._peer_id, peer_id))

    def heard_seconds(self, peer_id: PeerId) -> float | None:
        """See `Transport.heard_seconds`."""
        if peer_id not in self.connections:
            return None
        link = self.network.link(peer_id, self._peer_id)
        now = trio.current_time()
        stopped_at = self.network.stopped_at(peer_id)
        return min(
            link.silent_at if link.silent else now, now if stopped_at is None else stopped_at
        )

    def signs_seconds(self) -> float:
        """See `Transport.signs_seconds`."""
        return PING_SECONDS

    def listen(self, peers: Collection[PeerId]) -> Callable[[], None]:
        """See `Transport.listen`. Every peer is heard all the time."""
        self.listened.update(peers)

        def end() -> None:
            self.listened -= Counter(peers)

        return end

    # -- streams

    async def open_stream(self, peer_id: PeerId, protocol: str, *, at_once: bool = False) -> Stream:
        """See `Transport.open_stream`."""
        connection = self.connections.get(peer_id)
        if connection is None:
            raise ConnectError(f"not connected to {peer_id}")
        what = f"stream {protocol} to {peer_id}"
        ours = MemoryStream(self, connection, peer_id, protocol)
        other = connection.ends[peer_id]
        accepted: bool | None = None

        def answer(yes: bool) -> None:
            nonlocal accepted
            accepted = yes
            if at_once and not yes:
                ours.break_off("the peer does not speak it")
            ours.wake()

        def ask() -> None:
            yes = other.accept(ours, connection)
            self.network.post(peer_id, self._peer_id, lambda: answer(yes))

        self.network.post(self._peer_id, peer_id, ask)
        if at_once:
            await trio.lowlevel.checkpoint()
            return ours
        try:
            with trio.fail_after(OPEN_STREAM_SECONDS_MAX):
                while accepted is None and not ours.broken:
                    await ours.wait_for_change()
        except trio.TooSlowError:
            ours.reset_now()
            raise ConnectError(f"{what}: no answer in {OPEN_STREAM_SECONDS_MAX:.0f} s") from None
        except trio.Cancelled:
            ours.reset_now()
            raise
        if ours.broken:
            raise ConnectError(f"{what}: the connection ended")
        if not accepted:
            raise ProtocolRefused(f"{what}: the peer does not speak it")
        return ours

    def accept(self, theirs: MemoryStream, connection: MemoryConnection) -> bool:
        """Take an inbound stream, if we speak its protocol."""
        peer_id = theirs.owner.peer_id
        handler = self._handlers.get(theirs.protocol)
        if not self.admits(peer_id) and theirs.protocol not in self._for_strangers:
            return False
        if handler is None or self.ended or connection.closed:
            return False
        ours = MemoryStream(self, connection, peer_id, theirs.protocol)
        ours.other, theirs.other = theirs, ours
        self._nursery.start_soon(self._run_handler, handler, ours)
        return True

    def handle(
        self,
        protocol: str,
        handler: StreamHandler,
        *,
        streams_per_peer_max: int = STREAMS_PER_PEER_MAX,
        for_strangers: bool = False,
    ) -> None:
        """See `Transport.handle`."""
        if for_strangers:
            self._for_strangers.add(protocol)
        num_open = Counter[PeerId]()

        async def in_slot(stream: Stream) -> None:
            with counted(num_open, stream.peer_id) as number:
                if number > streams_per_peer_max:
                    raise StreamClosed(f"the peer has {streams_per_peer_max} open already")
                await handler(stream)

        self._handlers[protocol] = in_slot

    async def _run_handler(self, handler: StreamHandler, stream: MemoryStream) -> None:
        try:
            await handler(stream)
        except ORDINARY_ENDS as error:
            logger.debug("%s with %s ends: %s", stream.protocol, stream.peer_id, reason_of(error))
            await stream.reset()
        except Exception:
            logger.exception("handler of %s failed with peer %s", stream.protocol, stream.peer_id)
            await stream.reset()
        else:
            await stream.close()

    # -- gossip

    async def publish(self, topic: str, data: bytes) -> None:
        """See `Transport.publish`."""
        if len(data) > GOSSIP_BYTES_MAX:
            raise ValueError(
                f"a gossip message has at most {GOSSIP_BYTES_MAX} bytes, not {len(data)}"
            )
        await trio.lowlevel.checkpoint()
        number = self.network.next_number()
        self._remember(number)
        if topic in self._retained:
            self._retained[topic] = data, number
        self._forward(topic, self._peer_id, data, number, self._peer_id)

    def subscribe(self, topic: str, handler: GossipHandler, *, retains: bool = False) -> None:
        """See `Transport.subscribe`. The connected peers learn of it, and send what they retain."""
        self._topics[topic] = handler
        if retains:
            self._retained.setdefault(topic, None)
        for peer_id, connection in sorted(self.connections.items()):
            answer = partial(connection.ends[peer_id].tell_retained_on, topic, self)
            self.network.post(self._peer_id, peer_id, answer)

    def tell_retained(self, other: MemoryPeer) -> None:
        """Sends a peer that gossip has begun with what is retained for it."""
        for topic in sorted(self._retained):
            self.tell_retained_on(topic, other)

    def tell_retained_on(self, topic: str, other: MemoryPeer) -> None:
        """The same of one topic."""
        retained = self._retained.get(topic)
        if retained is not None and self._gossips_with(other, topic):
            self._send(topic, self._peer_id, *retained, other)

    def has_topic(self, topic: str) -> bool:
        """Returns whether we subscribe to it."""
        return topic in self._topics

    def _remember(self, number: int) -> None:
        self._seen[number] = None
        if len(self._seen) > GOSSIP_SEEN_MAX:
            self._seen.popitem(last=False)

    def _forward(
        self, topic: str, author: PeerId, data: bytes, number: int, sender: PeerId
    ) -> None:
        ends = {
            peer_id: connection.ends[peer_id]
            for peer_id, connection in sorted(self.connections.items())
        }
        subscribers = [
            peer_id for peer_id, other in ends.items() if self._gossips_with(other, topic)
        ]
        wanting = [peer_id for peer_id in subscribers if peer_id not in (sender, author)]
        if author != self._peer_id:
            num_copies = min(num_passed_on(len(subscribers)), len(wanting))
            wanting = sorted(self.network.random.sample(wanting, num_copies))
        for peer_id in wanting:
            self._send(topic, author, data, number, ends[peer_id])

    def _gossips_with(self, other: MemoryPeer, topic: str) -> bool:
        return other.has_topic(topic) and self.admits(other.peer_id) and other.admits(self._peer_id)

    def _send(
        self, topic: str, author: PeerId, data: bytes, number: int, other: MemoryPeer
    ) -> None:
        """Sends one message of gossip over one hop."""
        faults, dice = self.network.gossip_faults, self.network.random
        self.count("gossip", sent=len(data))
        if dice.random() < faults.loss:
            return
        times = 2 if dice.random() < faults.duplication else 1

        def arrive() -> None:
            other.hear(topic, author, data, number, self._peer_id, times)

        extra = dice.random() * faults.delay_seconds_max
        self.network.post(self._peer_id, other.peer_id, arrive, len(data), extra)

    def hear(
        self, topic: str, author: PeerId, data: bytes, number: int, sender: PeerId, times: int
    ) -> None:
        """A gossip message reaches us."""
        self.count("gossip", received=len(data))
        handler = self._topics.get(topic)
        if number in self._seen or handler is None or self.ended:
            return
        if self.is_banned(author) or self.is_banned(sender):
            return
        self._remember(number)
        is_passed_on = False
        for _ in range(times):
            try:
                is_passed_on = handler(author, data) is not False or is_passed_on
            except Exception:
                logger.exception("gossip handler of %s failed on a message of %s", topic, author)
        if is_passed_on:
            self._forward(topic, author, data, number, sender)

    def on_offence(self, handler: OffenceHandler) -> None:
        """See `Transport.on_offence`; nothing below streams can be broken here."""

    def count(self, key: str, sent: int = 0, received: int = 0) -> None:
        """Add to `traffic`."""
        counter = self._traffic.setdefault(key, [0, 0])
        counter[0] += sent
        counter[1] += received

    def traffic(self) -> dict[str, tuple[int, int]]:
        """See `Transport.traffic`."""
        return {key: (sent, received) for key, (sent, received) in sorted(self._traffic.items())}
