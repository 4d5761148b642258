"""The heads at which this node may be at all, whatever their weight.

Its chain contains the head that the link named, and no round that was taken back. A run that is
over has no later rounds.
"""

from __future__ import annotations

from collections.abc import Iterable

from gossamer.node.heads.rollbacks import Rollbacks
from gossamer.node.storage.state.committed import CommittedState
from gossamer.protocol.ids import Digest
from gossamer.protocol.policy.heads.head_choice import HeadChoice


class AllowedHeads:
    """Knows which of the known heads are allowed."""

    def __init__(
        self,
        committed: CommittedState,
        choice: HeadChoice,
        rollbacks: Rollbacks,
        pinned_head: Digest | None = None,
    ) -> None:
        """
        Args:
            rollbacks: the rounds that were taken back.
            pinned_head: the chain has to contain it, if there is one.
        """
        self._committed = committed
        self._choice = choice
        self._pinned_head = pinned_head
        self.rollbacks = rollbacks

    def has_pin(self, head: Digest) -> bool:
        """Returns whether the chain of a known head contains the pinned head."""
        pin, chain = self._pinned_head, self._committed.chain
        if pin is None or pin in chain.passed:
            return True
        if pin not in chain:
            return pin in chain.ancestors(head, len(chain))  # its own record may be lost
        return chain.is_before_gap(pin, head) or self._choice.fork_of(pin, head) == pin

    def is_void(self, head: Digest) -> bool:
        """Returns whether a round on the way to a known head was taken back."""
        chain = self._committed.chain
        first = chain.entry(chain.root).round
        return any(
            self._choice.fork_of(Digest(each.undone), head) == each.undone
            if each.undone in chain
            # Members keep the rounds since each rollback that they obey. So a chain that begins
            # later is one of those that do not.
            else each.round < first
            for each in self.rollbacks
        )

    def may_stand(self, head: Digest) -> bool:
        """Returns whether a node may be at a known head: it has the pinned head in its chain, and
        no round that was taken back, and it follows the start of the chain."""
        chain = self._committed.chain
        return chain.follows_start(head) and self.has_pin(head) and not self.is_void(head)

    def is_beyond_end(self, head: Digest) -> bool:
        """Returns whether the run was over before the round of a known head, so that no node goes
        there. Such a head counts once the founder has extended the run."""
        chain, end = self._committed.chain, self._committed.end
        parent = chain.entry(head).parent
        if parent not in chain:
            return False
        before = chain.entry(parent)
        return end.is_over_after(before.round, before.tokens_total)

    @property
    def is_finished(self) -> bool:
        """Whether the committed head is the run's final state: no round follows it, and it is not
        taken back."""
        return self._committed.is_finished and self.may_stand(self._committed.head)

    def own(self) -> list[Digest]:
        """The committed head, if it can win."""
        mine = self._committed.head
        return [mine] if self.may_stand(mine) else []

    def may_win(self, head: Digest) -> bool:
        """Returns whether a node may be at a known head, and this head is not this node's past, nor
        parts from it too early, nor lies beyond the end of the run. A node that may not stay where
        it is goes back as well."""
        if not self.may_stand(head) or self.is_beyond_end(head):
            return False
        if not self.own():
            return True
        mine = self._committed.head
        is_past = self._choice.fork_of(head, mine) == head or self._is_before_gap(head)
        return not is_past and self._choice.may_undo(mine, head)

    def _is_before_gap(self, head: Digest) -> bool:
        """Returns whether a known head lies before a record that is missing on the way to the
        committed head. It would win by the signers of the rounds that cannot be told any more."""
        chain, mine = self._committed.chain, self._committed.head
        gap = chain.gap_before(mine)
        if gap is None or chain.entry(head).round >= gap:
            return False
        return any(head in piece for piece in chain.pieces_to(mine))

    def parted_after(self, heads: Iterable[Digest]) -> int | None:
        """Returns the round after which the way to one of some heads left this node's own chain, if
        this head would win but too many rounds would be undone; None if there is no such head.

        Such a node stays by itself although it is connected: only its owner can bring it back.
        """
        chain, choice, mine = self._committed.chain, self._choice, self._committed.head
        if not self.own():
            return None
        rounds = [
            chain.entry(choice.fork_of(head, mine)).round
            for head in sorted(set(heads))
            if chain.is_whole(head)
            and self.may_stand(head)
            and not self.is_beyond_end(head)
            and not choice.may_undo(mine, head)
            and choice.best([mine, head]) == head
        ]
        return min(rounds, default=None)
