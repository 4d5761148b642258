"""The cap on the tokens that one member counts for, in averages and in the choice of a head.

Tokens are a member's own claim. With a cap a member that claims much more than the others counts
for twice what the lower half of the members claims, and no more. So a minority that lies about its
tokens cannot outweigh the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

CAP_FACTOR = 2
"""The cap as a multiple of the lower median. Machines of one run often differ by this much."""


def capped_tokens(tokens: Sequence[int], factor: int = CAP_FACTOR) -> list[int]:
    """The tokens of each member, none above `factor` times the lower median."""
    cap = factor * lower_median(tokens)
    return [min(each, cap) for each in tokens]


def lower_median(tokens: Sequence[int]) -> int:
    """The lower median of the members' tokens; 0 if none has any.

    Members without tokens have no say in it: otherwise they could silence the others.
    """
    positive = sorted(each for each in tokens if each > 0)
    return positive[(len(positive) - 1) // 2] if positive else 0
