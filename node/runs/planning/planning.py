"""An estimate of the cost of a round to its peers, before the run exists (`gossamer plan`).

Bytes are exact except for framing. Times follow from the bytes, the lines, and the trainers' speed:

    bytes sent      2 (N - 1) / N of the size of all chunks on their way. Every chunk crosses N - 1
                    links as a partial sum, and N - 1 links as an average; as many bytes are
                    received. A sum is as large as one member's part, or larger with `int4` and more
                    than 8 members, and a set (sync = "sparse") holds up to N parts. What is left of
                    `fp32`, `fp16` and sparse updates when they are packed is an estimate
                    (`protocol.codecs.packing`)
    averaging       these bytes over the slower direction of the line, at the fraction of its rate
                    that is reached (`LINE_SHARE`), plus a constant (`AGREE_SECONDS`), plus the
                    latency of 2 (N - 1) links: a chunk goes round the ring twice, and the next
                    member waits for it. The agreement waits for `AGREE_LINKS` links more
    round           training + averaging; with overlap the longer of the two. Shared steps
                    (sync = "distro") wait for each other, one by one (`HOP_SECONDS` and the latency
                    for each link). A step in one chunk is at one member at a time, and the other
                    lines wait; with `outer.step_chunks` each chunk is at another member. Each step
                    is transformed once before it is sent and once when it is applied
    utilisation     training / round: the fraction of the time in which a trainer does not wait
    lateness        averaging / training, at most 1. With overlap, this fraction of a round's inner
                    steps is done when the state arrives from which they should have begun
    fragments       each round averages one fragment, after its part of the inner steps. The figures
                    of a round are means over all fragments, except those of the largest

All peers are assumed to be alike. `tests/benchmarks/utilisation.py` compares this with daemons.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import mean
from typing import NamedTuple

from gossamer.node.runs.planning.draft import Draft
from gossamer.node.storage.state.shared_parameters import sign_payloads
from gossamer.protocol.codecs.payloads import Payloads, payloads_of
from gossamer.protocol.limits import RING_MEMBERS_MAX
from gossamer.protocol.manifest import Manifest, Trust
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.state.sync_sets import SyncSets
from gossamer.protocol.sync_modes import SYNC_MODES

LINE_SHARE = 0.95
"""Fraction of a line's rate that carries chunks. TCP, encryption and framing take the rest.
(tests/benchmarks/ring.py measures 92 to 93 % with the agreement on the ring, which is counted
separately here.)"""

AGREE_SECONDS = 0.4
"""Time from the last `Ready` to the roster, plus that from the last chunk to the commit."""

AGREE_LINKS = 3
"""Messages that wait for each other in the agreement: the last `Ready`, the roster, and the last
vote. The first chunk goes out right behind the greeting of a ring's stream. Whole nodes in virtual
time take 9 latencies with 4 peers (tests/node/whole_nodes/test_ring_latency.py)."""

HOP_SECONDS = 0.01
"""Time that a shared step takes for each link, estimated for one machine. A step waits until its
partial sum and its average have gone round once each. The latency of a real line comes on top."""

OFFER_SECONDS = 20e-9
"""Time of the trainer for each parameter and shared step: a part is extracted from the momentum.
Measured on one CPU core with models of 1 to 40 million parameters; a GPU is faster."""

TAKE_SECONDS = 20e-9
"""Time of the daemon for each parameter and shared step, always on a CPU: every peer applies the
step with exact transforms. 15 to 33e-9 were measured."""

BITS_PER_BYTE = 8
MEGA = 1e6

LATENESS_MAX = 0.15
"""Lateness that costs little: a state that was late by a tenth of a round cost 0.3 % of the loss,
and by a fifth 1.2 % (tests/benchmarks/losses.py)."""

FRAGMENTS_LATENESS_MAX = 0.5
"""The same limit from `FRAGMENTS_ADVISED` fragments on. With four fragments, a state that was late
by half of a turn cost nothing, and by a whole turn 1 %. More are assumed to behave alike."""

FRAGMENTS_ADVISED = 4
"""Fragments to advise. More were not measured, and their many rings cost time to agree on."""


MIXING_LATENESS_MIN = 0.5
"""Lateness in one piece from which `MIXING_ADVISED` is advised to a run with Muon. A state that was
late by half a round then cost 2.4 % in place of 5.1 %, and by a whole one 3.8 % in place of 12.9 %
(tests/benchmarks/losses.py). Earlier ones were not measured, and AdamW gains half as much."""

MIXING_MOMENTUM_MIN = 0.8
"""Outer momentum with which that was measured, and from which mixing is advised. With 0.6 a whole
round's lateness costs 6.9 %, and 6.0 % with mixing (one seed)."""

MIXING_ADVISED = 0.4
"""`outer.mixing` to advise: 0.25 and 0.6 were worse."""


