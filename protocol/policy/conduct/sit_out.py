"""For how many rounds a peer sits out, where its conduct or its work is bad again and again.

The first time it sits out `SITS_OUT_ROUNDS`, and each further time twice as many, up to
`SITS_OUT_ROUNDS_MAX`. When it has not sat out for `FORGET_ROUNDS`, the next time is a first one
again.
"""

from __future__ import annotations

from dataclasses import dataclass

SITS_OUT_ROUNDS = 4
"""Rounds that a peer sits out the first time: its work is not stale when it is back."""

SITS_OUT_ROUNDS_MAX = 256

FORGET_ROUNDS = 64
"""Rounds without a mark after which a peer that sat out counts as one that never did."""


@dataclass
class SitOut:
    """When a peer sits out: each time twice as long as before, until that is forgotten."""

    until: int = 0
    """The last round that it sits out."""
    times: int = 0

    def begin(self, round_number: int, at_least: int = 0, *, is_longer: bool = True) -> None:
        """It sits out from the round after this one on.

        Args:
            at_least: so many rounds.
            is_longer: whether a further time is longer than the one before, or as the first one.
        """
        if not self.was_lately(round_number):
            self.times = 1
        elif is_longer:
            self.times += 1
        doublings = self.times - 1 if is_longer else 0
        rounds = max(SITS_OUT_ROUNDS * 2**doublings, at_least)
        self.until = max(self.until, round_number + min(rounds, SITS_OUT_ROUNDS_MAX))

    def holds(self, round_number: int) -> bool:
        """Returns whether it sits a round out."""
        return round_number <= self.until

    def was_lately(self, round_number: int) -> bool:
        """Returns whether it sits out, or sat out less than `FORGET_ROUNDS` ago."""
        return self.times > 0 and round_number <= self.until + FORGET_ROUNDS

    def rounds_back(self, num_rounds: int) -> None:
        """The numbers of rounds go back by so many."""
        self.until -= num_rounds
