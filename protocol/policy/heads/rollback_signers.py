"""The peers that take rounds of a run back: its founder alone, or more than half of its keepers.

A keeper signs the same statement as the founder does (`wire.statements.Rollback`). Statements of
keepers that name the same rounds count together, so a proposal is nothing but the first of them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from gossamer.protocol.ids import PeerId
from gossamer.protocol.manifest import Manifest


@dataclass(frozen=True)
class RollbackSigners:
    """The peers that may sign, and how many have to."""

    founder: PeerId
    keepers: frozenset[PeerId] = frozenset()

    @classmethod
    def of(cls, manifest: Manifest) -> RollbackSigners:
        """Returns those that a manifest names."""
        return cls(PeerId(manifest.founder), frozenset(map(PeerId, manifest.rounds.keeper_ids)))

    def __contains__(self, peer: PeerId) -> bool:
        return peer == self.founder or peer in self.keepers

    def __len__(self) -> int:
        return len(self.keepers | {self.founder})

    @property
    def quorum(self) -> int:
        """Number of keepers that take rounds back together: more than half."""
        return len(self.keepers) // 2 + 1

    def missing(self, authors: Collection[PeerId]) -> int:
        """Returns the number of keepers that still have to sign what some peers have signed; 0: it
        holds."""
        if self.founder in authors:
            return 0
        return max(0, self.quorum - len(self.keepers & frozenset(authors)))
