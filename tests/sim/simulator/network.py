"""Which peers hear each other: partitions, connections, and what silence looks like.

A connection is known at each end by itself: each end notices on its own that it is gone, soon when
the other side's system said so, late when nothing came any more. Peers that can hear each other
and are not connected dial until they are.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING

from gossamer.protocol.ids import PeerId
from tests.sim.simulator.scenario import HEALTHY_GOSSIP_SECONDS

if TYPE_CHECKING:
    from tests.sim.simulator.peer import Peer
    from tests.sim.simulator.world import World

RESET_SECONDS = (0.02, 0.5)
"""After this a peer notices that a process at the other end died."""

LOST_SECONDS = (8.0, 12.0)
"""After this the transport gives up a connection on which nothing comes."""

REDIAL_SECONDS = (0.5, 3.0)


class Network:
    """Reachability and connections."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._far_side: frozenset[PeerId] = frozenset()
        self._cut_seconds = 0.0
        self._num_connections = 0

    # Partitions

    @property
    def is_cut(self) -> bool:
        return bool(self._far_side)

    def reach(self, one: PeerId, other: PeerId) -> bool:
        """Whether two peers are on one side of the network."""
        return (one in self._far_side) == (other in self._far_side)

    def cut(self, far_side: Collection[PeerId]) -> None:
        """Nothing passes between these and the others any more, and no connection says so."""
        self._far_side = frozenset(far_side)
        self._cut_seconds = self._world.now
        for one in self._world.living():
            for other in self._world.living():
                if not self.reach(one.peer_id, other.peer_id):
                    self.falls_silent(one, other)

    def heal(self) -> None:
        self._far_side = frozenset()
        for one in self._world.living():
            for other in self._world.living():
                if one.peer_id < other.peer_id:
                    self.dial(one, other)

    # Gossip

    def gossip_delays(self) -> list[float]:
        """When a message reaches one peer: never, once or twice; each after its own time."""
        world, scenario = self._world, self._world.scenario
        if world.faults.are_over:
            return [world.uniform(HEALTHY_GOSSIP_SECONDS)]
        copies = 1 + (world.random.random() < scenario.gossip_duplicates)
        return [
            world.uniform(scenario.gossip_seconds)
            for _ in range(copies)
            if world.random.random() >= scenario.gossip_loss
        ]

    # Connections

    def dial(self, one: Peer, other: Peer) -> None:
        """Connects two peers after a while, if they are not and can be by then."""

        def arrive() -> None:
            if not (one.alive and other.alive and self.reach(one.peer_id, other.peer_id)):
                return  # the peer that comes back dials
            if one.frozen or other.frozen:
                return  # it dials when it goes on
            if one.connections.get(other.peer_id) != other.connections.get(one.peer_id):
                # One end has not noticed yet that the old one is gone.
                self.reset(one, other)
                self.reset(other, one)
                self._world.later(self._world.uniform(REDIAL_SECONDS), arrive)
            elif other.peer_id not in one.connections:
                self._num_connections += 1
                one.connected(other, self._num_connections)
                other.connected(one, self._num_connections)

        self._world.later(2 * self._world.uniform(self._world.scenario.latency_seconds), arrive)

    def dial_all(self, peer: Peer) -> None:
        """It started, or goes on."""
        for other in self._world.living():
            if other is not peer:
                self.dial(peer, other)

    def reset(self, one: Peer, other: Peer) -> None:
        """The connection is broken: `one` notices it soon."""
        number = one.connections.get(other.peer_id)
        if number is not None:
            delay_seconds = self._world.uniform(RESET_SECONDS)
            one.later(delay_seconds, partial(one.disconnected, other, number))

    def closed_by(self, one: Peer, other: Peer) -> None:
        """A peer gave up a connection; the other end hears of it if it can, and they dial again."""
        if other.alive and self.reach(one.peer_id, other.peer_id):
            self.reset(other, one)
            self._world.later(self._world.uniform(REDIAL_SECONDS), lambda: self.dial(one, other))

    # Silence

    def falls_silent(self, one: Peer, other: Peer) -> None:
        """Nothing comes from `other` any more: `one` gives up the connection if that lasts."""
        delay_seconds = self._world.uniform(LOST_SECONDS)
        number = one.connections.get(other.peer_id)
        if number is None:
            return
        since = self.quiet_since(one, other)

        def give_up() -> None:
            if since is not None and self.quiet_since(one, other) == since:
                one.disconnected(other, number)

        one.later(delay_seconds, give_up)

    def quiet_since(self, one: Peer, other: Peer) -> float | None:
        """Since when nothing comes from a peer although no connection said so; None: it does."""
        if not other.alive:
            return other.vanished_seconds
        if other.frozen:
            return other.frozen_seconds
        if not self.reach(one.peer_id, other.peer_id):
            return self._cut_seconds
        return None
