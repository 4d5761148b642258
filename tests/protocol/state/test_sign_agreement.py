"""Members that sign unlike the others have no part in a shared step."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from gossamer.protocol.codecs.sign_codec import SignUpdate
from gossamer.protocol.standing import Standing
from gossamer.protocol.state import sign_agreement
from gossamer.protocol.state.sign_agreement import SignAgreement, has_part, heard_updates
from tests.support.measured import measured

NUM_COEFFICIENTS = 4096
NUM_SENT = 1200
WHOLE = [slice(0, NUM_COEFFICIENTS)]


class Swarm:
    """Members whose signs are those of one direction, each with errors of its own."""

    def __init__(self, seed: int, right: float = 0.9) -> None:
        self._draw = np.random.default_rng(seed)
        self._right = right
        self._direction = self._draw.random(NUM_COEFFICIENTS) < 0.5

    def honest(self) -> SignUpdate:
        places = np.sort(self._draw.choice(NUM_COEFFICIENTS, NUM_SENT, replace=False))
        is_right = self._draw.random(NUM_SENT) < self._right
        return SignUpdate(places, self._direction[places] == is_right)

    def opposite(self) -> SignUpdate:
        honest = self.honest()
        return SignUpdate(honest.places, ~honest.is_positive)

    def noise(self) -> SignUpdate:
        honest = self.honest()
        return SignUpdate(honest.places, self._draw.random(NUM_SENT) < 0.5)


def left_out(
    agreement: SignAgreement, updates: Mapping[int, SignUpdate], judges: Collection[int] = ()
) -> frozenset[int]:
    """The members that are left out of a step; the judges are all of them unless they are named."""
    agreement.took(updates, WHOLE)
    return agreement.left_out(updates, judges or [*updates])


@pytest.mark.parametrize("seed", range(5))
def test_honest_members_stay_in(seed: int) -> None:
    swarm, agreement = Swarm(seed), SignAgreement()
    for _ in range(4):
        assert not left_out(agreement, {each: swarm.honest() for each in range(8)})


@pytest.mark.parametrize("seed", range(5))
def test_three_of_eight_that_send_the_opposite_are_left_out_at_once(seed: int) -> None:
    swarm, agreement = Swarm(seed), SignAgreement()
    for _ in range(4):
        updates = {each: swarm.honest() for each in range(8)}
        updates |= {each: swarm.opposite() for each in (1, 4, 6)}
        assert left_out(agreement, updates) == {1, 4, 6}


def test_liars_that_send_the_same_put_nobody_out() -> None:
    """Each has two friends that agree with it in all, and five members that do not."""
    swarm, agreement = Swarm(1), SignAgreement()
    updates = {each: swarm.honest() for each in range(8)}
    lie = swarm.opposite()
    updates |= dict.fromkeys((0, 1, 2), lie)
    assert left_out(agreement, updates) == {0, 1, 2}


@pytest.mark.parametrize(("share", "is_out"), [(0.1, False), (0.45, True)])
def test_a_member_may_turn_few_of_its_signs(share: float, is_out: bool) -> None:
    swarm, agreement = Swarm(9), SignAgreement()
    for _ in range(4):
        updates = {each: swarm.honest() for each in range(8)}
        for each in (1, 4, 6):
            signs = updates[each].is_positive.copy()
            signs[: int(share * NUM_SENT)] ^= True
            updates[each] = SignUpdate(updates[each].places, signs)
        assert left_out(agreement, updates) == ({1, 4, 6} if is_out else set())


def test_credit_for_good_work_is_soon_spent() -> None:
    swarm, agreement = Swarm(2), SignAgreement()
    for _ in range(16):
        assert not left_out(agreement, {each: swarm.honest() for each in range(8)})
    found = []
    for _ in range(4):
        updates = {each: swarm.honest() for each in range(8)} | {3: swarm.opposite()}
        found.append(left_out(agreement, updates))
    assert found[1:] == [{3}] * 3


def test_with_few_shared_coefficients_the_steps_before_help() -> None:
    """A step has some 10 coefficients that two members share."""
    swarm = Swarm(3, right=0.8)

    def few(update: SignUpdate) -> SignUpdate:
        return SignUpdate(update.places[::6], update.is_positive[::6])

    agreement, num_right, num_right_alone = SignAgreement(), 0, 0
    for _ in range(200):
        updates = {each: few(swarm.honest()) for each in range(8)}
        updates |= {each: few(swarm.opposite()) for each in (1, 4, 6)}
        num_right += left_out(agreement, updates) == {1, 4, 6}
        num_right_alone += left_out(SignAgreement(), updates) == {1, 4, 6}
    measured(f"all right in {num_right} of 200 steps, and without memory in {num_right_alone}")
    assert num_right > num_right_alone + 20


@pytest.mark.parametrize(("num_members", "expected"), [(2, set()), (3, {0}), (4, {0})])
def test_it_takes_two_others_to_put_a_member_out(num_members: int, expected: set[int]) -> None:
    swarm, agreement = Swarm(4, right=1.0), SignAgreement()
    updates = {each: swarm.honest() for each in range(num_members)} | {0: swarm.opposite()}
    assert left_out(agreement, updates) == expected


def test_if_nobody_would_be_left_all_stay() -> None:
    """Three members, and each two of them sign against each other."""
    agreement = SignAgreement()
    pairs = {0: (0, 1), 1: (0, 2), 2: (1, 2)}
    signs = {0: (True, True), 1: (False, True), 2: (False, False)}
    updates = {
        position: SignUpdate(np.array(pairs[position]), np.array(signs[position]))
        for position in range(3)
    }
    assert not left_out(agreement, updates)


def test_agreement_below_none_is_never_enough_and_nobody_agrees_with_itself() -> None:
    """Hostile members that turn most signs of each other lower the ring's agreement."""
    agreed = [
        [100, 0, 0, 0, 0],
        [0, 100, -4, -4, -20],
        [0, -4, 100, -16, -16],
        [0, -4, -16, 100, -16],
        [0, -20, -16, -16, 100],
    ]
    agreement = SignAgreement()
    agreement._agreed[:5, :5], agreement._shared[:5, :5] = agreed, 100
    rates = [agreement._agreement_of(position, range(5)) for position in range(5)]
    assert rates == pytest.approx([0.0, -0.04, -0.1, -0.1, -0.16])
    assert agreement.left_out(range(5), range(5)) == {1, 2, 3, 4}