@dataclass(frozen=True)
class Line:
    """The line of each peer, in Mbit/s."""

    up: float
    down: float
    latency_seconds: float = 0.0
    """Time of a message to the next peer, one way."""


@dataclass(frozen=True)
class RoundPlan:
    """The cost of one round to one peer, after the warm-up.

    It has more than 12 attributes: each is a row of the table that `gossamer plan` prints.
    """

    peers: int
    parameters: int
    fragments: int
    inner_steps: int
    payload_bytes: int
    """Bytes of the peer's own encoded pseudo-gradient."""
    sent_bytes: int
    """Bytes sent, mean over the fragments. As many are received."""
    sent_bytes_open: int | None
    """Bytes that would be sent with `trust = "open"`, mean over the fragments; None where the run
    has it."""
    sent_bytes_max: int
    """Bytes sent in the round of the largest fragment."""
    averaging_seconds_of: tuple[float, ...]
    """Time of averaging, by fragment."""
    training_seconds: float | None
    """None if the speed of a trainer is not known."""
    overlap: bool
    fragments_advised: int
    """Number of fragments with which a late state would cost less; 0 if more would not help."""
    may_mix: bool
    """Whether the run could have `outer.mixing`, and gains by it where states are late."""
    state_bytes: int
    """Bytes that a newcomer fetches: parameters, momentum, and weights that adapters leave as they
    are."""
    join_seconds: float

    @property
    def payload_per_step(self) -> float:
        """Bytes of the encoded pseudo-gradient for each inner step."""
        return self.payload_bytes / self.inner_steps

    @property
    def reduction(self) -> float:
        """Factor by which these bytes are fewer than those of an fp32 gradient at every step."""
        return 4 * self.parameters / self.payload_per_step

    @property
    def averaging_seconds(self) -> float:
        return mean(self.averaging_seconds_of)

    @property
    def round_seconds(self) -> float | None:
        training = self.training_seconds
        if training is None:
            return None
        if self.overlap:
            return mean(max(training, averaging) for averaging in self.averaging_seconds_of)
        return training + self.averaging_seconds

    @property
    def utilisation(self) -> float | None:
        """Fraction of the time in which the trainer is busy."""
        seconds = self.round_seconds
        if seconds is None or self.training_seconds is None:
            return None
        return self.training_seconds / seconds

    @property
    def lateness(self) -> float | None:
        """Lateness as defined above. None without overlap, or if a trainer's speed is not known."""
        if self.training_seconds is None or not self.overlap:
            return None
        ratios = (seconds / self.training_seconds for seconds in self.averaging_seconds_of)
        return mean(min(1.0, ratio) for ratio in ratios)

    @property
    def is_late(self) -> bool:
        """Returns whether states arrive so late that it costs the model something."""
        most = FRAGMENTS_LATENESS_MAX if self.fragments >= FRAGMENTS_ADVISED else LATENESS_MAX
        return self.lateness is not None and self.lateness > most

    @property
    def mixing_advised(self) -> float:
        """`outer.mixing` with which a late state would cost less; 0 if none is known to help."""
        is_late = self.lateness is not None and self.lateness >= MIXING_LATENESS_MIN
        return MIXING_ADVISED if is_late and self.may_mix else 0.0

    def training_seconds_for(self, utilisation: float) -> float:
        """Returns the time that a round's inner steps must take for that utilisation."""
        if self.overlap:
            return max(self.averaging_seconds_of) * utilisation
        return self.averaging_seconds * utilisation / (1 - utilisation)


