"""`gossamer plan`: what a round of a run will cost its peers, before there is a run.

Bytes are exact but for framing. Times follow from them, the lines, and how fast a peer trains:

    bytes sent      2 (N - 1) / N of what is on its way for a chunk: every chunk goes over N - 1
                    links as a token, and over N - 1 as a final; likewise received. A sum is as
                    large as one member's part, a set (sync = "sparse") has up to N of them
    averaging       these bytes over the slower direction of the line, at the share of it that is
                    reached (`LINE_SHARE`), and what does not depend on the size (`AGREE_SECONDS`)
    round           training + averaging; with overlap the longer of the two. Shared steps
                    (sync = "distro") wait for each other, one by one (`HOP_SECONDS`), and each is
                    transformed before it is sent and when it is taken
    utilisation     training / round: the part of the time in which a trainer does not wait
    lateness        averaging / training, at most 1: with overlap, the part of a round's inner steps
                    that are done when the state arrives that they should have begun from
    fragments       each round averages one, after its share of the inner steps; what is said of a
                    round is the mean over all of them, but where the largest is meant

All peers are taken to be alike. `tests/benchmarks/utilisation.py` compares this with real daemons.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean

from gossamer.node.runs.draft import Draft
from gossamer.node.storage.shared_parameters import sign_payloads
from gossamer.protocol.codecs.payloads import Payloads, payloads_of
from gossamer.protocol.state.sync_sets import SyncSets

LINE_SHARE = 0.95
"""Of a line's rate, for chunks: the rest is TCP, encryption and framing (tests/benchmarks/ring.py
measures 92 to 93 % with the agreement on the ring, which is counted apart here)."""

AGREE_SECONDS = 0.4
"""From the last `Ready` to the roster, and from the last chunk to the commit: some gossip."""

HOP_SECONDS = 0.01
"""With shared steps each waits for its token to go once round and its final once more: so long a
link on one machine, estimated and not yet measured apart. A line's own delay comes on top, and is
not known here."""

OFFER_SECONDS = 20e-9
"""Of each parameter and shared step, in the trainer: a part is found in the momentum, and taken out
of it. Measured on one CPU core with models of 1 to 40 million; a GPU is quicker."""

TAKE_SECONDS = 20e-9
"""Likewise, in the daemon, always on a CPU: everybody takes the step, with exact transforms.
15 to 33e-9 were measured."""

BITS_PER_BYTE = 8
MEGA = 1e6

LATENESS_MAX = 0.15
"""What costs next to nothing: a state that was late by a tenth of a round cost 0.3 % of the loss,
by a fifth 1.2 % (tests/benchmarks/losses.py)."""

FRAGMENTS_LATENESS_MAX = 0.5
"""Likewise from `FRAGMENTS_ADVISED` fragments on: with four a state that was late by half of a turn
cost nothing, by all of it 1 %. More are taken to bear as much."""

FRAGMENTS_ADVISED = 4
"""More were not measured, and the agreement on so many rings would count."""


@dataclass(frozen=True)
class Line:
    """Of each peer, in Mbit/s."""

    up: float
    down: float


@dataclass(frozen=True)
class RoundPlan:
    """One round of one peer, once the warm-up is over."""

    peers: int
    parameters: int
    fragments: int
    inner_steps: int
    payload_bytes: int
    """Of the peer's own encoded pseudo-gradient."""
    sent_bytes: int
    """And as many received."""
    sent_bytes_max: int
    """In the round of the largest fragment."""
    averaging_seconds_of: tuple[float, ...]
    """Each fragment."""
    training_seconds: float | None
    """None where it is not known how fast a peer trains."""
    overlap: bool
    fragments_advised: int
    """So many would bear a late state better; 0: no more than there are now."""
    state_bytes: int
    """What a newcomer fetches: parameters and momentum."""
    join_seconds: float

    @property
    def payload_per_step(self) -> float:
        """Bytes of the own pseudo-gradient, for each inner step."""
        return self.payload_bytes / self.inner_steps

    @property
    def reduction(self) -> float:
        """How many times less that is than an fp32 gradient at every step."""
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
        """Part of the time in which the trainer is at work."""
        seconds = self.round_seconds
        if seconds is None or self.training_seconds is None:
            return None
        return self.training_seconds / seconds

    @property
    def lateness(self) -> float | None:
        """See above. None without overlap, or where it is not known how fast a peer trains."""
        if self.training_seconds is None or not self.overlap:
            return None
        ratios = (seconds / self.training_seconds for seconds in self.averaging_seconds_of)
        return mean(min(1.0, ratio) for ratio in ratios)

    @property
    def is_late(self) -> bool:
        """Whether states come so late that it costs the model something."""
        most = FRAGMENTS_LATENESS_MAX if self.fragments >= FRAGMENTS_ADVISED else LATENESS_MAX
        return self.lateness is not None and self.lateness > most

    def training_seconds_for(self, utilisation: float) -> float:
        """How long a round's inner steps have to take for that utilisation, or a little less."""
        if self.overlap:
            return max(self.averaging_seconds_of) * utilisation
        return self.averaging_seconds * utilisation / (1 - utilisation)