def test_members_that_share_nothing_say_nothing() -> None:
    agreement = SignAgreement()
    updates = {
        each: SignUpdate(np.arange(10 * each, 10 * each + 10), np.ones(10, bool))
        for each in range(4)
    }
    assert not left_out(agreement, updates)


def test_members_on_probation_are_no_judges() -> None:
    """Five newcomers send the opposite of three established members."""
    swarm, agreement = Swarm(5, right=1.0), SignAgreement()
    updates = {each: swarm.opposite() for each in range(8)}
    updates |= {each: swarm.honest() for each in range(3)}
    assert left_out(agreement, updates, range(3)) == {3, 4, 5, 6, 7}


def dense(updates: Collection[SignUpdate]) -> NDArray[np.int64]:
    signs = np.zeros((len(updates), NUM_COEFFICIENTS), np.int64)
    for row, update in zip(signs, updates, strict=True):
        row[update.places] = np.where(update.is_positive, 1, -1)
    return signs


@pytest.mark.parametrize("columns_max", [2**14, 7])
@pytest.mark.parametrize("cuts", [(), (1000,), (1, 64, 2000, 4095)])
def test_the_counts_depend_on_no_cut(
    monkeypatch: pytest.MonkeyPatch, columns_max: int, cuts: tuple[int, ...]
) -> None:
    monkeypatch.setattr(sign_agreement, "_COLUMNS_MAX", columns_max)
    swarm, agreement = Swarm(6), SignAgreement()
    updates = {3 * each: swarm.noise() for each in range(5)}
    ends = (0, *cuts, NUM_COEFFICIENTS)
    agreement.took(updates, [slice(start, stop) for start, stop in pairwise(ends)][::-1])
    signs = dense(updates.values())
    here = np.ix_([*updates], [*updates])
    apart = ~np.eye(len(updates), dtype=bool)
    assert (agreement._agreed[here] == signs @ signs.T)[apart].all()
    assert (agreement._shared[here] == np.abs(signs) @ np.abs(signs).T)[apart].all()


def test_agreement_fades_to_nothing_on_both_sides() -> None:
    swarm, agreement = Swarm(7), SignAgreement()
    agreement.took({each: swarm.noise() for each in range(4)}, WHOLE)
    assert agreement._agreed.any()
    assert agreement._shared.any()
    for _ in range(12):
        agreement.took({}, WHOLE)
    assert not agreement._agreed.any()
    assert not agreement._shared.any()


def test_a_part_of_the_probation_is_that_part_of_the_steps() -> None:
    for rounds in range(5):
        assert sum(has_part(rounds, 4, step) for step in range(100)) == 25 * rounds
    half = [has_part(2, 4, step) for step in range(6)]
    assert half == [False, True] * 3


def test_who_is_heard_in_a_run_with_a_probation() -> None:
    swarm = Swarm(8)
    updates = {each: swarm.honest() for each in range(3)}
    standing = Standing([4, 2, 0], 4)
    heard = [[*heard_updates(updates, standing, step)[0]] for step in range(4)]
    assert heard == [[0], [0, 1], [0], [0, 1]]
    assert heard_updates(updates, standing, 0)[1] == {0}
    # In the first rounds of a run nobody is established.
    fresh = Standing([3, 2, 0], 4)
    for of_run in (fresh, None):
        all_heard, judges = heard_updates(updates, of_run, 0)
        assert all_heard == updates
        assert judges == {0, 1, 2}
