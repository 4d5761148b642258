"""The part of the past that is kept on disk: whole states, and the averages of the rounds between
them.

Newcomers and peers that were away fetch a checkpoint and replay the averages after it. The two
newest checkpoints are kept, and the averages since the older one; where rounds are quick more of
both, for a while.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from gossamer.node.storage.blocks import BlockStore
from gossamer.node.storage.chain_tree import Entry
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
        """Checkpoints, the oldest first. The tuple is replaced at once: the event loop reads it
        while a thread adds one."""
        self._seconds: dict[Digest, float] = {}
        """Time since which each checkpoint is one; those of an earlier life are not here."""
        self._updates: dict[Digest, int] = {}
        """Round of each head whose averages are kept."""

    def hold_checkpoint(self, entry: Entry, blocks: Iterable[Digest]) -> None:
        """These blocks are or will be a state; `add_checkpoint` when they are all there."""
        self._store.pin(_state_pin(entry), blocks)

    def add_checkpoint(self, entry: Entry) -> None:
        """The newest one is whole. Checkpoints and averages that are too old now are unpinned."""
        kept = [old for old in self.checkpoints if old.head != entry.head]
        self.checkpoints = (*kept, entry)
        now = self._seconds[entry.head] = self._clock()
        while self._has_too_old(now):
            old, *younger = self.checkpoints
            self.checkpoints = tuple(younger)
            self._seconds.pop(old.head, None)
            self._store.discard(_state_pin(old))
        if len(self.checkpoints) < CHECKPOINTS_KEPT:
            return
        oldest = self.checkpoints[0].round
        for head, round_number in list(self._updates.items()):
            if round_number <= oldest:
                self._store.discard(_update_pin(head))
                del self._updates[head]

    def add_older_checkpoint(self, entry: Entry, blocks: Iterable[Digest]) -> None:
        """Adds a checkpoint from an earlier life."""
        self.hold_checkpoint(entry, blocks)
        self.checkpoints = (entry, *self.checkpoints)

    def add_update(self, head: Digest, round_number: int, blocks: Iterable[Digest]) -> None:
        """The averages of a round are there."""
        self._store.pin(_update_pin(head), blocks)
        self._updates[head] = round_number

    def _has_too_old(self, now: float) -> bool:
        """Returns whether the oldest checkpoint need not be kept."""
        if len(self.checkpoints) <= CHECKPOINTS_KEPT:
            return False
        next_seconds = self._seconds.get(self.checkpoints[1].head, -math.inf)
        return len(self.checkpoints) > CHECKPOINTS_MAX or now > next_seconds + CHECKPOINT_SECONDS


def _state_pin(entry: Entry) -> str:
    return f"state {entry.head.hex()}"


def _update_pin(head: Digest) -> str:
    return f"update {head.hex()}"
