"""The stake behind votes at a head, see `expulsions` for the rules."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, Protocol

from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.policy.heads.chain_checkpoint import KEPT_ROUNDS
from gossamer.protocol.policy.members.branch_caps import branch_cap, capped_total
from gossamer.protocol.policy.members.roll import Roll
from gossamer.protocol.standing import STANDING_ROUNDS
from gossamer.protocol.wire.expulsion_messages import VOTE_PERIOD

VOTE_ROUNDS = KEPT_ROUNDS - STANDING_ROUNDS
"""Rounds after its head in which a vote counts: so long all nodes keep the headers that count it.
With rounds of a minute that is sixteen hours, in which friends can be asked."""

BRANCHES_MIN = 3
"""Branches with stake from which on votes hold at all. With two, one of them could put out all of
the other; a branch alone could put out all who happen to sleep."""

WHOLES_MAX = 2 * VOTE_ROUNDS // VOTE_PERIOD
"""Heads of which the whole stake is remembered: all that votes may name, and as many for a roll
that has just changed."""


class Standings(Protocol):
    """The stake at the heads of one peer's own chain."""

    @property
    def settled_round(self) -> int:
        """The newest round that votes may name and that is settled here; 0: none yet."""

    def head_at(self, round_number: int, /) -> Digest | None:
        """Returns the head of a settled round on the own chain; None for another round."""

    def stakes_at(self, head: Digest, /) -> Mapping[PeerId, int]:
        """Returns the stake of each peer that has one at a head that `head_at` returned."""


class Tally(NamedTuple):
    """The votes on one target at one head."""

    voters: frozenset[PeerId]
    """Voters with stake there."""
    support: int
    """Their stake, each branch cut to its share; in tokens."""
    total: int
    """That of all peers; 0 while fewer than `BRANCHES_MIN` branches have some."""
    needed: int | None
    """Fewest members with whose votes it holds, the voters included; None if it cannot hold even
    with the votes of all but the target and those below it, or if nobody has looked."""

    @property
    def holds(self) -> bool:
        return self.total > 0 and 3 * self.support >= 2 * self.total


class StakeCount:
    """Counts stake by the branches of one roll."""

    def __init__(self, roll: Roll) -> None:
        self._roll = roll
        self._wholes: dict[tuple[Digest, Digest], tuple[int | None, int]] = {}
        """By the digest of the roll and a head: the limit of a branch, and the stake of all."""

    def tally(self, voters: Iterable[PeerId], head: Digest, standings: Standings) -> Tally:
        """Returns what votes have at a head of `standings`."""
        stakes = standings.stakes_at(head)
        cap, total = self._whole(head, stakes)
        chosen = {peer: stakes[peer] for peer in voters if stakes.get(peer, 0) > 0}
        support = capped_total(chosen, self._roll.branch_of, cap) if total else 0
        return Tally(frozenset(chosen), support, total, None)

    def looking_ahead(
        self, target: bytes, voters: Collection[PeerId], head: Digest, standings: Standings
    ) -> Tally:
        """Returns what votes have, and how many members are needed: those with most stake."""
        stakes = standings.stakes_at(head)
        tally = self.tally(voters, head, standings)
        against = self._roll.put_out_with(target)
        against = against | tally.voters
        others = [peer for peer in stakes if peer not in against and self._roll.was_member(peer)]
        more = sorted(others, key=lambda peer: (-stakes[peer], peer))

        def holds(number: int) -> bool:
            return self.tally([*tally.voters, *more[:number]], head, standings).holds

        number = bisect_left(range(len(more) + 1), True, key=holds)
        return tally._replace(needed=len(tally.voters) + number if number <= len(more) else None)

    def _whole(self, head: Digest, stakes: Mapping[PeerId, int]) -> tuple[int | None, int]:
        """Returns the limit of a branch at a head, and the stake of all there. Every vote on a
        target is counted at each head that votes on it name, and the members may be many."""
        key = (self._roll.digest(), head)
        if key not in self._wholes:
            if len(self._wholes) >= WHOLES_MAX:
                self._wholes.clear()
            branch_of = self._roll.branch_of
            cap = branch_cap(stakes, branch_of)
            if cap is None:  # there are fewer than four
                cap = branch_cap(stakes, branch_of, BRANCHES_MIN)
            total = 0 if cap is None else capped_total(stakes, branch_of, cap)
            self._wholes[key] = cap, total
        return self._wholes[key]
