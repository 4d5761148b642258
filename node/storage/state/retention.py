"""The part of the past that is kept on disk: whole states, and the averages of the rounds between
them.

Newcomers and peers that were away fetch a checkpoint and replay the averages after it. The two
newest checkpoints are kept, and the averages since the older one; where rounds are quick more of
both, for a while.

After a fork or a rollback there are states beside the way to the newest one. A checkpoint there
need not be older than one on the way, by its arrival or by its round. So the way decides: what
lies beside it goes first, and does not count as one of the two.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable

from gossamer.node.storage.blocks import BlockStore
from gossamer.node.storage.chain.chain_tree import Entry
from gossamer.protocol.ids import Digest

CHECKPOINTS_KEPT = 2
"""A newcomer that began with the older one can finish while the newer one is written."""

CHECKPOINT_SECONDS = 120.0
CHECKPOINTS_MAX = 8
"""Upper bound on the checkpoints that are kept, each as large as the state. Where rounds are quick,
more than two are kept, so that a newcomer has `CHECKPOINT_SECONDS` to fetch one. Such runs have
small states."""


class Retention:
    """Pins in the block store: what is pinned is not evicted, what is discarded goes at once.

    Changed by one thread at a time: the lock is the committed state's.
    """

    def __init__(self, store: BlockStore, clock: Callable[[], float]) -> None:
        """`clock`: local seconds."""
        self._store = store
        self._clock = clock
        self.checkpoints: tuple[Entry, ...] = ()
        """Checkpoints: those beside the way to the newest one, and those on it, the oldest first.
        The tuple is replaced at once: the event loop reads it while a thread adds one."""
        self._seconds: dict[Digest, float] = {}
        """Time since which each checkpoint is one; those of an earlier life are not here."""
        self._newest: Digest | None = None
        """The checkpoint that came last: that from which the present state follows."""
        self._updates: dict[Digest, int] = {}
        """Round of each head whose averages are kept."""

    def hold_checkpoint(self, entry: Entry, blocks: Iterable[Digest]) -> None:
        """These blocks are or will be a state; `add_checkpoint` when they are all there."""
        self._store.pin(_state_pin(entry), blocks)

    def give_up_checkpoint(self, entry: Entry) -> None:
        """The blocks of a state that was held will not all be there. A checkpoint that was whole
        before stays."""
        if all(each.head != entry.head for each in self.checkpoints):
            self._store.discard(_state_pin(entry))

    def add_checkpoint(self, entry: Entry, way: Collection[Digest]) -> None:
        """The state of the present head is whole. Checkpoints and averages that are too old now, or
        beside the way to it, are unpinned.

        Args:
            way: the heads on the way to this one, as far back as a checkpoint is kept.
        """
        self._place(entry, way)
        self._let_go(way, needed=None)
        on_way = [each.round for each in self.checkpoints if each.head in way]
        if len(on_way) >= CHECKPOINTS_KEPT:
            self._discard_updates(on_way[0], way)

    def add_loaded_checkpoint(self, entry: Entry, way: Collection[Digest]) -> None:
        """A whole state is read, and the node leaves its present one for it. The rounds after it
        may not follow: what the node needs to come back stays until its next checkpoint.

        Args:
            way: as for `add_checkpoint`.
        """
        needed = self._newest
        self._place(entry, way)
        self._let_go(way, needed)
        if len(self.checkpoints) >= CHECKPOINTS_KEPT:
            self._discard_updates(min(each.round for each in self.checkpoints), None)

    def add_older_checkpoint(self, entry: Entry, blocks: Iterable[Digest]) -> None:
        """Adds a checkpoint from an earlier life, on the way to those that are here."""
        self.hold_checkpoint(entry, blocks)
        if entry not in self.checkpoints:
            self.checkpoints = (entry, *self.checkpoints)

    def _place(self, entry: Entry, way: Collection[Digest]) -> None:
        """Adds the newest checkpoint and puts all in their order."""
        kept = [old for old in self.checkpoints if old.head != entry.head]
        beside = [old for old in kept if old.head not in way]
        on_way = sorted((old for old in kept if old.head in way), key=lambda old: old.round)
        self.checkpoints = (*beside, *on_way, entry)
        self._newest = entry.head
        self._seconds[entry.head] = self._clock()

    def _let_go(self, way: Collection[Digest], needed: Digest | None) -> None:
        """Unpins the checkpoints that need not be kept. `needed`: one that stays in any case."""
        while (old := self._too_old(way, needed)) is not None:
            self.checkpoints = tuple(each for each in self.checkpoints if each is not old)
            self._seconds.pop(old.head, None)
            self._store.discard(_state_pin(old))

    def _too_old(self, way: Collection[Digest], needed: Digest | None) -> Entry | None:
        """Returns the checkpoint that goes next; None if all are kept."""
        if len(self.checkpoints) <= CHECKPOINTS_KEPT:
            return None
        for old, younger in itertools.pairwise(self.checkpoints):
            if old.head == needed:
                continue
            if old.head not in way or len(self.checkpoints) > CHECKPOINTS_MAX:
                return old
            since = self._seconds.get(younger.head, -math.inf)
            return old if self._clock() > since + CHECKPOINT_SECONDS else None
        return None

    def _discard_updates(self, oldest: int, way: Collection[Digest] | None) -> None:
        """Unpins the averages of rounds up to `oldest`, and of those that are not on the way, if
        one is given."""
        for head, round_number in list(self._updates.items()):
            if round_number <= oldest or (way is not None and head not in way):
                self._store.discard(_update_pin(head))
                del self._updates[head]

    def add_update(self, head: Digest, round_number: int, blocks: Iterable[Digest]) -> None:
        """The averages of a round are there."""
        self._store.pin(_update_pin(head), blocks)
        self._updates[head] = round_number


def _state_pin(entry: Entry) -> str:
    return f"state {entry.head.hex()}"


def _update_pin(head: Digest) -> str:
    return f"update {head.hex()}"
