"""One branch of an invite-only run has at most a quarter of the weight."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gossamer.protocol.ids import PeerId
from gossamer.protocol.policy.members.branch_caps import (
    branch_cap,
    capped_total,
)


def branch_of(peer: PeerId) -> PeerId:
    """Peers of these tests are named BRANCH.NUMBER."""
    return PeerId(peer.partition(".")[0])


def members(*weights_of_branches: list[int]) -> dict[PeerId, int]:
    return {
        PeerId(f"{branch}.{number}"): weight
        for branch, weights in enumerate(weights_of_branches)
        for number, weight in enumerate(weights)
    }


def largest_cap(sums: list[int]) -> int:
    """The definition, by trying."""
    return max(
        cap for cap in range(sum(sums) + 1) if 4 * cap <= sum(min(each, cap) for each in sums)
    )


def test_a_branch_of_many_identities_weighs_a_third_of_the_others() -> None:
    weights = members([10], [10], [10], [10], [10], [10], [1000] * 50)
    cap = branch_cap(weights, branch_of)
    assert cap == 20
    assert capped_total(weights, branch_of, cap) == 80
    hostile = {peer: each for peer, each in weights.items() if branch_of(peer) == "6"}
    assert capped_total(hostile, branch_of, cap) == 20


def test_few_branches_have_no_cap() -> None:
    weights = members([5], [7, 8], [100])
    assert branch_cap(weights, branch_of) is None
    assert capped_total(weights, branch_of, None) == 120
    # Members without weight make no branch.
    assert branch_cap(members([5], [7], [8], [0], [0]), branch_of) is None


@given(st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=5), min_size=4, max_size=9))
def test_the_cap_is_the_largest_that_leaves_nobody_more_than_a_quarter(
    branches: list[list[int]],
) -> None:
    weights = members(*branches)
    cap = branch_cap(weights, branch_of)
    sums = [sum(branch) for branch in branches]
    assert cap is not None
    assert min(cap, max(sums)) == min(largest_cap(sums), max(sums))
    total = capped_total(weights, branch_of, cap)
    assert all(4 * min(each, cap) <= total for each in sums)
