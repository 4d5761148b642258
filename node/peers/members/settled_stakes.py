"""The stake at the settled heads of a node's own chain, as votes of members count it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gossamer.node.storage.chain.chain_store import ChainStore
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.policy.heads.head_choice import UNDO_ROUNDS_MAX, HeadChoice
from gossamer.protocol.policy.members.expulsion_count import VOTE_ROUNDS
from gossamer.protocol.standing import STANDING_ROUNDS
from gossamer.protocol.wire.expulsion_messages import VOTE_PERIOD


class SettledStakes:
    """One chain's (`expulsions.Standings`)."""

    def __init__(
        self, chain: ChainStore, choice: HeadChoice, own_head: Callable[[], Digest]
    ) -> None:
        """`own_head`: the head on which the node stands."""
        self._chain = chain
        self._choice = choice
        self._own_head = own_head
        self._seen: tuple[Digest, int] | None = None
        """The own head, and the shape of the chain, that the rest was found for."""
        self._heads: dict[int, Digest] = {}
        self._stakes: dict[Digest, Mapping[PeerId, int]] = {}
        """At the heads that votes have named: the choice of a head forgets old ones."""

    @property
    def settled_round(self) -> int:
        """See `Standings`."""
        self._look()
        return max(self._heads, default=0)

    def head_at(self, round_number: int) -> Digest | None:
        """See `Standings`."""
        self._look()
        return self._heads.get(round_number)

    def stakes_at(self, head: Digest) -> Mapping[PeerId, int]:
        """See `Standings`."""
        found = self._stakes.get(head)
        if found is None:
            found = self._stakes[head] = self._choice.stakes_at(head)
        return found

    def _look(self) -> None:
        """Finds the heads that votes may name on the way to the own head, if that has changed."""
        own, chain = self._own_head(), self._chain
        if (own, chain.num_reshaped) == self._seen:
            return
        self._seen = own, chain.num_reshaped
        newest = chain.entry(own).round - UNDO_ROUNDS_MAX
        # Before the start of the kept chain there are too few rounds to say who has stake.
        oldest = max(newest - VOTE_ROUNDS, 1 if chain.start is None else chain.start.round)
        if (gap := chain.gap_before(own)) is not None:
            oldest = max(oldest, gap + STANDING_ROUNDS)  # nor are there behind a lost record
        depth = chain.entry(own).round - oldest
        self._heads = {}
        for head in chain.ancestors(own, depth) if depth >= UNDO_ROUNDS_MAX else ():
            number = chain.entry(head).round if head in chain else 0
            if oldest <= number <= newest and number % VOTE_PERIOD == 0:
                self._heads[number] = head
        kept = set(self._heads.values())
        self._stakes = {head: each for head, each in self._stakes.items() if head in kept}
