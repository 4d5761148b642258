"""What an auditor makes of the losses that its trainer measures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from gossamer.node.rounds.auditor import Auditor
from gossamer.node.runs.planning.draft import draft_of_preset
from gossamer.node.training.audit_data import AuditSequences
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.policy.auditing.audits import SCALE, SEQUENCES_MIN, Audit
from gossamer.trainer.presets.table import DEFAULT_PRESET

HEAD = Digest(bytes(32))
NUM_DECLARED, NUM_HELDOUT = 8, 4


class Losses:
    """A trainer and its audited state: an average and an update that lower the loss."""

    def __init__(
        self,
        update_helps: float,
        has_target: Callable[[int], bool],
        is_learnt: Callable[[int], bool] = lambda _number: True,
    ) -> None:
        """`has_target`: of each sequence, by its number. `is_learnt`: whether the average lowers
        its loss."""
        self._update_helps = update_helps
        self._has_target = has_target
        self._is_learnt = is_learnt
        self._average = self._own = 0.0
        self.asked: list[int] = []
        """How many sequences each question had."""

    async def add(self, _part: object, *, average: float = 0.0, own: float = 0.0) -> None:
        self._average += average
        self._own += own

    async def audit(self, sequences: Sequence[tuple[str, int]]) -> tuple[float, ...]:
        self.asked.append(len(sequences))
        helped = -self._update_helps * self._own
        return tuple(
            3.0 + 0.01 * number + (self._average if self._is_learnt(number) else 0.0) - helped
            if self._has_target(number)
            else math.nan
            for _, number in sequences
        )


class Carried(Losses):
    """Work that helps from an older state alone, before whole rounds of others."""

    def __init__(self, num_rounds: int) -> None:
        super().__init__(0.0, lambda _number: True)
        self._num_rounds = num_rounds

    async def add(self, part: object, *, average: float = 0.0, own: float = 0.0) -> None:
        await super().add(part, average=average, own=own)
        self._update_helps = float(self._average == self._num_rounds)


class Told:
    """What becomes of an audit without a verdict."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def cannot_tell(self, _audit: Audit, reason: str) -> None:
        self.reasons.append(reason)


def verdict_of(losses: Losses, told: Told, missed: int = 0) -> Any:
    """The verdict on a member of a ring of two, which did as much as the other one."""
    members = [SimpleNamespace(tokens=100), SimpleNamespace(tokens=100)]
    header = SimpleNamespace(round=5, members=members, parent=HEAD)
    index = SimpleNamespace(averages=())
    blocks = SimpleNamespace(header=lambda _head: header, update_index=lambda _header: index)
    committed = SimpleNamespace(blocks=blocks)
    job = SimpleNamespace(
        audit=Audit(HEAD, 5, PeerId("member"), (), missed),
        part=SimpleNamespace(header=header, position=0),
    )
    auditor = Auditor(
        cast(Any, told),
        cast(Any, committed),
        cast(Any, losses),
        cast(Any, None),
        cast(Any, None),
        PeerId("me"),
        draft_of_preset(DEFAULT_PRESET).outer,
    )
    auditor._state = cast(Any, losses)
    places = [("shard", number) for number in range(NUM_DECLARED + NUM_HELDOUT)]
    return trio.run(auditor._verdict_on, job, AuditSequences(places, NUM_DECLARED))


@pytest.mark.parametrize(("helps", "is_poor"), [(1.0, False), (0.0, True)])
def test_sequences_of_prompts_alone_are_left_out(helps: float, is_poor: bool) -> None:
    """Declared ones and held-out ones may be: nothing in them is to be said."""
    losses, told = Losses(helps, lambda number: number not in (0, 3, 9)), Told()
    verdict = verdict_of(losses, told)
    assert told.reasons == []
    assert verdict.is_poor is is_poor
    assert verdict.gain_declared == pytest.approx(SCALE * helps)
    assert verdict.gain_other == pytest.approx(SCALE * helps)
    assert losses.asked == [NUM_DECLARED + NUM_HELDOUT, 6, 9], "the others are not measured again"


@pytest.mark.parametrize(("helps", "is_poor"), [(1.0, False), (0.0, True)])
def test_where_too_few_declared_sequences_say_something_held_out_ones_decide(
    helps: float, is_poor: bool
) -> None:
    losses = Losses(helps, lambda number: number >= NUM_DECLARED - SEQUENCES_MIN + 1)
    told = Told()
    verdict = verdict_of(losses, told)
    assert told.reasons == []
    assert verdict.is_poor is is_poor
    assert losses.asked == [
        NUM_DECLARED + NUM_HELDOUT,
        NUM_HELDOUT,
        SEQUENCES_MIN - 1 + NUM_HELDOUT,
    ]


@pytest.mark.parametrize(("helps", "is_poor"), [(1.0, False), (0.0, True)])
def test_where_the_round_does_not_help_the_declared_data_held_out_ones_decide(
    helps: float, is_poor: bool
) -> None:
    """A member could name data in which there is nothing to learn, always the same."""
    losses = Losses(helps, lambda _number: True, lambda number: number >= NUM_DECLARED)
    told = Told()
    verdict = verdict_of(losses, told)
    assert told.reasons == []
    assert verdict.is_poor is is_poor
    num_all = NUM_DECLARED + NUM_HELDOUT
    assert losses.asked == [num_all, NUM_DECLARED, NUM_HELDOUT, num_all]


def test_where_the_round_helps_no_data_nothing_is_told() -> None:
    losses, told = Losses(0.0, lambda _number: True, lambda _number: False), Told()
    assert verdict_of(losses, told) is None
    assert told.reasons == ["the round hardly helped"]


def test_too_few_sequences_with_something_to_say_tell_nothing() -> None:
    few = range(NUM_DECLARED - SEQUENCES_MIN + 1, NUM_DECLARED + SEQUENCES_MIN - 1)
    told = Told()
    assert verdict_of(Losses(1.0, few.__contains__), told) is None
    assert told.reasons == ["too little of the data has a token to predict"]


@pytest.mark.parametrize("missed", [0, 1, 3])
def test_carried_work_is_measured_from_the_state_before_the_rounds_that_were_missed(
    missed: int,
) -> None:
    """The others have learnt since what the member has, and its work does not help any more."""
    told = Told()
    for num_rounds in range(1, 5):
        verdict = verdict_of(Carried(num_rounds), told, missed)
        assert verdict.is_poor is not (num_rounds == missed > 0)
    assert told.reasons == []
