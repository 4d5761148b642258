"""A network inside one process: the same `Transport`, with links, faults and one seed. For tests.

Everything that travels is an event in the receiver's queue, ordered by (arrival time, number), so a
run in virtual time takes no real time and, with `run_simulated`, is the same every time.

- A link (one for each direction of a pair) has latency and bandwidth; bytes of all streams of a
  pair share it and arrive in order. A stream holds at most `WINDOW_BYTES` under way and unread.
- `cut` makes a pair's links silent: nothing arrives, neither is told, and after
  `DEAD_LINK_SECONDS` both sides lose their connection, as TCP_USER_TIMEOUT does. `heal` before that
  and everything held arrives, as TCP's retransmissions do.
- `reset` breaks a pair's connection at once; `kill` ends a peer like SIGKILL: the block that
  holds its transport is cancelled and the others' connections to it break.
- `stopped` says of a peer that its process stands still (SIGSTOP): it is not heard, and no new
  connection to it comes about. That its tasks do not run is the caller's affair.
- `part` keeps two peers from dialling each other. A third one that is connected to both can carry
  their connection, which ends with either of its own; it has a link of its own, without the relay's
  rate and silence.
- Gossip walks from subscriber to subscriber along connections; each hop may be lost, doubled or
  delayed (and so reordered).
"""

from __future__ import annotations

import gc
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from gossamer.node.network.identity import Identity
from gossamer.protocol.ids import PeerId
from tests.support.jumping_clock import JumpingClock
from tests.support.memory_peer import MemoryPeer
from tests.support.memory_stream import MemoryConnection

DEAD_LINK_SECONDS = 10.0

_GC_THRESHOLDS = 10_000, 20, 50
"""When the garbage collector looks. A world is one web of references until it ends. With Python's
own thresholds the collector took 5 % of the processor's time of a swarm, and found little."""


@dataclass
class Link:
    """One direction between two peers. Change it at any time."""

    latency_seconds: float = 0.01
    bytes_per_second: float = float("inf")
    silent: bool = False
    silent_at: float = 0.0  # when it last fell silent
    num_cuts: int = 0
    free_at: float = 0.0  # when the last byte queued so far has been put on the line
    arrives_at: float = 0.0  # of the last event, for order
    held: list[tuple[int, Callable[[], None]]] = field(default_factory=list)


@dataclass
class GossipFaults:
    """Faults of gossip at each hop: probabilities, and seconds of extra delay."""

    loss: float = 0.0
    duplication: float = 0.0
    delay_seconds_max: float = 0.0


