"""The share of one branch of an invite-only run: at most a quarter of the weight.

A *branch* is a member that a root let in, and everybody below it (`Roll.branch_of`). A root is a
branch of its own. One person who invites many identities of their own has one branch for all of
them, so a cap on branches bounds what these identities do together.

The cap is the largest number c with 4 c <= sum of min(w, c) over the branches' sums w: no branch
has more than a quarter of what is left when all are cut to c. It exists with four branches or more.
A run of fewer has no cap, because a quarter is then less than a fair share. With four branches the
smallest one sets the cap. So the cap belongs where branches vote, not where values are averaged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from gossamer.protocol.ids import PeerId

BRANCHES_MIN = 4
"""Branches from which on none may have more than one in so many."""

BranchOf = Callable[[PeerId], PeerId]


def branch_cap(
    weights: Mapping[PeerId, int], branch_of: BranchOf, branches_min: int = BRANCHES_MIN
) -> int | None:
    """Returns the most weight that one branch may have; None with too few branches for a cap.

    Args:
        weights: of members, 0 or more, such as tokens or 1 for each.
        branches_min: from so many branches on none may have more than one in so many.
    """
    sums = sorted(_sums(weights, branch_of).values())
    if len(sums) < branches_min:
        return None
    num_cut, cap = 0, sum(sums) // branches_min
    while cap < sums[-1 - num_cut]:
        # Of four branches at least one is not above the cap, which is a quarter of the sum.
        num_cut += 1
        cap = sum(sums[:-num_cut]) // (branches_min - num_cut)
    return cap


def capped_total(weights: Mapping[PeerId, int], branch_of: BranchOf, cap: int | None) -> int:
    """Returns the weight of some members together, each branch cut to `cap`.

    To compare forks, take the cap of all members with standing where the forks part.
    """
    return sum(
        each if cap is None else min(each, cap) for each in _sums(weights, branch_of).values()
    )


def _sums(weights: Mapping[PeerId, int], branch_of: BranchOf) -> Counter[PeerId]:
    sums: Counter[PeerId] = Counter()
    for peer, weight in weights.items():
        if weight > 0:
            sums[branch_of(peer)] += weight
    return sums
