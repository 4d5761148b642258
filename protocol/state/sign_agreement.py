"""Which members of a ring sign unlike the others, and have no part in a shared step.

A sign has no length that could be clipped, so a liar that sends the opposite of its work weighs as
much as an honest member. But honest members descend on one loss. Where two of them send the same
coefficient, they mostly send the same sign: of 0.1 million parameters nearly always at first, and
in three cases of five after 90 steps (`docs/benchmarks/robust.md`). A liar that does harm sends the
other sign.

The *agreement* of two members is a number from -1 to 1: of the coefficients that both sent over the
newest steps, the share with one sign less the share with different signs. A member's agreement is
the median of that with each of the others, and the ring's is the median of its members'. A member
whose agreement is less than half of the ring's (`SHARE_MIN`) has no part in the step. Liars may
agree with each other as they like: as long as they are fewer than the honest members less one, they
set neither median.

Rules
-----
- Only members that share a coefficient say anything of each other. With fewer than two of them
  nobody can tell who lies, and the member stays in. If nobody would be left, all stay in.
- Where the ring does not agree at all, a member is out whose signs oppose those of most others.
- What was counted fades by a half a step (`FADE`), so that a member cannot earn agreement for a lie
  to come. It begins anew with each round, because only the averages of that round are sure to be at
  hand.
- Each chunk of a step is judged by its own coefficients, so a lie cannot hide in one chunk behind
  good work in the others. Inside a chunk a member can turn a quarter of what it shares with others,
  and then helps more than it harms.
- In a run with a probation (`protocol.standing`) only established members count as others. A member
  on probation has a part in as many steps of the round as its rounds so far allow, evenly spaced.
- A member that is left out counts as one that had a part: its trainer takes the part from its
  momentum, and the header credits its tokens. The rule is no verdict about a member, and an honest
  one is left out now and then.

All peers compute the same. The counts are integers (those below 2**24 are exact in fp32), and a
division and a mean of two are rounded as IEEE 754 says.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gossamer.protocol.codecs.sign_codec import SignUpdate
from gossamer.protocol.limits import RING_MEMBERS_MAX
from gossamer.protocol.standing import Standing
from gossamer.protocol.state.apply import Apply

FADE = 2
"""A step takes one of so many parts from what was counted before it. With no memory at all small
models share too few coefficients in a step; with a long one a liar is found late."""

SHARE_MIN = 0.5
"""Least agreement of a member with a part in the step, in parts of the ring's. With 0 three of
eight that turn 45 % of their signs cost a small model 6 %, with 0.25 2 %, and with 0.5 1 %. Members
that each have their own kind of text are hardly ever below it (`docs/benchmarks/robust.md`)."""

OTHERS_MIN = 2
"""Members that say something of another one before they can put it out."""

_COLUMNS_MAX = 2**14
"""Coefficients that are compared at once: 16 MB with the largest ring, and sums far below 2**24."""

Counts: TypeAlias = NDArray[np.int64]
"""Of each two members, by ring positions."""


class SignAgreement:
    """The agreement of a ring's members over the newest steps, in one of the chunks of a step."""

    def __init__(self) -> None:
        size = RING_MEMBERS_MAX, RING_MEMBERS_MAX
        self._agreed: Counts = np.zeros(size, np.int64)
        """Coefficients with one sign, less those with different signs."""
        self._shared: Counts = np.zeros(size, np.int64)
        """Coefficients that both sent."""

    def took(
        self, updates: Mapping[int, SignUpdate], parts: Sequence[slice], apply: Apply = map
    ) -> None:
        """Takes the members' updates of one step, by ring position.

        Args:
            parts: ranges of coefficients that make up the chunk, in any order.
            apply: calls a function for each range, perhaps in threads.
        """
        self._agreed = np.sign(self._agreed) * (np.abs(self._agreed) // FADE)
        self._shared //= FADE
        if len(updates) < OTHERS_MIN:
            return
        positions, of_members = list(updates), list(updates.values())

        def compare(part: slice) -> tuple[Counts, Counts]:
            return _compared(of_members, part)

        here = np.ix_(positions, positions)
        for agreed, shared in apply(compare, parts):
            self._agreed[here] += agreed
            self._shared[here] += shared

    def left_out(self, positions: Collection[int], judges: Collection[int]) -> frozenset[int]:
        """Returns the members that have no part in the step.

        Args:
            positions: the members that sent an update.
            judges: those of them that count as others.
        """
        found = {position: self._agreement_of(position, judges) for position in positions}
        known = {position: each for position, each in found.items() if each is not None}
        of_judges = [known[judge] for judge in judges if judge in known]
        if not of_judges:
            return frozenset()
        least = SHARE_MIN * max(0.0, statistics.median(of_judges))
        out = frozenset(position for position, each in known.items() if each < least)
        return frozenset() if len(out) == len(positions) else out

    def _agreement_of(self, position: int, judges: Collection[int]) -> float | None:
        """The agreement of a member; None if too few others share a coefficient with it."""
        counts = [
            (int(self._agreed[position, judge]), int(self._shared[position, judge]))
            for judge in judges
            if judge != position
        ]
        rates = [agreed / shared for agreed, shared in counts if shared]
        return statistics.median(rates) if len(rates) >= OTHERS_MIN else None


def has_part(rounds: int, needed: int, step: int) -> bool:
    """Returns whether a member on probation has a part in a step.

    Args:
        rounds: rounds that took work of the member, 0 to `needed`.
        step: number of the step in the run.
    """
    return (step + 1) * rounds // needed > step * rounds // needed


def heard_updates(
    updates: Mapping[int, SignUpdate], standing: Standing | None, step: int
) -> tuple[dict[int, SignUpdate], frozenset[int]]:
    """Returns the updates of the members that may have a part in a step, by ring position, and the
    positions of those that judge the others.

    Args:
        standing: of the ring's members, in a run with a probation. Without an established member
            among the authors of the updates nobody is on probation.
        step: number of the step in the run.
    """
    if standing is None:
        return dict(updates), frozenset(updates)
    judges = frozenset(each for each in updates if standing.is_established(each))
    if not judges:
        return dict(updates), frozenset(updates)
    heard = {
        position: update
        for position, update in updates.items()
        if has_part(standing.rounds[position], standing.needed, step)
    }
    return heard, judges


def _compared(updates: Sequence[SignUpdate], part: slice) -> tuple[Counts, Counts]:
    """Compares each two updates in a range of coefficients.

    Returns:
        The coefficients with one sign less those with different signs, and those that both have:
        (num_updates, num_updates) each.
    """
    ranges = [slice(*np.searchsorted(each.places, (part.start, part.stop))) for each in updates]
    pairs = list(zip(updates, ranges, strict=True))
    places = np.concatenate([update.places[where] for update, where in pairs])
    signs = np.concatenate([update.is_positive[where] for update, where in pairs])
    rows = np.repeat(np.arange(len(updates)), [where.stop - where.start for where in ranges])
    _, columns, counts = np.unique(places, return_inverse=True, return_counts=True)
    # What one member sent alone says nothing. The others are numbered without it.
    is_shared = counts > 1
    numbers = np.cumsum(is_shared) - 1
    kept = is_shared[columns]
    rows, columns = rows[kept], numbers[columns[kept]]
    values = np.where(signs[kept], np.float32(1), np.float32(-1))
    agreed = np.zeros((len(updates), len(updates)), np.int64)
    shared = np.zeros_like(agreed)
    num_columns = int(is_shared.sum())
    for first in range(0, num_columns, _COLUMNS_MAX):
        width = min(_COLUMNS_MAX, num_columns - first)
        here = (columns >= first) & (columns < first + width)
        dense = np.zeros((len(updates), width), np.float32)
        dense[rows[here], columns[here] - first] = values[here]
        agreed += (dense @ dense.T).astype(np.int64)
        np.abs(dense, out=dense)
        shared += (dense @ dense.T).astype(np.int64)
    return agreed, shared
