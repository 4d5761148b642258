"""What goes wrong, and how everything heals in the end."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from gossamer.protocol.wire.statements import Signed, Statement
from tests.sim.simulator.peer import Died, Peer
from tests.sim.simulator.scenario import CrashPoint, Fault

if TYPE_CHECKING:
    from tests.sim.simulator.world import World

RESTART_SECONDS = (0.1, 8.0)
FREEZE_SECONDS = (0.5, 40.0)
ISOLATION_SECONDS = (1.0, 40.0)
SPLIT_SECONDS = (15.0, 40.0)
SLOW_SECONDS = (2.0, 40.0)

SLOW_PART = 1 / 20
"""What is left of a line that became slow."""


class Faults:
    """Injects the scenario's faults, and heals everything when their time is over."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.are_over = False
        self._returning: set[Peer] = set()
        """Who is dead and will be back."""
        self._num_points: dict[CrashPoint, int] = {}

    def begin(self) -> None:
        world, scenario = self._world, self._world.scenario
        for fault in scenario.faults:
            world.at(fault.seconds, partial(self.inject, fault))
        if scenario.hold_seconds:
            world.at(scenario.hold_seconds - 1.0, world.checks.rings_at_rest)
        world.at(scenario.fault_seconds, self._end)

    def _end(self) -> None:
        """Everything heals: from now on there has to be progress."""
        world = self._world
        world.note("everything heals")
        self.are_over = True
        world.network.heal()
        for peer in world.all_peers():
            if peer in self._returning or not (peer.life or peer.machine.starts):
                peer.start()
            peer.thaw()
            peer.line_part = 1.0
        world.checks.healed()
        world.news()

    # Faults

    def inject(self, fault: Fault) -> None:
        world = self._world
        living = world.living()
        if not living or self.are_over:
            return
        peer = world.random.choice(living)
        if fault.peer is not None:
            peer = world.all_peers()[fault.peer]
            if not peer.alive and fault.kind != "join":
                return
        world.count(fault.kind)
        match fault.kind:
            case "crash" | "vanish":
                self._kill([peer], silently=fault.kind == "vanish")
            case "restart":
                self._restart(peer, self._duration(fault, RESTART_SECONDS))
            case "freeze":
                self._freeze(peer, self._duration(fault, FREEZE_SECONDS))
            case "break":
                self._break(peer)
            case "suspect":
                if peer.driver is not None and not peer.frozen:
                    peer.driver.accuse_successor()
            case "slow":
                self._slow_down(peer, self._duration(fault, SLOW_SECONDS))
            case "isolate":
                num_peers = len(world.order)
                size = world.random.choice((1, 1, world.random.randint(1, num_peers - 1)))
                self._cut(fault, size, self._duration(fault, ISOLATION_SECONDS))
            case "split":
                size = len(world.order) // 2
                self._cut(fault, size, self._duration(fault, SPLIT_SECONDS))
            case "neighbours":
                self._kill_neighbours(peer)
            case "half":
                self._kill(world.random.sample(living, len(living) // 2))
            case "blackout":
                self._blackout(living)
            case "join":
                absent = [p for p in world.all_peers() if not p.life]
                if absent:
                    (peer if fault.peer is not None else world.random.choice(absent)).start()

    def _duration(self, fault: Fault, bounds: tuple[float, float]) -> float:
        return self._world.uniform(bounds) if fault.for_seconds is None else fault.for_seconds

    def _kill(self, peers: list[Peer], *, silently: bool = False) -> None:
        """Never the last one that lives or returns."""
        for peer in peers:
            others = {*self._world.living(), *self._returning} - {peer}
            if peer.alive and others:
                peer.die(silently=silently)

    def _restart(self, peer: Peer, after_seconds: float) -> None:
        peer.die()
        self._returning.add(peer)

        def start() -> None:
            if peer in self._returning:
                self._returning.remove(peer)
                peer.start()

        self._world.later(after_seconds, start)

    def _freeze(self, peer: Peer, seconds: float) -> None:
        if not peer.frozen:
            peer.freeze()
            life = peer.life
            self._world.later(seconds, lambda: peer.thaw() if peer.life == life else None)

    def _slow_down(self, peer: Peer, seconds: float) -> None:
        self._world.note(f"{peer.name}'s line becomes slow")
        peer.line_part = SLOW_PART

        def speed_up() -> None:
            self._world.note(f"{peer.name}'s line is as it was")
            peer.line_part = 1.0

        self._world.later(seconds, speed_up)

    def _break(self, peer: Peer) -> None:
        world = self._world
        others = [other for other in world.living() if other.peer_id in peer.connections]
        if others:
            other = world.random.choice(others)
            world.note(f"the connection of {peer.name} and {other.name} breaks")
            world.network.reset(peer, other)
            world.network.reset(other, peer)

    def _cut(self, fault: Fault, size: int, seconds: float) -> None:
        world = self._world
        if world.network.is_cut:
            return
        far_side = world.random.sample(world.order, size)
        if fault.peer is not None and size == 1:
            far_side = [world.order[fault.peer]]
        names = sorted(world.name(peer) for peer in far_side)
        world.note(f"{', '.join(names)} and the others cannot hear each other")
        world.network.cut(far_side)

        def heal() -> None:
            world.note("the network is whole again")
            world.network.heal()

        world.later(seconds, heal)

    def _kill_neighbours(self, peer: Peer) -> None:
        """Two at once that follow each other in a ring."""
        driver = peer.driver
        if driver is None or driver.ring is None:
            return
        members = driver.ring.members
        first = self._world.random.randrange(len(members))
        pair = {members[first], members[(first + 1) % len(members)]}
        self._kill([self._world.peers[member] for member in sorted(pair)])

    def _blackout(self, living: list[Peer]) -> None:
        """All die and come back in any order, and perhaps one does not."""
        world = self._world
        stays_away = world.random.choice([None, world.random.choice(living)])
        for peer in living:
            if peer is stays_away and len(living) > 1:
                peer.die()
            else:
                self._restart(peer, world.uniform(RESTART_SECONDS))

    # Crashes in the middle of what a peer does

    def is_fatal(self, point: CrashPoint) -> bool:
        """Whether a peer that comes to this point now is killed there."""
        number = self._num_points.get(point, 0)
        self._num_points[point] = number + 1
        return not self.are_over and (point, number) in self._world.scenario.crash_points

    def kill_at(self, peer: Peer) -> None:
        """It comes back. Raises Died."""
        self._world.count("killed at work")
        self._restart(peer, self._world.uniform(RESTART_SECONDS))
        raise Died

    def cut_short(self, peer: Peer, signed: Signed, statement: Statement) -> None:
        """A peer may be killed when only some have heard what it publishes."""
        if self.is_fatal("roster under way"):
            self._world.note(f"{peer.name} dies while it publishes")
            for other in self._world.living():
                if other is not peer and self._world.random.random() < 0.5:
                    peer.tell(other, signed, statement)
            self.kill_at(peer)