def plan_round(
    draft: Draft, peers: int, line: Line, tokens_per_second: float | None = None
) -> RoundPlan:
    """What a round of this run costs each of so many peers.

    Args:
        tokens_per_second: of one peer's trainer.

    Raises:
        ValueError: no peers, or a rate that is not positive.
    """
    if peers < 1:
        raise ValueError(f"a plan for {peers} peers; at least one")
    rates = [line.up, line.down, *([] if tokens_per_second is None else [tokens_per_second])]
    if min(rates) <= 0:
        raise ValueError("rates are to be positive")
    model, outer, inner = draft.model, draft.outer, draft.inner
    payloads: Payloads
    offers_seconds = shared_steps_seconds = 0.0
    if draft.sync == "distro":
        payloads = sign_payloads(model, outer)
        offers_seconds = outer.inner_steps * model.num_parameters * OFFER_SECONDS
        step_seconds = 2 * (peers - 1) * HOP_SECONDS + model.num_parameters * TAKE_SECONDS
        shared_steps_seconds = outer.inner_steps * step_seconds
    else:
        payloads = payloads_of(draft.sync, outer)
    slower = min(line.up, line.down) * MEGA / BITS_PER_BYTE * LINE_SHARE
    payload_of, sent_of, averaging_of = [], [], []
    turns = SyncSets(model, outer, draft.sync).turns
    for exchange in turns:
        sizes = [exchange.plan.elements_of(chunk) for chunk in range(exchange.plan.num_chunks)]
        payload_of.append(sum(map(payloads.part_bytes, sizes)))
        on_way = sum(payloads.mean_bytes(size, peers) for size in sizes)
        sent_of.append(round(2 * (peers - 1) / peers * on_way))
        waits = AGREE_SECONDS + shared_steps_seconds
        averaging_of.append(sent_of[-1] / slower + waits if peers > 1 else shared_steps_seconds)
    inner_steps = outer.inner_steps // outer.fragments
    tokens = inner_steps * inner.sequences_per_step * model.context
    training_seconds = None
    if tokens_per_second is not None:
        training_seconds = tokens / tokens_per_second + offers_seconds
    state_bytes = 8 * model.num_parameters
    return RoundPlan(
        peers=peers,
        parameters=model.num_parameters,
        fragments=outer.fragments,
        inner_steps=inner_steps,
        payload_bytes=round(mean(payload_of)),
        sent_bytes=round(mean(sent_of)),
        sent_bytes_max=max(sent_of),
        averaging_seconds_of=tuple(averaging_of),
        training_seconds=training_seconds,
        overlap=outer.overlap,
        fragments_advised=_fragments_advised(draft),
        state_bytes=state_bytes,
        join_seconds=state_bytes / (line.down * MEGA / BITS_PER_BYTE * LINE_SHARE),
    )


def _fragments_advised(draft: Draft) -> int:
    """The most that the manifest allows, up to `FRAGMENTS_ADVISED`."""
    outer, num_layers = draft.outer, draft.model.num_layers
    if draft.sync != "diloco":
        return 0
    most = min(FRAGMENTS_ADVISED, num_layers)
    allowed = max(n for n in range(1, most + 1) if outer.inner_steps % n == 0)
    return allowed if allowed > outer.fragments else 0
