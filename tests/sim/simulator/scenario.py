"""What one seed decides: the swarm, its network and what goes wrong in it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Literal

from tests.support.faults import Fault, FaultKind, draw_faults

CHUNK_BYTES = 4096
"""Of the smallest chunk that a roster may name, in fp32. The lines are as slow as it takes."""

HEALTHY_GOSSIP_SECONDS = (0.01, 0.3)

HOLD_SECONDS = 100.0
"""Late enough that everything has come to rest, and before anybody leaves a ring as stalled."""

DATA_SECONDS = 20.0
"""Time within which parts are added: most worlds have rounds before and after."""

DOUBT = 0.5
"""What a peer doubts is its own memory, so each may doubt others than its neighbours do."""

CrashPoint = Literal["roster made", "roster under way", "roster out", "installed", "settled"]
"""Where in its own doing a peer may be killed: before, while and after it publishes a roster,
before what a committed round took is settled, and before that is said."""


@dataclass(frozen=True)
class Machine:
    """One peer's computer."""

    bytes_per_second: float
    """Of its line, each way."""
    train_seconds: tuple[float, float]
    """For the inner steps of a round."""
    clock_ahead_seconds: int
    """Of its clock before the world's."""
    starts: bool = True
    """Whether it is there from the beginning."""


@dataclass(frozen=True)
class Scenario:
    """One world. Times in virtual seconds, probabilities from 0 to 1."""

    seed: int
    machines: tuple[Machine, ...]
    num_chunks: int
    """Of a round."""
    fragments: int = 1
    """Parts of what a peer carries, each of so many chunks, that rounds exchange in turn."""
    mode: str = "fp32"
    """The way of averaging: a codec, with signed records or without, or sparse payloads."""
    overlap: bool = False
    """Whether peers train on while their ring is at work."""
    gather_seconds: float = 10.0
    gather_fraction: float = 1000.0
    attempt_seconds: float = 2.5
    stale_rounds: int = 10
    latency_seconds: tuple[float, float] = (0.01, 0.05)
    arithmetic_seconds: tuple[float, float] = (0.0, 0.0)
    gossip_loss: float = 0.0
    """Until everything heals, as the next."""
    gossip_duplicates: float = 0.0
    gossip_seconds: tuple[float, float] = HEALTHY_GOSSIP_SECONDS
    reconcile_seconds: float = 2.0
    """Each peer compares its board with another's this often."""
    faults: tuple[Fault, ...] = ()
    crash_points: tuple[tuple[CrashPoint, int], ...] = ()
    """At which times that anybody comes to such a point, counted from 0, it is killed there."""
    fault_seconds: float = 0.0
    """When everything heals. From then on the swarm has to make progress."""
    hold_seconds: float = 0.0
    """No outer step is done before this time, so that the rings have to finish by themselves: a
    commit record saves each peer it reaches, and would hide what the rules of the ring lack."""
    doubt: float = 0.0
    """Of a round, that a peer doubts another one in it, each by itself."""
    accusers: int = 1
    """Votes that call a member removed before a commit counts it as out."""
    data_seconds: tuple[float, ...] = ()
    """When the founder adds a part to the data. Peers hear of it one after the other."""
    rounds_after: int = 2
    """Rounds that everybody has to commit after everything healed."""

    @property
    def num_chunks_carried(self) -> int:
        return self.num_chunks * self.fragments

    def first_chunk_of(self, round_number: int) -> int:
        """Number of the first chunk that a round exchanges, among those that are carried."""
        return (round_number - 1) % self.fragments * self.num_chunks


_MODES = ("fp32", "fp16", "int8", "int4", "sparse", "int8+open", "sparse+open")
"""Ways of averaging by seed. Their number has no divisor with that of the kinds of scenario."""

MODES = (*_MODES, "sparse+sums")
"""Of which each world has one: with every other sparse one the sets of many members are sums."""


