"""The founder, or more than half of the keepers, take rounds back."""

from __future__ import annotations

import pytest

from gossamer.protocol.policy.heads.rollback_signers import RollbackSigners
from tests.support.builders import peers

FOUNDER, STRANGER, *KEEPERS = peers(7)


@pytest.mark.parametrize(("num_keepers", "quorum"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_more_than_half_of_the_keepers_have_to_sign(num_keepers: int, quorum: int) -> None:
    signers = RollbackSigners(FOUNDER, frozenset(KEEPERS[:num_keepers]))
    assert signers.quorum == quorum
    for signed in range(num_keepers + 1):
        authors = [STRANGER, *KEEPERS[:signed]]
        assert signers.missing(authors) == max(0, quorum - signed)
    assert signers.missing([FOUNDER]) == 0
    assert len(signers) == num_keepers + 1
    assert FOUNDER in signers
    assert KEEPERS[0] in signers
    assert STRANGER not in signers


def test_without_keepers_only_the_founder_takes_rounds_back() -> None:
    signers = RollbackSigners(FOUNDER)
    assert signers.missing([]) == signers.missing([STRANGER, *KEEPERS]) == 1
    assert signers.missing([FOUNDER]) == 0
    assert len(signers) == 1


def test_a_founder_that_is_a_keeper_too_is_one_peer() -> None:
    signers = RollbackSigners(FOUNDER, frozenset({FOUNDER, KEEPERS[0]}))
    assert len(signers) == 2
