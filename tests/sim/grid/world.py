"""A grid in virtual time: lines with delays, and members that die, stand still, or are put out."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from gossamer.protocol.ids import PeerId
from tests.sim.grid.member import Grid, GridMember, Message, Sum

DELAYS = (0.5, 1.5)
"""Time of a message on its way."""

NOTICE = (0.1, 12.0)
"""Time until a member hears that another one is out."""

STOPS = (5.0, 30.0)
"""Time for which a member stands still."""

KINDS = ("dies", "stands still", "is put out")


@dataclass(frozen=True)
class Outcome:
    """The end of one world."""

    seconds: float
    num_messages: int
    num_incomplete: int
    """Members in the ring that lack an average."""
    num_different: int
    """Chunks of which two members in the ring have different averages."""
    num_wrong: int
    """Averages that are not the sum of the parts that they name."""
    lost: float
    """Share of the parts of members in the ring that are in no average."""


class World:
    """One ring of R x C members."""

    def __init__(self, grid: Grid, seed: int, num_faults: int) -> None:
        self.grid = grid
        self._random = random.Random(seed)
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._arrives: dict[tuple[PeerId, PeerId], float] = {}
        self._dead: set[PeerId] = set()
        self._still_until: dict[PeerId, float] = {}
        self._out: set[PeerId] = set()
        self._num_messages = 0
        places = itertools.product(range(grid.num_rows), range(grid.num_columns))
        self.members = {grid.peer(*place): self._member(*place) for place in places}
        duration = 3.0 * (grid.num_rows + grid.num_columns)
        for peer in self._random.sample(sorted(self.members), num_faults):
            kind = self._random.choice(KINDS)
            self._at(self._random.uniform(0.0, duration), partial(self._fault, peer, kind))

    def run(self) -> Outcome:
        """Runs until nothing is left to happen."""
        for peer in self.members:
            self._at(self._random.uniform(0.0, 1.0), self._on(peer, self.members[peer].start))
        while self._events:
            self._now, _, event = heapq.heappop(self._events)
            event()
        return self._outcome()

    def _part(self, peer: PeerId, chunk: int) -> int:
        row, column = map(int, peer.split("."))
        place = (row * self.grid.num_columns + column) * self.grid.num_chunks + chunk
        return random.Random(place).getrandbits(64)

    def _member(self, row: int, column: int) -> GridMember:
        peer = self.grid.peer(row, column)
        return GridMember(
            self.grid,
            row,
            column,
            lambda chunk: self._part(peer, chunk),
            lambda to, message: self._deliver(peer, to, message),
        )

    def _at(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (seconds, next(self._order), event))

    def _on(self, peer: PeerId, event: Callable[[], None]) -> Callable[[], None]:
        """What happens at a member, once it runs."""

        def happen() -> None:
            until = self._still_until.get(peer, 0.0)
            if peer in self._dead:
                return
            if self._now < until:
                self._at(until, happen)
            else:
                event()

        return happen

    def _deliver(self, sender: PeerId, to: PeerId, message: Message) -> None:
        self._num_messages += 1
        link = (sender, to)
        arrives = max(self._now + self._random.uniform(*DELAYS), self._arrives.get(link, 0.0))
        self._arrives[link] = arrives
        member = self.members[to]
        self._at(arrives, self._on(to, lambda: member.received(sender, message)))

    def _fault(self, peer: PeerId, kind: str) -> None:
        self._out.add(peer)
        if kind == "dies":
            self._dead.add(peer)
        elif kind == "stands still":
            self._still_until[peer] = self._now + self._random.uniform(*STOPS)
        for other, member in self.members.items():
            heard = self._now + self._random.uniform(*NOTICE)
            self._at(heard, self._on(other, partial(member.removed, peer)))

    def _outcome(self) -> Outcome:
        grid = self.grid
        inside = {p: m for p, m in self.members.items() if p not in self._out}
        incomplete = sum(not member.is_complete for member in inside.values())
        different = wrong = lost = 0
        for chunk in range(grid.num_chunks):
            found = {s for m in inside.values() if (s := m.average_of(chunk)) is not None}
            different += len(found) > 1
            wrong += sum(not self._is_exact(each, chunk) for each in found)
            if found:
                there = self._contributors(max(found, key=lambda each: each.num_members))
                lost += sum(peer not in there for peer in inside)
        return Outcome(
            self._now,
            self._num_messages,
            incomplete,
            different,
            wrong,
            lost / (len(inside) * grid.num_chunks),
        )

    def _contributors(self, average: Sum) -> set[PeerId]:
        return {
            self.grid.peer(row, column)
            for row, mask in average.masks
            for column in range(self.grid.num_columns)
            if mask >> column & 1
        }

    def _is_exact(self, average: Sum, chunk: int) -> bool:
        return average.total == sum(self._part(p, chunk) for p in self._contributors(average))
