"""The faults of a simulated world, and how everything heals in the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from gossamer.protocol.wire.statements import Signed, Statement
from tests.sim.simulator.peer import Died, Peer
from tests.sim.simulator.scenario import CrashPoint
from tests.support.faults import Fault, FaultInjector, FaultKind

if TYPE_CHECKING:
    from tests.sim.simulator.world import World

RESTART_SECONDS = (0.1, 8.0)

DURATIONS: dict[FaultKind, tuple[float, float]] = {
    "restart": RESTART_SECONDS,
    "several": RESTART_SECONDS,
    "blackout": RESTART_SECONDS,
    "freeze": (0.5, 40.0),
    "isolate": (1.0, 40.0),
    "split": (15.0, 40.0),
    "slow": (2.0, 40.0),
}

SLOW_PART = 1 / 20
"""The part of its rate that a line has left when it is slow."""


class Faults(FaultInjector[Peer]):
    """Injects the scenario's faults, and heals everything when their time is over."""

    def __init__(self, world: World) -> None:
        super().__init__(world.random, DURATIONS, world.count)
        self._world = world
        self.are_over = False
        self._num_points: dict[CrashPoint, int] = {}

    def begin(self) -> None:
        world, scenario = self._world, self._world.scenario
        for fault in scenario.faults:
            world.at(fault.seconds, partial(self.inject, fault))
        if scenario.hold_seconds:
            world.at(scenario.hold_seconds - 1.0, world.checks.rings_at_rest)
        world.at(scenario.fault_seconds, self._end)

    def inject(self, fault: Fault) -> None:
        """See `FaultInjector`."""
        if not self.are_over:
            super().inject(fault)

    def _end(self) -> None:
        """Everything heals: from now on there has to be progress."""
        world = self._world
        world.note("everything heals")
        self.are_over = True
        world.network.heal()
        for peer in world.all_peers():
            if peer in self.returning:
                self.bring_back(peer)
            elif not (peer.life or peer.machine.starts):
                peer.start()
            peer.thaw()
            peer.line_part = 1.0
        world.checks.healed()
        world.news()

    def inject_special(self, fault: Fault, peer: Peer) -> None:
        """See `FaultInjector`."""
        match fault.kind:
            case "vanish":
                self.kill_for_good([peer], silently=True)
            case "suspect":
                if peer.driver is not None and not peer.frozen:
                    peer.driver.accuse_successor()
            case "neighbours":
                self._kill_neighbours(peer)
            case _:
                super().inject_special(fault, peer)

    def _kill_neighbours(self, peer: Peer) -> None:
        """Two at once that follow each other in a ring."""
        driver = peer.driver
        if driver is None or driver.ring is None:
            return
        members = driver.ring.members
        first = self.random.randrange(len(members))
        pair = {members[first], members[(first + 1) % len(members)]}
        self.kill_for_good([self._world.peers[member] for member in sorted(pair)])

    # Primitives

    def peers(self) -> list[Peer]:
        """See `FaultInjector`."""
        return self._world.all_peers()

    def living(self) -> list[Peer]:
        """See `FaultInjector`."""
        return self._world.living()

    def absent(self) -> list[Peer]:
        """See `FaultInjector`."""
        return [peer for peer in self._world.all_peers() if not peer.life]

    def may_stay_away(self, peer: Peer) -> bool:
        """See `FaultInjector`."""
        return True

    def later(self, seconds: float, event: Callable[[], None]) -> None:
        """See `FaultInjector`."""
        self._world.later(seconds, event)

    def start(self, peer: Peer) -> None:
        """See `FaultInjector`."""
        peer.start()

    def kill(self, peer: Peer, *, silently: bool) -> None:
        """See `FaultInjector`."""
        if peer.alive:
            peer.die(silently=silently)

    def freeze(self, peer: Peer, seconds: float) -> None:
        """See `FaultInjector`."""
        if not peer.frozen:
            peer.freeze()
            life = peer.life
            self.later(seconds, lambda: peer.thaw() if peer.life == life else None)

    def break_connection(self, one: Peer, other: Peer) -> None:
        """See `FaultInjector`."""
        if other.peer_id in one.connections:
            self._world.note(f"the connection of {one.name} and {other.name} breaks")
            self._world.network.reset(one, other)
            self._world.network.reset(other, one)

    def cut(self, group: Sequence[Peer], seconds: float) -> None:
        """See `FaultInjector`. There is one cut at a time."""
        world = self._world
        if world.network.is_cut:
            return
        names = sorted(peer.name for peer in group)
        world.note(f"{', '.join(names)} and the others cannot hear each other")
        world.network.cut([peer.peer_id for peer in group])

        def heal() -> None:
            world.note("the network is whole again")
            world.network.heal()

        self.later(seconds, heal)

    def slow_down(self, peer: Peer, seconds: float) -> None:
        """See `FaultInjector`."""
        self._world.note(f"{peer.name}'s line becomes slow")
        peer.line_part = SLOW_PART

        def speed_up() -> None:
            self._world.note(f"{peer.name}'s line is as it was")
            peer.line_part = 1.0

        self.later(seconds, speed_up)

    # Crashes in the middle of what a peer does

    def is_fatal(self, point: CrashPoint) -> bool:
        """Whether a peer that comes to this point now is killed there."""
        number = self._num_points.get(point, 0)
        self._num_points[point] = number + 1
        return not self.are_over and (point, number) in self._world.scenario.crash_points

    def kill_at(self, peer: Peer) -> None:
        """It comes back. Raises Died."""
        self._world.count("killed at work")
        self.kill_for_now(peer, self._world.uniform(RESTART_SECONDS))
        raise Died

    def cut_short(self, peer: Peer, signed: Signed, statement: Statement) -> None:
        """A peer may be killed when only some have heard what it publishes."""
        if self.is_fatal("roster under way"):
            self._world.note(f"{peer.name} dies while it publishes")
            for other in self._world.living():
                if other is not peer and self._world.random.random() < 0.5:
                    peer.tell(other, signed, statement)
            self.kill_at(peer)