class MemoryNetwork:
    """All peers of a test and what lies between them."""

    def __init__(self, seed: int = 0, latency_seconds: float = 0.01) -> None:
        self.random = random.Random(seed)
        self.gossip_faults = GossipFaults()
        self._latency_seconds = latency_seconds
        self._links: dict[tuple[PeerId, PeerId], Link] = {}
        self._transports: dict[PeerId, MemoryPeer] = {}
        self._addresses: dict[str, PeerId] = {}
        self._numbers = itertools.count()
        self._stopped_at: dict[PeerId, float] = {}
        self._apart: set[frozenset[PeerId]] = set()

    @asynccontextmanager
    async def transport(self, identity: Identity) -> AsyncIterator[MemoryPeer]:
        """Run a peer's network until the block ends or the peer is killed."""
        peer_id = identity.peer_id
        if peer_id in self._transports:
            raise ValueError(f"{peer_id} already runs in this network")
        known = (address for address, peer in self._addresses.items() if peer == peer_id)
        number = len(self._addresses) + 1
        address = next(known, f"/ip4/10.0.{number >> 8}.{number & 255}/tcp/4001")
        self._addresses[address] = peer_id
        failure: Exception | None = None  # the caller's, raised outside the nursery
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                transport = MemoryPeer(self, peer_id, address, nursery, scope)
                self._transports[peer_id] = transport
                nursery.start_soon(transport.run)
                try:
                    yield transport
                except Exception as error:
                    failure = error
                finally:
                    self._forget(transport)
                    nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    def next_number(self) -> int:
        """A number for an event or a message, never given twice."""
        return next(self._numbers)

    def _forget(self, transport: MemoryPeer) -> None:
        if self._transports.get(transport.peer_id) is transport:
            del self._transports[transport.peer_id]
            transport.end()

    def link(self, sender: PeerId, receiver: PeerId) -> Link:
        """The link from one peer to another."""
        return self._links.setdefault((sender, receiver), Link(self._latency_seconds))

    def links(self, first: PeerId, second: PeerId) -> tuple[Link, Link]:
        """Both directions of a pair."""
        return self.link(first, second), self.link(second, first)

    def find(self, address: str) -> MemoryPeer | None:
        """The peer that listens at an address (without ``/p2p``)."""
        return self._transports.get(self._addresses.get(address, PeerId("")))

    def get(self, peer_id: PeerId) -> MemoryPeer | None:
        """A running peer."""
        return self._transports.get(peer_id)

    def addresses_of(self, peer_id: PeerId) -> list[str]:
        """Returns the addresses on which a peer listens, or listened while it ran."""
        listening = [address for address, peer in self._addresses.items() if peer == peer_id]
        return [f"{address}/p2p/{peer_id}" for address in listening]

    def post(
        self, sender: PeerId, receiver: PeerId, action: Callable[[], None], num_bytes: int = 0,
        extra_seconds: float = 0.0,
    ) -> float:  # fmt: skip
        """Let `action` happen at the receiver when `num_bytes` have got there.

        Returns when the bytes will have left the sender. `extra_seconds` may break the order.
        """
        link = self.link(sender, receiver)
        link.free_at = max(trio.current_time(), link.free_at) + num_bytes / link.bytes_per_second
        arrives_at = link.free_at + link.latency_seconds
        if extra_seconds == 0.0:
            arrives_at = link.arrives_at = max(arrives_at, link.arrives_at)
        number = self.next_number()
        self._arrive_at(arrives_at + extra_seconds, number, receiver, link, action)
        return link.free_at

    def _arrive_at(
        self, time: float, number: int, receiver: PeerId, link: Link, action: Callable[[], None]
    ) -> None:
        def arrive() -> None:
            if link.silent:
                link.held.append((number, action))
            else:
                action()

        self.at(time, receiver, arrive, number)

    def at(
        self, time: float, peer_id: PeerId, action: Callable[[], None], number: int | None = None
    ) -> None:
        """Let `action` happen at a peer at a time; never, if it does not run."""
        transport = self._transports.get(peer_id)
        if transport is not None:
            transport.schedule(time, self.next_number() if number is None else number, action)

    # -- faults

    def cut(self, first: PeerId, second: PeerId) -> None:
        """Silence both links of a pair; see the module's text."""
        for link in self.links(first, second):
            if not link.silent:
                link.silent, link.silent_at = True, trio.current_time()
            link.num_cuts += 1
        connection = self._connection(first, second)
        if connection is None:
            return

        one_way = self.link(first, second)
        this_cut = one_way.num_cuts

        def give_up() -> None:
            still_cut = one_way.silent and one_way.num_cuts == this_cut
            if still_cut and not connection.closed:
                connection.end("the link went silent")
                for link in self.links(first, second):
                    link.held.clear()

        for peer_id in (first, second):
            self.at(trio.current_time() + DEAD_LINK_SECONDS, peer_id, give_up)

    def heal(self, first: PeerId, second: PeerId) -> None:
        """Undo `cut`; what was held arrives at once, before anything sent later."""
        for sender, receiver in ((first, second), (second, first)):
            link = self.link(sender, receiver)
            link.silent = False
            held, link.held = link.held, []
            for number, action in held:
                self._arrive_at(trio.current_time(), number, receiver, link, action)

    def reset(self, first: PeerId, second: PeerId) -> None:
        """Break a pair's connection at once."""
        connection = self._connection(first, second)
        if connection is not None:
            connection.end("connection reset")

    def kill(self, peer_id: PeerId) -> None:
        """End a peer like SIGKILL."""
        transport = self._transports.get(peer_id)
        if transport is not None:
            self._forget(transport)
            transport.scope.cancel()

    def part(self, first: PeerId, second: PeerId) -> None:
        """Neither of two peers can dial the other from now on: both are behind strict routers."""
        self._apart.add(frozenset((first, second)))

    def join(self, first: PeerId, second: PeerId) -> None:
        """Undo `part`."""
        self._apart.discard(frozenset((first, second)))

    def can_dial(self, first: PeerId, second: PeerId) -> bool:
        """Whether no router keeps two peers from dialling each other."""
        return frozenset((first, second)) not in self._apart

    def stopped(self, peer_id: PeerId) -> None:
        """A peer's process stands still from now on, until `goes_on`."""
        self._stopped_at[peer_id] = trio.current_time()

    def goes_on(self, peer_id: PeerId) -> None:
        """Undo `stopped`."""
        self._stopped_at.pop(peer_id, None)

    def stopped_at(self, peer_id: PeerId) -> float | None:
        """Returns the time since which a peer's process has been stopped; None if it runs."""
        return self._stopped_at.get(peer_id)

    def _connection(self, first: PeerId, second: PeerId) -> MemoryConnection | None:
        transport = self._transports.get(first)
        return transport.connections.get(second) if transport else None


def run_simulated(async_fn: Callable[[], Awaitable[None]], seed: int = 0) -> None:
    """`trio.run` in virtual time, the same every time for one seed.

    trio's scheduler draws the order of tasks that are ready together from a generator of its own,
    and draws from an order that depends on their places in memory unless it is told to sort them.
    Hypothesis does both in the same way, where it is loaded.
    """
    from trio._core import _run

    _run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    _run._r.seed(seed)
    thresholds = gc.get_threshold()
    gc.set_threshold(*_GC_THRESHOLDS)
    try:
        trio.run(async_fn, clock=JumpingClock())
    finally:
        gc.set_threshold(*thresholds)
