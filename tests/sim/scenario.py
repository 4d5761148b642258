"""What one seed decides: the swarm, its network and what goes wrong in it."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Literal

FAULT_SECONDS = 60.0
"""Faults happen in this first part of the virtual time; what must live has to finish after it."""

HOLD_SECONDS = 100.0
"""Late enough that everything has come to rest, and before anybody leaves a ring as stalled."""

FaultKind = Literal["crash", "hang", "suspect", "break", "restart", "partition"]


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong: with whom is drawn when it happens."""

    seconds: float
    kind: FaultKind


@dataclass(frozen=True)
class Scenario:
    """One world. Times in virtual seconds, probabilities from 0 to 1."""

    seed: int
    num_peers: int
    num_chunks: int
    num_rounds: int
    gather_seconds: float
    attempt_seconds: float
    latency_seconds: tuple[float, float]
    frame_seconds: tuple[float, float]
    """Time that a token occupies a link."""
    arithmetic_seconds: tuple[float, float]
    train_seconds: tuple[float, float]
    gossip_loss: float
    gossip_duplicates: float
    gossip_seconds: tuple[float, float]
    exchange_seconds: float
    """Each peer compares its board with another's this often."""
    faults: tuple[Fault, ...]
    hold_seconds: float
    """No outer step is done before this time, so that the rings have to finish by themselves: a
    commit record saves whoever it reaches, and would hide what the rules of the ring lack."""


def draw(seed: int) -> Scenario:
    """The scenario of a seed: every third one a single ring under fire, else whole runs."""
    random = Random(seed)
    return _draw_ring(seed, random) if seed % 3 == 0 else _draw_run(seed, random)


def _draw_ring(seed: int, random: Random) -> Scenario:
    """One round of peers that are ready together, and faults while its chunks are under way."""
    num_peers = random.choice((3, 4, 5, 6, 8))
    kinds: tuple[FaultKind, ...] = random.choice(
        (("crash",), ("suspect",), ("crash", "suspect"), ("crash", "suspect", "break", "partition"))
    )
    frame_seconds = random.choice((0.05, 0.2, 0.5))
    stop = 1.5 + random.choice((1.0, 4.0, 10.0)) * num_peers * frame_seconds
    num_faults = random.randint(1, num_peers)
    return Scenario(
        seed=seed,
        num_peers=num_peers,
        num_chunks=random.choice((1, num_peers, 2 * num_peers)),
        num_rounds=1,
        gather_seconds=10.0,
        attempt_seconds=2.5,
        latency_seconds=random.choice(((0.01, 0.05), (0.05, 0.5))),
        frame_seconds=(frame_seconds / 2, frame_seconds),
        arithmetic_seconds=random.choice(((0.0, 0.0), (0.0, 0.2))),
        train_seconds=(1.0, 1.1),
        gossip_loss=random.choice((0.0, 0.5)),
        gossip_duplicates=0.0,
        gossip_seconds=random.choice(((0.01, 0.1), (0.1, 3.0))),
        exchange_seconds=1.0,
        faults=tuple(
            Fault(seconds, random.choice(kinds))
            for seconds in sorted(random.uniform(1.2, stop) for _ in range(num_faults))
        ),
        hold_seconds=HOLD_SECONDS,
    )


def _draw_run(seed: int, random: Random) -> Scenario:
    """Up to three rounds, mild and harsh; small swarms more often than large ones."""
    num_peers = random.choice((1, 2, 2, 3, 3, 3, 4, 4, 5, 5, 6, 7, 8, 8, 12, 16))
    latency = random.choice((0.01, 0.1, 0.5))
    kinds: tuple[FaultKind, ...] = random.choice(
        (
            ("crash",),
            ("crash", "hang"),
            ("suspect",),
            ("break",),
            ("crash", "hang", "suspect", "break"),
            ("crash", "restart", "break"),
            ("suspect", "break", "restart"),
            ("partition",),
            ("partition", "crash"),
            ("partition", "break", "restart", "suspect", "crash", "hang"),
        )
    )
    num_faults = random.choice((0, 1, 1, 2, 3, 4, num_peers, 2 * num_peers))
    # Faults come in a part of the time only, so that several fall into one ring.
    start = random.uniform(0.0, FAULT_SECONDS / 3)
    stop = start + random.choice((0.5, 5.0, FAULT_SECONDS - start))
    faults = tuple(
        sorted(
            (Fault(random.uniform(start, stop), random.choice(kinds)) for _ in range(num_faults)),
            key=lambda fault: fault.seconds,
        )
    )
    train = random.choice((0.5, 5.0, 10.0))
    frame_seconds = random.choice(((0.0, 0.01), (0.01, 0.2), (0.1, 1.0)))
    arithmetic_seconds = random.choice(((0.0, 0.0), (0.0, 0.05), (0.1, 1.5)))
    return Scenario(
        seed=seed,
        num_peers=num_peers,
        num_chunks=random.choice((1, 2, 3, num_peers, 2 * num_peers)),
        num_rounds=random.choice((1, 1, 2, 3)),
        gather_seconds=random.choice((2.0, 10.0)),
        attempt_seconds=random.choice((1.0, 2.5)),
        latency_seconds=(latency / 10, latency),
        frame_seconds=frame_seconds,
        arithmetic_seconds=arithmetic_seconds,
        train_seconds=(train * random.choice((0.0, 0.5, 0.95)), train),
        gossip_loss=random.choice((0.0, 0.0, 0.1, 0.5, 1.0)),
        gossip_duplicates=random.choice((0.0, 0.1)),
        gossip_seconds=random.choice(((0.01, 0.1), (0.05, 1.0), (0.1, 5.0))),
        exchange_seconds=random.choice((1.0, 3.0)),
        faults=faults,
        hold_seconds=0.0,
    )