def draw(seed: int) -> Scenario:
    """The scenario of a seed: every third one a single ring under fire, else whole runs."""
    random = Random(seed)
    if seed % 3 == 0:
        scenario = _draw_ring(seed, random)
    else:
        scenario = replace(_draw_run(seed, random), fragments=random.choice((1, 1, 2, 3)))
    number, place = divmod(seed, len(_MODES))
    doubt = DOUBT if number % 4 in (1, 2) else 0.0
    mode = _MODES[place]
    if mode == "sparse" and number // 2 % 2:
        mode = "sparse+sums"
    scenario = replace(scenario, mode=mode, overlap=number % 2 == 1, doubt=doubt)
    return replace(
        scenario, accusers=2 if number % 5 in (1, 3) else 1, data_seconds=_draw_data(seed)
    )


def _draw_data(seed: int) -> tuple[float, ...]:
    """Drawn on its own, so that a seed's other properties stay as they were."""
    random = Random(f"data {seed}")
    num_parts = random.choice((0, 0, 1, 2))
    return tuple(sorted(random.uniform(0.0, DATA_SECONDS) for _ in range(num_parts)))


def _draw_ring(seed: int, random: Random) -> Scenario:
    """One round of peers that are ready together, and faults while its chunks are under way."""
    num_peers = random.choice((3, 4, 5, 6, 8))
    num_chunks = random.choice((1, num_peers, 2 * num_peers))
    frame_seconds = random.choice((0.05, 0.2, 0.5))
    kinds: tuple[FaultKind, ...] = random.choice(
        (
            ("crash",),
            ("suspect",),
            ("crash", "suspect"),
            ("freeze", "crash"),
            ("neighbours", "suspect"),
            ("crash", "suspect", "break", "isolate", "freeze", "vanish"),
        )
    )
    kinds = _with_slow_lines(seed, kinds)
    # A peer that falls behind has to be able to fetch a round while the others train for the next.
    train_seconds = max(1.0, 2 * num_chunks * frame_seconds)
    stop = 0.5 + random.choice((1.0, 4.0, 10.0)) * num_peers * frame_seconds
    return Scenario(
        seed=seed,
        machines=tuple(
            Machine(
                bytes_per_second=CHUNK_BYTES / (frame_seconds * random.uniform(0.5, 1.0)),
                train_seconds=(train_seconds, train_seconds + 0.1),
                clock_ahead_seconds=random.randint(0, 10_000),
            )
            for _ in range(num_peers)
        ),
        num_chunks=num_chunks,
        latency_seconds=random.choice(((0.01, 0.05), (0.05, 0.5))),
        arithmetic_seconds=random.choice(((0.0, 0.0), (0.0, 0.2))),
        gossip_loss=random.choice((0.0, 0.5)),
        gossip_seconds=random.choice(((0.01, 0.1), (0.1, 3.0))),
        faults=draw_faults(
            random, kinds, random.randint(1, num_peers), train_seconds + 0.2, train_seconds + stop
        ),
        fault_seconds=HOLD_SECONDS,
        hold_seconds=HOLD_SECONDS,
        rounds_after=1,
    )


def _with_slow_lines(seed: int, kinds: tuple[FaultKind, ...]) -> tuple[FaultKind, ...]:
    """In every sixth world lines become slow, in some nothing else happens."""
    number = seed // 3
    if number % 6:
        return kinds
    return ("slow",) if number % 4 == 0 else (*kinds, "slow")


_FAULTS: tuple[tuple[FaultKind, ...], ...] = (
    ("crash",),
    ("crash", "vanish"),
    ("suspect",),
    ("break",),
    ("freeze",),
    ("isolate",),
    ("split",),
    ("restart",),
    ("neighbours", "half"),
    ("blackout",),
    ("join", "restart", "crash"),
    ("split", "restart"),
    ("freeze", "isolate", "crash"),
    ("suspect", "break", "restart"),
    ("isolate", "break", "restart", "suspect", "crash", "vanish", "freeze"),
    ("split", "blackout", "freeze", "restart", "join"),
)


