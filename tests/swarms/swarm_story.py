"""The story of a swarm of whole nodes that one seed decides: its members, lines, faults, data."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from random import Random

from gossamer.protocol.rounds.ring_order import PAIRS_PER_RELAY_MAX
from tests.support.faults import Fault, FaultKind, draw_faults

MODES = ("distro", "signed steps", "fp32", "int4", "sparse", "sparse sums", "fragments")
"""Codecs and sync modes. In `signed steps` the members of a `distro` swarm trust nobody."""

IN_STEPS = ("distro", "signed steps")
"""The modes whose rounds are shared steps."""
"""Ways of averaging: a codec, a mode by its name, sparse parts that are sums where two members have
them, or rounds that average half of the model."""

FAULTS: tuple[FaultKind, ...] = (
    "crash",
    "restart",
    "freeze",
    "isolate",
    "break",
    "split",
    "slow",
    "slow trainer",
    "several",
    "blackout",
    "join",
)

CRASHES_MAX = 2
"""Deaths for good: each piece of the corpus is with three peers. A founder that adds data comes
back, as copies of what it adds take their time."""

FAULT_SECONDS = 10.0
"""From the first fault on; a round takes about a second."""


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
    """Peers that are not there from the beginning: the last ones."""
    is_founded_together: bool
    """Whether the first round waits for all that are there."""
    latency_seconds: float
    gossip_loss: float
    """While there are faults."""
    faults: tuple[Fault, ...]
    """Their times count from the moment at which the first could have happened."""
    num_private: int
    """Peers behind strict routers, the last ones of all: no two of them can dial each other."""
    data_seconds: tuple[float, ...]
    """When the founder adds a part to the data, in order, counted as the times of faults; it does
    so later if it is not there then."""

    @property
    def step_chunks(self) -> int:
        """Chunks of a shared step."""
        return 2 if self.mode == "signed steps" else 1

    @property
    def private_names(self) -> str:
        """The peers behind strict routers."""
        return self.names[len(self.names) - self.num_private :]

    def have_room_in_one_ring(self, names: Collection[str]) -> bool:
        """Whether the peers with an open port may relay between all neighbours in a ring of these
        that no dial brings together."""
        num_private = len(set(names) & set(self.private_names))
        num_open = len(names) - num_private
        return num_private - num_open <= PAIRS_PER_RELAY_MAX * num_open

    @property
    def names(self) -> str:
        """A letter a peer."""
        return "abcdefgh"[: len(self.step_seconds)]

    @property
    def first_names(self) -> str:
        """The peers that are there from the beginning."""
        return self.names[: len(self.names) - self.num_newcomers]


def draw(seed: int, mode: str = "distro") -> SwarmStory:
    """The story of a seed in one of `MODES`."""
    random = Random(f"{mode} {seed}")
    num_newcomers = random.choice((0, 0, 1, 2))
    num_peers = random.randint(3, 6 - num_newcomers) + num_newcomers
    kinds = random.choice((FAULTS, tuple(random.sample(FAULTS, 2))))
    faults = list(draw_faults(random, kinds, random.randint(1, 6), 0.0, FAULT_SECONDS))
    if len(faults) > 1 and random.random() < 0.3:  # two at one moment
        faults[1] = replace(faults[1], seconds=faults[0].seconds)
    # Drawn on its own, so that a seed's other properties stay as they were.
    num_private = Random(f"routers {mode} {seed}").choice((0, 0, 2, num_peers - 1))
    of_data = Random(f"data {mode} {seed}")
    num_parts = of_data.choice((0, 0, 1, 3))
    data_seconds = sorted(of_data.uniform(0.0, FAULT_SECONDS) for _ in range(num_parts))
    return SwarmStory(
        seed=seed,
        mode=mode,
        overlap=mode not in IN_STEPS and random.random() < 0.5,
        inner_steps=random.choice((4, 8)),
        step_seconds=tuple(random.choice((0.08, 0.1, 0.1, 0.15)) for _ in range(num_peers)),
        num_newcomers=num_newcomers,
        is_founded_together=random.random() < 0.5,
        latency_seconds=random.choice((0.002, 0.01, 0.04)),
        gossip_loss=random.choice((0.0, 0.0, 0.2)),
        faults=tuple(faults),
        num_private=min(num_private, num_peers - 1),
        data_seconds=tuple(data_seconds),
    )
