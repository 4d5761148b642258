"""An estimate of when the data of a run are there, before it exists (`gossamer plan --corpus`).

A founder's node cuts a large corpus part by part, and most of it while the run trains
(`trainer.text.corpus_parts`). Nothing is read for the estimate but the sizes of the files, and the
beginnings of compressed ones:

    tokens      bytes of the planned text over those of a token: 1 for plain bytes, else
                `BPE_BYTES_PER_TOKEN`. Of JSON lines whole lines are counted
    beginning   the first part is read, a vocabulary is learnt from as much text, and the part is
                cut into tokens
    ready       all later parts up to this one are cut, one behind the other, since the beginning
    needed      all peers together are through with the tokens before this part. If it is not ready
                then, they read again what there is, and the new part as soon as it is there
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

from gossamer.node.runs.founding.founding import files_of
from gossamer.node.runs.planning.draft import Draft
from gossamer.node.runs.planning.planning import RoundPlan
from gossamer.trainer.text.corpus_parts import plan_parts
from gossamer.trainer.text.sources.estimates import measured
from gossamer.trainer.text.tokenizers.tokens import BPE_TRAINING_BYTES_MAX, estimate_tokens

READ_SECONDS_PER_BYTE = 0.012e-6
"""Time of one core to read text twice, to shuffle, pack and digest its tokens. Plain bytes take no
more than this, on one core. (The steps were measured one by one, decision 110.)"""

CUT_SECONDS_PER_BYTE = 0.1e-6
"""Time of one core to cut text into tokens of a learnt vocabulary, with all that
`READ_SECONDS_PER_BYTE` counts. (0.08 on two free cores and 0.125 on busy ones, decision 110.)"""

LEARN_SECONDS_PER_BYTE = 0.2e-6
"""Time of one core to learn a vocabulary. (0.21, decision 110.)"""


@dataclass(frozen=True)
class DataPlan:
    """The parts of a run's data: tokens, and the pace at which they come and are used up."""

    part_tokens: tuple[int, ...]
    """Tokens of each part, the first one first. One part is the whole corpus."""
    cores: int
    """Cores that cut."""
    begin_seconds: float
    """Time until the run begins."""
    cut_per_second: float
    """Tokens that the founder's node cuts in a second."""
    trained_per_second: float | None
    """Tokens on which all peers train in a second; None if their speed is not known."""

    @property
    def num_tokens(self) -> int:
        return sum(self.part_tokens)

    @property
    def ready_seconds(self) -> tuple[float, ...]:
        """Seconds from the beginning of the run until each part is there: 0 for the first one."""
        later = accumulate(self.part_tokens[1:], initial=0)
        return tuple(tokens / self.cut_per_second for tokens in later)

    @property
    def needed_seconds(self) -> tuple[float, ...] | None:
        """Seconds until each part is needed; None if the speed of the peers is not known."""
        if self.trained_per_second is None:
            return None
        before = accumulate(self.part_tokens[:-1], initial=0)
        return tuple(tokens / self.trained_per_second for tokens in before)

    @property
    def late_part(self) -> int | None:
        """The first part, counted from 0, that is needed before it is there; None if none is."""
        needed = self.needed_seconds or self.ready_seconds
        times = zip(self.ready_seconds, needed, strict=True)
        return next((number for number, (ready, need) in enumerate(times) if ready > need), None)


def plan_data(
    draft: Draft, corpus: Sequence[Path], start_bytes: int | None, planned: RoundPlan, cores: int
) -> DataPlan:
    """Returns when the data of a run are there.

    Args:
        corpus: files, folders and patterns, instead of those of the draft.
        start_bytes: of the first part; None: the whole corpus is cut before the run begins.
        planned: a round of this run.
        cores: that cut.

    Raises:
        CorpusError: files are missing, or cannot be read.
    """
    files, mixture = files_of(draft.corpus, corpus, None)
    kind, max_bytes = draft.tokenizer.kind, draft.corpus.max_bytes or None
    text_field = draft.corpus.text_field
    parts = None
    if start_bytes is not None:
        parts = plan_parts(
            files, draft.seed, start_bytes, max_bytes, text_field=text_field, mixture=mixture
        )
    if parts is None:
        whole = sum(measured(path, text_field)[0] for path in files)
        sizes = [min(whole, max_bytes or whole)]
    else:
        ends = [0, *(parts.num_bytes(number + 1) for number in range(parts.num_parts))]
        sizes = [stop - start for start, stop in pairwise(ends)]
    is_learnt = kind == "bpe"
    each_byte = CUT_SECONDS_PER_BYTE / cores if is_learnt else READ_SECONDS_PER_BYTE
    begin_seconds = sizes[0] * each_byte
    if is_learnt:
        learnt = min(sizes[0], BPE_TRAINING_BYTES_MAX)
        begin_seconds += learnt * LEARN_SECONDS_PER_BYTE / cores
    tokens = tuple(max(1, estimate_tokens(size, 0, kind)) for size in sizes)
    seconds = planned.round_seconds
    sequences = planned.inner_steps * draft.inner.sequences_per_step
    of_round = planned.peers * sequences * draft.model.context
    return DataPlan(
        part_tokens=tokens,
        cores=cores if is_learnt else 1,
        begin_seconds=begin_seconds,
        cut_per_second=sum(tokens) / max(1, sum(sizes)) / each_byte,
        trained_per_second=None if seconds is None else of_round / seconds,
    )
