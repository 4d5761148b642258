"""What one seed decides of a swarm of whole nodes: who is in it, its lines, and what goes wrong."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Literal

MODES = ("distro", "fp32", "int4", "sparse", "fragments")
"""Ways of averaging: a codec, a mode by its name, or rounds that average half of the model."""

FaultKind = Literal[
    "crash",  # a process dies (SIGKILL) and stays away
    "restart",  # a process dies and comes back
    "freeze",  # a process is stopped and goes on later (SIGSTOP)
    "silence",  # nothing goes over any of a peer's links for a while, without a word
    "break",  # the connection of two peers breaks
    "split",  # two groups cannot hear each other for a while
    "slow line",  # a peer's links carry little for a while
    "slow trainer",  # a peer's steps take ten times as long for a while
    "several",  # some processes die at one moment and come back
    "blackout",  # all die, and come back in any order
    "join",  # a peer that was not there yet starts
]

FAULTS: tuple[FaultKind, ...] = (
    "crash",
    "restart",
    "freeze",
    "silence",
    "break",
    "split",
    "slow line",
    "slow trainer",
    "several",
    "blackout",
    "join",
)

CRASHES_MAX = 2
"""Deaths for good: each piece of the corpus is with three peers."""

FAULT_SECONDS = 10.0
"""From the first fault on; a round takes about a second."""


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong. Whom it hits is drawn when it happens, among those that live."""

    at_seconds: float
    """After the first fault could have happened."""
    kind: FaultKind
    for_seconds: float
    """How long it lasts, where it ends."""


@dataclass(frozen=True)
class SwarmStory:
    """One world of whole nodes."""

    seed: int
    mode: str
    overlap: bool
    inner_steps: int
    step_seconds: tuple[float, ...]
    """Of each peer."""
    num_newcomers: int
    """Who of them, the last ones, is not there from the beginning."""
    is_founded_together: bool
    """Whether the first round waits for all that are there."""
    latency_seconds: float
    gossip_loss: float
    """While there are faults."""
    faults: tuple[Fault, ...]
    num_private: int
    """Peers behind strict routers, the last ones of all: no two of them can dial each other."""

    @property
    def private_names(self) -> str:
        """The peers behind strict routers."""
        return self.names[len(self.names) - self.num_private :]

    @property
    def names(self) -> str:
        """A letter a peer."""
        return "abcdefgh"[: len(self.step_seconds)]

    @property
    def first_names(self) -> str:
        """Who is there from the beginning."""
        return self.names[: len(self.names) - self.num_newcomers]


def draw(seed: int, mode: str = "distro") -> SwarmStory:
    """The story of a seed in one of `MODES`."""
    random = Random(f"{mode} {seed}")
    num_newcomers = random.choice((0, 0, 1, 2))
    num_peers = random.randint(3, 6 - num_newcomers) + num_newcomers
    kinds = random.choice((FAULTS, tuple(random.sample(FAULTS, 2))))
    times = sorted(random.uniform(0.0, FAULT_SECONDS) for _ in range(random.randint(1, 6)))
    faults = [Fault(at, random.choice(kinds), random.uniform(0.3, 10.0)) for at in times]
    if len(faults) > 1 and random.random() < 0.3:  # two at one moment
        faults[1] = Fault(faults[0].at_seconds, faults[1].kind, faults[1].for_seconds)
    # Drawn on its own, so that a seed's other properties stay as they were.
    num_private = Random(f"routers {mode} {seed}").choice((0, 0, 2, num_peers - 1))
    return SwarmStory(
        seed=seed,
        mode=mode,
        overlap=mode != "distro" and random.random() < 0.5,
        inner_steps=random.choice((4, 8)),
        step_seconds=tuple(random.choice((0.08, 0.1, 0.1, 0.15)) for _ in range(num_peers)),
        num_newcomers=num_newcomers,
        is_founded_together=random.random() < 0.5,
        latency_seconds=random.choice((0.002, 0.01, 0.04)),
        gossip_loss=random.choice((0.0, 0.0, 0.2)),
        faults=tuple(faults),
        num_private=min(num_private, num_peers - 1),
    )