def _draw_run(seed: int, random: Random) -> Scenario:
    """Some rounds, mild and harsh; small swarms more often than large ones."""
    if random.random() < 0.005:
        num_peers = random.choice((24, 32, 48, 64))
        num_chunks = 8
        fault_seconds = 10.0
    else:
        num_peers = random.choice((3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 6, 6, 7, 8, 8, 10, 12, 16))
        num_chunks = random.choice((1, 2, 3, num_peers, 2 * num_peers))
        fault_seconds = random.choice((20.0, 40.0))
    kinds = _with_slow_lines(seed, random.choice(_FAULTS))
    num_faults = random.choice((0, 1, 1, 2, 3, 4, num_peers))
    # Faults come in a part of the time only, so that several fall into one ring.
    start = random.uniform(0.0, fault_seconds / 2)
    stop = start + random.choice((0.5, 5.0, fault_seconds - start))
    faults = draw_faults(random, kinds, num_faults, start, stop)
    latency = random.choice((0.01, 0.1, 0.5))
    return Scenario(
        seed=seed,
        machines=_machines(random, num_peers, num_chunks, "join" in kinds),
        num_chunks=num_chunks,
        gather_seconds=random.choice((2.0, 10.0)),
        gather_fraction=random.choice((0.3, 1000.0)),
        attempt_seconds=random.choice((1.0, 2.5)),
        stale_rounds=random.choice((2, 10)),
        latency_seconds=(latency / 10, latency),
        arithmetic_seconds=random.choice(((0.0, 0.0), (0.0, 0.05), (0.1, 1.5))),
        gossip_loss=random.choice((0.0, 0.0, 0.1, 0.5)),
        gossip_duplicates=random.choice((0.0, 0.1)),
        gossip_seconds=random.choice(((0.01, 0.1), (0.05, 1.0), (0.1, 5.0))),
        reconcile_seconds=random.choice((1.0, 3.0)),
        faults=faults,
        crash_points=_crash_points(random) if faults else (),
        fault_seconds=fault_seconds if faults else 0.0,
    )


def _machines(random: Random, num_peers: int, num_chunks: int, joins: bool) -> tuple[Machine, ...]:
    # A round has to take longer than it takes to fetch one, or who is behind never catches up.
    train_seconds, ring_seconds = random.choice(
        ((2.0, 0.1), (4.0, 0.1), (4.0, 0.5), (8.0, 0.1), (8.0, 0.5), (8.0, 2.0))
    )
    spread = random.choice((0.5, 0.8, 0.95))
    # Both ways of a ring that is not disturbed take about this long.
    bytes_per_second = 2 * num_chunks * CHUNK_BYTES / ring_seconds
    slow_line = slow_device = None
    if train_seconds >= 40 * ring_seconds and random.random() < 0.5:
        slow_line = random.randrange(num_peers)
    if random.random() < 0.2:
        slow_device = random.randrange(num_peers)
    return tuple(
        Machine(
            bytes_per_second=bytes_per_second
            * random.uniform(0.5, 1.0)
            / (20 if index == slow_line else 1),
            train_seconds=(
                train_seconds * spread * (20 if index == slow_device else 1),
                train_seconds * (20 if index == slow_device else 1),
            ),
            clock_ahead_seconds=random.randint(0, 10_000),
            starts=not joins or index < 2 or random.random() < 0.7,
        )
        for index in range(num_peers)
    )


def _crash_points(random: Random) -> tuple[tuple[CrashPoint, int], ...]:
    if random.random() < 0.7:
        return ()
    points: tuple[CrashPoint, ...] = (
        "roster made",
        "roster under way",
        "roster out",
        "installed",
        "settled",
    )
    return tuple((random.choice(points), random.randrange(6)) for _ in range(random.randint(1, 3)))