def plan_round(
    draft: Draft | Manifest, peers: int, line: Line, tokens_per_second: float | None = None
) -> RoundPlan:
    """Returns the cost of a round of this run to each of so many peers.

    Args:
        tokens_per_second: speed of each peer's trainer; None if it is not known.

    Raises:
        ValueError: there are no peers or too many, or a rate or the latency is not allowed.
    """
    _require_allowed(peers, line, tokens_per_second)
    model, outer, inner = draft.model, draft.outer, draft.inner
    payloads = _payloads_of(draft, draft.trust)
    waits = _waits_of(draft, peers, line)
    slower = min(line.up, line.down) * MEGA / BITS_PER_BYTE * LINE_SHARE
    payload_of, sent_of, averaging_of = [], [], []
    turns = SyncSets(model, outer, draft.sync).turns
    for exchange in turns:
        sizes = [exchange.plan.elements_of(chunk) for chunk in range(exchange.plan.num_chunks)]
        payload_of.append(sum(map(payloads.part_bytes, sizes)))
        sent_of.append(_sent_of(exchange.plan, payloads, peers))
        waits_seconds = AGREE_SECONDS + waits.latency_seconds + waits.steps_seconds
        sent_seconds = sent_of[-1] / (slower * waits.busy_share)
        averaging_of.append(sent_seconds + waits_seconds if peers > 1 else waits.steps_seconds)
    sent_open: int | None = None
    if draft.trust == "members":
        unsigned = _payloads_of(draft, "open")
        sent_open = round(mean(_sent_of(exchange.plan, unsigned, peers) for exchange in turns))
    inner_steps = outer.inner_steps // outer.fragments
    tokens = inner_steps * inner.sequences_per_step * model.context
    training_seconds = None
    if tokens_per_second is not None:
        training_seconds = tokens / tokens_per_second + waits.offers_seconds
    state_bytes = 8 * model.num_parameters + model.frozen_bytes
    has_momentum = inner.optimizer == "muon" and outer.momentum >= MIXING_MOMENTUM_MIN
    return RoundPlan(
        peers=peers,
        parameters=model.num_parameters,
        fragments=outer.fragments,
        inner_steps=inner_steps,
        payload_bytes=round(mean(payload_of)),
        sent_bytes=round(mean(sent_of)),
        sent_bytes_open=sent_open,
        sent_bytes_max=max(sent_of),
        averaging_seconds_of=tuple(averaging_of),
        training_seconds=training_seconds,
        overlap=outer.overlap,
        fragments_advised=_fragments_advised(draft),
        may_mix=outer.fragments == 1 and not outer.mixing and has_momentum,
        state_bytes=state_bytes,
        join_seconds=state_bytes / (line.down * MEGA / BITS_PER_BYTE * LINE_SHARE),
    )


class _Waits(NamedTuple):
    """The time of a round in which no member sends."""

    latency_seconds: float
    """Of the ring, but for shared steps."""
    steps_seconds: float = 0.0
    """Of shared steps, without what they send."""
    offers_seconds: float = 0.0
    """To make the offers of shared steps."""
    busy_share: float = 1.0
    """Part of the time in which each member's line is at work."""


def _waits_of(draft: Draft | Manifest, peers: int, line: Line) -> _Waits:
    model, outer, num_links = draft.model, draft.outer, 2 * (peers - 1)
    if not SYNC_MODES[draft.sync].shares_steps:
        return _Waits((num_links + AGREE_LINKS) * line.latency_seconds)
    # The chunks of a step are under way at once, each at another member.
    chunks_at_member = -(-outer.chunks_of_step // peers)
    step_seconds = num_links * (HOP_SECONDS * chunks_at_member + line.latency_seconds)
    step_seconds += model.num_parameters * TAKE_SECONDS
    return _Waits(
        AGREE_LINKS * line.latency_seconds,  # the rest is in each step
        outer.inner_steps * step_seconds,
        outer.inner_steps * model.num_parameters * OFFER_SECONDS,
        outer.chunks_of_step / (peers * chunks_at_member),
    )


def _require_allowed(peers: int, line: Line, tokens_per_second: float | None) -> None:
    """Raises ValueError, see `plan_round`."""
    if peers < 1:
        raise ValueError(f"a plan is for at least one peer, not for {peers}")
    if peers > RING_MEMBERS_MAX:
        raise ValueError(
            f"a round has at most {RING_MEMBERS_MAX} peers, not {peers}: others sit it out"
        )
    speed = 1.0 if tokens_per_second is None else tokens_per_second
    for what, rate, unit in (
        ("the upload of a line", line.up, "Mbit/s"),
        ("the download of a line", line.down, "Mbit/s"),
        ("the speed of a trainer", speed, "tokens/s"),
    ):
        if not 0 < rate < math.inf:
            raise ValueError(f"{what} is {rate:g} {unit}; allowed: more than 0")
    if not 0 <= line.latency_seconds < math.inf:
        raise ValueError("the latency of a line is 0 or more")


def _payloads_of(draft: Draft | Manifest, trust: Trust) -> Payloads:
    if SYNC_MODES[draft.sync].shares_steps:
        return sign_payloads(draft.model, draft.outer, trust)
    return payloads_of(draft.sync, draft.outer, trust)


def _sent_of(plan: ChunkPlan, payloads: Payloads, peers: int) -> int:
    """Returns the bytes that each of so many peers sends in a ring."""
    sizes = (plan.elements_of(chunk) for chunk in range(plan.num_chunks))
    on_way = sum(payloads.mean_bytes(size, peers, is_packed=True) for size in sizes)
    return round(2 * (peers - 1) / peers * on_way)


def _fragments_advised(draft: Draft | Manifest) -> int:
    """Returns the most fragments that the manifest allows, up to `FRAGMENTS_ADVISED`."""
    outer, num_layers = draft.outer, draft.model.num_layers
    if not SYNC_MODES[draft.sync].may_have_fragments:
        return 0
    most = min(FRAGMENTS_ADVISED, num_layers)
    allowed = max(n for n in range(1, most + 1) if outer.inner_steps % n == 0)
    return allowed if allowed > outer.fragments else 0
