"""No member counts for more than twice the lower median of the tokens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gossamer.protocol.token_caps import CAP_FACTOR, capped_tokens


def test_a_member_that_claims_much_counts_for_twice_the_lower_median() -> None:
    assert capped_tokens([100, 110, 120, 10_000]) == [100, 110, 120, 220]


def test_honest_tokens_stay_as_they_are() -> None:
    assert capped_tokens([100, 150, 200, 50]) == [100, 150, 200, 50]


def test_members_without_tokens_lower_no_cap() -> None:
    assert capped_tokens([0, 0, 0, 100]) == [0, 0, 0, 100]
    assert capped_tokens([]) == []


@given(st.lists(st.integers(1, 10**6), min_size=3, max_size=20), st.data())
def test_a_minority_cannot_raise_the_cap_above_twice_an_honest_claim(
    honest: list[int], data: st.DataObject
) -> None:
    num_hostile = data.draw(st.integers(1, len(honest) - 1))
    hostile = data.draw(st.lists(st.integers(1, 10**9), min_size=num_hostile, max_size=num_hostile))
    counted = capped_tokens(honest + hostile)
    cap = max(counted)
    # The lower median of all is at most an honest member's tokens.
    assert cap <= CAP_FACTOR * max(honest)
