"""One simulated swarm: its clock, its peers, and the two halves of its life.

First things go wrong (`faults`) and safety is checked at every step (`checks`). Then everything
heals, and the swarm has to make progress: all peers that live have to commit some more rounds, on
one head, in a bounded time.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable
from random import Random

from gossamer.protocol.ids import PeerId, digest_of
from tests.sim.simulator.checks import Checks
from tests.sim.simulator.faults import Faults
from tests.sim.simulator.links import Links
from tests.sim.simulator.modes import Mode
from tests.sim.simulator.network import Network
from tests.sim.simulator.peer import Died, Peer
from tests.sim.simulator.scenario import Scenario, draw
from tests.sim.simulator.signatures import peer_id_of

PROGRESS_SECONDS = 400.0
"""Bound on the time from the healing until everybody is on one new head."""

EVENTS_MAX = 3_000_000

_TICKS_PER_SECOND = 2.0**20


class World:
    """One swarm. `run` returns when all is well and raises AssertionError otherwise."""

    def __init__(self, scenario: Scenario, *, verbose: bool = False) -> None:
        self.scenario = scenario
        self.random = Random(scenario.seed * 2 + 1)
        self.mode = Mode(scenario.mode, scenario.num_chunks, scenario.num_chunks_carried)
        self.now = 0.0
        self.run_id = digest_of(b"simulated run", scenario.seed.to_bytes(8, "big"))
        self.statistics: Counter[str] = Counter()
        self._verbose = verbose
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self.num_events = 0
        self.order = [peer_id_of(index) for index in range(len(scenario.machines))]
        self.checks = Checks(self)
        self.network = Network(self)
        self.links = Links(self)
        self.faults = Faults(self)
        self.peers = {peer: Peer(self, peer, index) for index, peer in enumerate(self.order)}
        self.progress_seconds = 0.0
        """How long it took after the healing until all was well."""
        self._news = True

    # The clock

    def at(self, seconds: float, event: Callable[[], None]) -> None:
        """Times are rounded up to fractions that the sum of two clocks holds exactly."""
        self.num_events += 1
        ticks = math.ceil((seconds if seconds > self.now else self.now) * _TICKS_PER_SECOND)
        heapq.heappush(self._events, (ticks / _TICKS_PER_SECOND, self.num_events, event))

    def later(self, delay_seconds: float, event: Callable[[], None]) -> None:
        self.at(self.now + delay_seconds, event)

    def uniform(self, bounds: tuple[float, float]) -> float:
        low, high = bounds
        return low + (high - low) * self.random.random()

    def run(self) -> None:
        self.faults.begin()
        for peer in self.all_peers():
            if peer.machine.starts:
                self.later(self.uniform((0.0, 0.2)), peer.start)
        deadline = self.scenario.fault_seconds + PROGRESS_SECONDS
        while self._events:
            seconds, _, event = heapq.heappop(self._events)
            if seconds > deadline:
                break
            self.now = seconds
            try:
                event()
            except Died:
                self._news = True
            assert self.num_events < EVENTS_MAX, "events without end"
            if self._news and self.faults.are_over:
                self._news = False
                if self.checks.is_done():
                    break
        self.progress_seconds = self.now - self.scenario.fault_seconds
        self.checks.at_end()

    def news(self) -> None:
        """A peer's head or life changed: all may be well now."""
        self._news = True

    # The peers

    def all_peers(self) -> list[Peer]:
        """Living or not, in order."""
        return [self.peers[peer] for peer in self.order]

    def living(self) -> list[Peer]:
        return [peer for peer in self.all_peers() if peer.alive]

    # For people

    def name(self, peer: PeerId | str) -> str:
        return self.peers[PeerId(peer)].name

    def doubted_by(self, peer: Peer, round_number: int) -> frozenset[PeerId]:
        """The others whose accusations a peer does not believe at once in a round."""
        # Not of the world's own chances: with and without doubts a seed is the same world.
        return self._some_others(f"{self.scenario.seed} {peer.index} {round_number}", peer)

    def suspected_by(self, peer: Peer, round_number: int) -> frozenset[PeerId]:
        """The others with which a peer has less patience in a round."""
        return self._some_others(f"suspects {self.scenario.seed} {peer.index} {round_number}", peer)

    def unfair_to(self, peer: Peer, round_number: int) -> frozenset[PeerId]:
        """The others whose rosters a peer mends in a round."""
        return self._some_others(f"mends {self.scenario.seed} {peer.index} {round_number}", peer)

    def wronged_of(self, peer: Peer, round_number: int) -> frozenset[PeerId]:
        """The others without which a peer mends all rosters in a round."""
        return self._some_others(f"wronged {self.scenario.seed} {peer.index} {round_number}", peer)

    def _some_others(self, seed: str, peer: Peer) -> frozenset[PeerId]:
        random = Random(seed)
        others = sorted(other for other in self.peers if other != peer.peer_id)
        return frozenset(other for other in others if random.random() < self.scenario.doubt)

    def count(self, what: str, condition: bool = True) -> None:
        if condition:
            self.statistics[what] += 1

    def note(self, what: str) -> None:
        if self._verbose:
            print(f"{self.now:9.3f}  {what}")

    @property
    def is_verbose(self) -> bool:
        return self._verbose


def simulate(seed: int, *, verbose: bool = False) -> World:
    """Runs the world of one seed. Raises AssertionError, or whatever a machine raised."""
    world = World(draw(seed), verbose=verbose)
    world.run()
    return world
