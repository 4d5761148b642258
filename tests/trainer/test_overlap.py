"""The local parameters when a state arrives in the middle of a round."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from gossamer.trainer.handover import HandOver
from gossamer.trainer.ipc.messages import Ranges, Start
from gossamer.trainer.local_trainer import LocalTrainer
from gossamer.trainer.overlap import rebase
from gossamer.trainer.resources.transfer import Transfer
from tests.support.local_rounds import begin

MakeTrainer = Callable[..., LocalTrainer]
CPU = Transfer(torch.device("cpu"))
STEP_SPAN = 4 * 17


def test_rebase_keeps_the_progress_since_the_snapshot() -> None:
    snapshot = np.array([1.0, 2.0, 3.0], np.float32)
    local = torch.tensor([1.5, 2.0, 2.0])
    rebase(CPU, local, snapshot, np.array([10.0, 20.0, 30.0], np.float32))
    assert local.tolist() == [10.5, 20.0, 29.0]


def test_with_mixing_a_part_of_the_way_is_left() -> None:
    snapshot = np.array([1.0, 2.0, 3.0], np.float32)
    local = torch.tensor([1.5, 2.0, 2.0])
    rebase(CPU, local, snapshot, np.array([9.0, 18.0, 27.0], np.float32), 0.25)
    assert local.tolist() == [7.5, 14.0, 20.0]


@pytest.mark.parametrize("is_before", [True, False])
def test_a_state_that_comes_while_a_round_begins_is_taken_over(
    monkeypatch: pytest.MonkeyPatch, is_before: bool
) -> None:
    """A worker that was started anew begins at `base`, which the daemon may be writing: it takes
    the round for one that goes on from local parameters."""
    new = np.array([5.0, 6.0, 7.0], np.float32)
    base, work = np.zeros(3, np.float32), np.empty(3, np.float32)
    handover = HandOver(base, work, torch.empty(3))
    load = handover._transfer.load

    def loading(flat: torch.Tensor, vector: NDArray[np.float32]) -> None:
        if is_before:
            base[:] = new
        load(flat, vector)
        base[:] = new

    monkeypatch.setattr(handover._transfer, "load", loading)
    handover.begin_at_base()
    handover.rebase(((0, 3),), 0.0, in_round=True)
    handover.collect()
    assert not work.any(), "without a step there is no work"


class Rounds:
    """A trainer with its vectors, on an endless text."""

    def __init__(
        self, make_trainer: MakeTrainer, shard: str, num_parameters: int, mixing: float = 0.0
    ) -> None:
        self.base = np.zeros(num_parameters, np.float32)
        self.work = np.zeros(num_parameters, np.float32)
        self.trainer = make_trainer(self.base, self.work, mixing=mixing)
        self.all: Ranges = ((0, num_parameters),)
        self.trainer.genesis()
        self.trainer.push(0, shard, 0, 50 * STEP_SPAN)

        self.handed = self.base
        """The parameters at which the newest round began."""
        self._done = 0

    def begin(self, number: int, start: Start = "base", new: Ranges = ()) -> None:
        begin(self.trainer, number, self._done, 10, 60.0, start, new)

    def local(self) -> NDArray[np.float32]:
        return self.trainer._decoder.flat.cpu().numpy().copy()

    def steps(self, number: int) -> None:
        for _ in range(number):
            assert self.trainer.step() is not None
        self._done += number


MakeRounds = Callable[..., Rounds]


@pytest.fixture
def make_rounds(make_trainer: MakeTrainer, shard: str, model_config) -> MakeRounds:  # type: ignore[no-untyped-def]
    return partial(Rounds, make_trainer, shard, model_config.num_parameters)


@pytest.fixture
def rounds(make_rounds: MakeRounds) -> Rounds:
    return make_rounds()


@pytest.fixture
def other(make_rounds: MakeRounds) -> Rounds:
    return make_rounds()


def test_going_on_from_local_parameters_is_one_long_round(rounds: Rounds, other: Rounds) -> None:
    rounds.begin(1)
    rounds.steps(3)
    rounds.trainer.finish()
    first = rounds.work.copy()
    rounds.begin(2, "local")
    rounds.steps(4)
    rounds.trainer.finish()
    other.begin(1)
    other.steps(7)
    other.trainer.finish()
    np.testing.assert_allclose(first + rounds.work, other.work, atol=1e-6)


def test_a_rebased_round_hands_over_the_steps_since_the_snapshot(
    rounds: Rounds, other: Rounds
) -> None:
    """A state that is just the own work leaves everything as if there had been no swarm."""
    for one in (rounds, other):
        one.begin(1)
        one.steps(3)
        one.trainer.finish()
        one.begin(2, "local")
        one.steps(2)
        if one is rounds:
            one.base[:] = one.work  # where the snapshot is, as long as the round runs
            one.trainer.rebase(one.all)
        one.steps(2)
        one.trainer.finish()
    assert rounds.work.any()
    np.testing.assert_allclose(rounds.work, other.work, atol=1e-7)


def test_a_rebased_round_is_measured_against_the_new_state(rounds: Rounds) -> None:
    rounds.begin(1)
    rounds.steps(3)
    rounds.trainer.finish()
    rounds.begin(2, "local")
    rounds.steps(2)
    rounds.base += 1.0
    rounds.trainer.rebase(rounds.all)
    rounds.trainer.finish()
    assert np.abs(rounds.work).max() < 0.5, "the step of the others is no work of this peer"
    assert rounds.work.any()


PART = ((0, 100), (300, 310))
IN_PART = np.r_[0:100, 300:310]


def handed_over(rounds: Rounds) -> None:
    """A round of three steps, and of the next one the first two; `handed` is where that began."""
    rounds.begin(1)
    rounds.steps(3)
    rounds.trainer.finish()
    rounds.handed = rounds.local()
    rounds.begin(2, "local")
    rounds.steps(2)


def test_a_part_is_rebased_and_the_rest_stays(rounds: Rounds, other: Rounds) -> None:
    for one in (rounds, other):
        handed_over(one)
        if one is rounds:
            one.base += 1.0  # of which the trainer is to take a part
            one.trainer.rebase(PART)
        one.trainer.finish()
    np.testing.assert_allclose(rounds.work, other.work, atol=1e-6)
    moved = rounds.local() - other.local()
    # It had the first round's work before; that came back with the state, if at all.
    expected = (rounds.base - other.handed)[IN_PART]
    np.testing.assert_allclose(moved[IN_PART], expected, atol=1e-6)
    moved[IN_PART] = 0.0
    assert not moved.any()


@pytest.mark.parametrize("mixing", [0.0, 0.25, 1.0])
def test_the_state_may_come_before_or_after_the_last_step(
    make_rounds: MakeRounds, mixing: float
) -> None:
    """The work that is measured against the state is the same, and so are the parameters
    afterwards."""
    early, late = make_rounds(mixing), make_rounds(mixing)
    for one in (early, late):
        handed_over(one)
        one.base += 1.0
        if one is early:
            one.trainer.rebase(PART)
        one.trainer.finish()
    late.trainer.rebase(PART)
    np.testing.assert_allclose(late.work, early.work, atol=1e-6)
    np.testing.assert_allclose(late.local(), early.local(), atol=1e-6)


@pytest.mark.parametrize("mixing", [0.25, 1.0])
def test_with_mixing_what_is_left_of_the_way_is_handed_over(
    make_rounds: MakeRounds, mixing: float
) -> None:
    mixed, rebased = make_rounds(mixing), make_rounds()
    for one in (mixed, rebased):
        handed_over(one)
        one.base += 1.0
        one.trainer.rebase(one.all)
        one.trainer.finish()
        np.testing.assert_allclose(one.work, one.base - one.local(), atol=1e-6)
    left = mixing * (mixed.base - mixed.handed)
    np.testing.assert_allclose(mixed.work - rebased.work, left, atol=1e-6)


def test_a_state_with_begin_is_one_before_the_first_step(rounds: Rounds, other: Rounds) -> None:
    for one in (rounds, other):
        one.begin(1)
        one.steps(3)
        one.trainer.finish()
        one.base += 1.0
        one.begin(2, "local", PART if one is rounds else ())
        if one is other:
            one.trainer.rebase(PART)
        one.steps(2)
        one.trainer.finish()
    assert (rounds.work == other.work).all()


def test_without_a_step_nothing_is_handed_over(rounds: Rounds) -> None:
    handed_over(rounds)
    rounds.trainer.finish()
    rounds.begin(3, "local")
    rounds.base += 1.0
    rounds.trainer.rebase(PART)
    rounds.trainer.finish()
    assert not rounds.work.any()


@pytest.mark.parametrize("mixing", [0.0, 0.5])
@pytest.mark.parametrize("has_ended", [False, True])
def test_a_round_that_began_from_base_keeps_its_steps_too(
    make_rounds: MakeRounds, has_ended: bool, mixing: float
) -> None:
    """A worker that restarted must not stay behind: that would pull the state back."""
    rounds, other = make_rounds(mixing), make_rounds(mixing)
    for one in (rounds, other):
        one.begin(2, "local")
        one.steps(2)
        if one is rounds:
            one.base[IN_PART] += 1.0
            if has_ended:
                one.trainer.finish()
            one.trainer.rebase(PART)
        if one is other or not has_ended:
            one.trainer.finish()
    np.testing.assert_allclose(rounds.work, other.work, atol=1e-6)
    moved = rounds.local() - other.local()
    np.testing.assert_allclose(moved[IN_PART], 1.0, rtol=1e-6)
    moved[IN_PART] = 0.0
    assert not moved.any()


def test_before_the_first_round_there_is_nothing_to_rebase(rounds: Rounds) -> None:
    rounds.trainer.rebase(PART)
    rounds.base += 1.0
    rounds.begin(1, "local", PART)
    assert (rounds.local() == rounds.base).all()


def test_the_work_of_a_round_that_has_ended_is_kept_on_top(rounds: Rounds, other: Rounds) -> None:
    """The state may come before or after the round's last step."""
    for one in (rounds, other):
        one.begin(1)
        one.steps(3)
        one.trainer.finish()
        one.begin(2, "local")
        one.steps(2)
        one.base += 1.0
        if one is other:
            one.trainer.rebase(one.all)
        one.trainer.finish()
        if one is rounds:
            one.trainer.rebase(one.all)
    assert (rounds.local() != rounds.base).any()
    np.testing.assert_allclose(rounds.local(), other.local(), atol=1e-6)
    rounds.begin(3, "local")
    rounds.trainer.finish()
    rounds.trainer.rebase(rounds.all)  # without a step there is nothing to keep
    assert (rounds.local() == rounds.base).all()


def test_evaluating_leaves_the_local_parameters(rounds: Rounds, shard: str) -> None:
    rounds.begin(1)
    rounds.steps(3)
    rounds.trainer.finish()
    before = rounds.local()
    assert (before != rounds.base).any()
    rounds.trainer.evaluate((shard,), 100)
    assert (rounds.local() == before).all()


def test_the_first_round_starts_from_base(rounds: Rounds) -> None:
    rounds.base += 1.0
    rounds.begin(1, "local")
    assert (rounds.local() == rounds.base).all()
