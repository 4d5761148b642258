"""The faults of a simulated swarm: their names, how a seed draws them, and how they are injected.

The simulator of the state machines (`tests/sim`) and the swarms of whole nodes (`tests/swarms`)
share this module. A world implements the few primitives of `FaultInjector`; each fault is made of
them here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Generic, Literal, TypeVar

FaultKind = Literal[
    "crash",  # the process dies (SIGKILL) and stays away
    "vanish",  # the machine dies, and no connection closes
    "restart",  # the process dies and comes back
    "several",  # some processes die at one moment and come back
    "half",  # half of the peers die at once and stay away
    "neighbours",  # two neighbours in a ring die at once and stay away
    "blackout",  # all die and come back in any order, except perhaps one
    "freeze",  # the process is stopped and goes on later (SIGSTOP)
    "break",  # the connection of two peers breaks
    "isolate",  # some peers, often one, hear nothing for a while, without a word
    "split",  # two groups cannot hear each other for several rounds
    "slow",  # the line of a peer carries little for a while
    "slow trainer",  # a peer's steps take ten times as long for a while
    "suspect",  # a peer gives up its successor although nothing is wrong with it
    "join",  # a peer that was not there yet starts
]

P = TypeVar("P")
"""A peer, as a world refers to it."""


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong. What is None is drawn when it happens."""

    seconds: float
    """World's time."""
    kind: FaultKind
    peer: int | None = None
    """Index of the peer that it happens to, where it happens to one."""
    for_seconds: float | None = None
    """Its duration, where it ends."""


def draw_faults(
    random: Random, kinds: Sequence[FaultKind], number: int, start: float, stop: float
) -> tuple[Fault, ...]:
    """Draws so many faults of these kinds between two times, sorted by time."""
    times = sorted(random.uniform(start, stop) for _ in range(number))
    return tuple(Fault(seconds, random.choice(kinds)) for seconds in times)


class FaultInjector(ABC, Generic[P]):
    """Lets faults happen to a world. The subclass has the world's primitives.

    The swarm is never left without a peer that lives or comes back.
    """

    def __init__(
        self,
        random: Random,
        durations: Mapping[FaultKind, tuple[float, float]],
        count: Callable[[str], None],
    ) -> None:
        """
        Args:
            random: draws what a fault leaves open.
            durations: shortest and longest time of each fault that ends. Of "blackout" and
                "several" it is the time to the restart, as it is of "restart".
            count: is told each fault that happens.
        """
        self.random = random
        self._durations = durations
        self._count = count
        self._returning: dict[P, object] = {}
        """The dead that will be back, each with a mark of its newest death."""

    @property
    def returning(self) -> list[P]:
        """The dead that will be back."""
        return list(self._returning)

    def inject(self, fault: Fault) -> None:
        """Lets a fault happen now, if it can."""
        living = self.living()
        if not living:
            return
        peer = self.random.choice(living)
        if fault.peer is not None:
            peer = self.peers()[fault.peer]
            if peer not in living and fault.kind != "join":
                return
        self._count(fault.kind)
        match fault.kind:
            case "crash":
                self.kill_for_good([peer])
            case "half":
                self.kill_for_good(self.random.sample(living, len(living) // 2))
            case "restart":
                self.restart([peer], fault)
            case "several":
                number = self.random.randint(min(2, len(living)), len(living))
                self.restart(self.random.sample(living, number), fault)
            case "blackout":
                stays_away = self.random.choice([[], [self.random.choice(living)]])
                self.restart([each for each in living if each not in stays_away], fault)
                self.kill_for_good(stays_away)
            case "freeze":
                self.freeze(peer, self.duration(fault))
            case "break":
                others = [each for each in living if each != peer]
                if others:
                    self.break_connection(peer, self.random.choice(others))
            case "isolate":
                size = self.random.choice((1, 1, self.random.randint(1, len(self.peers()) - 1)))
                self._cut(fault, size)
            case "split":
                self._cut(fault, len(self.peers()) // 2)
            case "slow":
                self.slow_down(peer, self.duration(fault))
            case "join":
                absent = self.absent()
                if absent:
                    self.start(peer if fault.peer is not None else self.random.choice(absent))
            case _:
                self.inject_special(fault, peer)

    def duration(self, fault: Fault) -> float:
        """How long a fault lasts."""
        if fault.for_seconds is not None:
            return fault.for_seconds
        return self.random.uniform(*self._durations[fault.kind])

    def kill_for_good(self, peers: Sequence[P], *, silently: bool = False) -> None:
        """Kills those of the peers that the swarm can do without."""
        for peer in peers:
            others = {*self.living(), *self._returning} - {peer}
            if peer in self.living() and others and self.may_stay_away(peer):
                self.kill(peer, silently=silently)

    def restart(self, peers: Sequence[P], fault: Fault) -> None:
        """Kills peers at one moment. Each comes back after a time of its own."""
        for peer in peers:
            self.kill_for_now(peer, self.duration(fault))

    def kill_for_now(self, peer: P, seconds: float) -> None:
        """Kills a peer that comes back after that time."""
        self.kill(peer, silently=False)
        death = self._returning[peer] = object()

        def start() -> None:
            if self._returning.get(peer) is death:
                self.bring_back(peer)

        self.later(seconds, start)

    def bring_back(self, peer: P) -> None:
        """Starts one of the dead that would be back later."""
        del self._returning[peer]
        self.start(peer)

    def _cut(self, fault: Fault, size: int) -> None:
        peers = self.peers()
        far_side = self.random.sample(peers, size)
        if fault.peer is not None and size == 1:
            far_side = [peers[fault.peer]]
        self.cut(far_side, self.duration(fault))

    # Primitives

    @abstractmethod
    def peers(self) -> list[P]:
        """All peers of the world, living or not, in a fixed order."""

    @abstractmethod
    def living(self) -> list[P]:
        """The peers whose process exists, in that order."""

    @abstractmethod
    def absent(self) -> list[P]:
        """The peers that have not been there yet."""

    @abstractmethod
    def may_stay_away(self, peer: P) -> bool:
        """Whether the others can go on without a peer for good."""

    @abstractmethod
    def later(self, seconds: float, event: Callable[[], None]) -> None:
        """Calls `event` after so much virtual time."""

    @abstractmethod
    def start(self, peer: P) -> None:
        """Starts a peer's process."""

    @abstractmethod
    def kill(self, peer: P, *, silently: bool) -> None:
        """Ends a peer's process, if it lives. `silently`: its connections do not close."""

    @abstractmethod
    def freeze(self, peer: P, seconds: float) -> None:
        """Stops a peer's process for a while, unless it is stopped."""

    @abstractmethod
    def break_connection(self, one: P, other: P) -> None:
        """Breaks the connection of two peers, if there is one."""

    @abstractmethod
    def cut(self, group: Sequence[P], seconds: float) -> None:
        """Lets a group and the other peers hear nothing of each other for a while."""

    @abstractmethod
    def slow_down(self, peer: P, seconds: float) -> None:
        """Lets a peer's line carry little for a while."""

    def inject_special(self, fault: Fault, peer: P) -> None:
        """Lets a fault happen that only this world knows."""
        raise NotImplementedError(fault.kind)
