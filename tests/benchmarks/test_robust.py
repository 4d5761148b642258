"""The liars of the table of robust averages."""

from __future__ import annotations

import numpy as np
import pytest

from gossamer.protocol.codecs.sign_codec import SignCodec
from tests.benchmarks._robust_distro import dense, strongest
from tests.benchmarks._robust_sly import sly
from tests.benchmarks.robust import HOSTILE, attack_of
from tests.support.lies import ATTACKS, MIXED

CODEC = SignCodec([(2, 6), (1, 2)], 3)
"""Two tiles of six coefficients, and one of two, of which all are sent."""


def test_the_strongest_of_each_tile_are_sent() -> None:
    values = np.array([0, -3, 1, 2, 0, -1, 5, 5, 5, 5, -6, 5, -1, 1], np.float32)
    update = strongest(values, CODEC)
    assert update.places.tolist() == [1, 2, 3, 6, 7, 10, 12, 13]
    assert update.is_positive.tolist() == [False, True, True, True, True, False, False, True]
    assert CODEC.decode(CODEC.encode(update)).places.tolist() == update.places.tolist()


def test_signs_stay_what_they_are() -> None:
    values = np.array([0, -1, 1, 1, 0, 0, -1, -1, 0, 0, 0, 1, -1, 1], np.float32)
    assert dense(strongest(values, CODEC), CODEC).tolist() == values.tolist()
    # The opposite of the work is sent at the same places.
    opposite = dense(strongest(-10 * values, CODEC), CODEC)
    assert opposite.tolist() == (-values).tolist()


def test_the_mixed_attack_is_another_one_for_each_liar_and_round() -> None:
    made = [[attack_of(MIXED, number, member) for member in HOSTILE] for number in range(6)]
    for of_round in made:
        assert len({id(attack) for attack in of_round}) == len(HOSTILE)
    for place in range(len(HOSTILE)):
        of_liar = {id(of_round[place]) for of_round in made}
        assert of_liar == {id(attack) for attack in ATTACKS.values() if attack is not None}


def test_the_sly_agree_with_three_honest_members_and_oppose_the_mean() -> None:
    draw = np.random.default_rng(1)
    others = (draw.standard_normal(5000) + 1.5 * draw.standard_normal((5, 5000))).astype(np.float32)
    lie = sly(others[0], others, draw)
    lengths = np.linalg.norm(others, axis=1)
    cosines = others @ lie / lengths / np.linalg.norm(lie)
    assert sum(cosines > 0) == 3
    assert others.mean(axis=0) @ lie < 0
    assert np.linalg.norm(lie) == pytest.approx(np.median(lengths), rel=1e-5)


def test_a_named_attack_is_the_same_for_all() -> None:
    assert {attack_of("bias", number, member) for number in range(3) for member in HOSTILE} == {
        ATTACKS["bias"]
    }
    assert attack_of("nobody", 0, HOSTILE[0]) is None
