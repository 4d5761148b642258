"""The knowledge with which a round begins: the manifest's rules, and hints from the round
before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gossamer.protocol.codecs.payloads import Payloads
from gossamer.protocol.ids import PeerId


@dataclass(frozen=True)
class RoundRules:
    """The rules of the manifest for a round."""

    payloads: Payloads
    chunk_elements: int
    num_chunks: int
    gather_seconds: float
    gather_fraction: float
    attempt_seconds: float
    ring_seconds: float = 0.0
    """Time that a ring works beside its transfers: with shared steps its members train in it."""
    steps_seconds: float = 0.0
    """Duration of the shared steps of the round before."""
    accusers: int = 1
    """Votes that call a member removed before a commit counts it as out."""

    @property
    def members_max(self) -> int:
        return self.payloads.members_max(self.chunk_elements)

    def chunk_bytes(self, num_members: int) -> int:
        """Mean size of a chunk in transit, over a whole ring."""
        return self.payloads.mean_bytes(self.chunk_elements, num_members)


class RoundHints(NamedTuple):
    """Hints that a round gives a peer for its next round."""

    found_slow: frozenset[PeerId] = frozenset()
    """Members with lines far slower than the others', perhaps this peer itself."""
    came_late: bool = False
    """Whether the others committed without this peer, or this peer is new."""
    replay_seconds: float = 0.0
    """Time that a peer needs to fetch such a round instead."""
    doubted: frozenset[PeerId] = frozenset()
    """Members whose accusations the accused may answer (`accusations`)."""
    unfair: frozenset[PeerId] = frozenset()
    """Organisers that left out ready peers again and again (`mending`)."""


NO_HINTS = RoundHints()
