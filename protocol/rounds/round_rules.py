"""What a round is told when it begins: the manifest's rules, and what the round before showed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gossamer.protocol.codecs.payloads import Payloads
from gossamer.protocol.ids import PeerId


@dataclass(frozen=True)
class RoundRules:
    """What the manifest says about a round."""

    payloads: Payloads
    chunk_elements: int
    num_chunks: int
    gather_seconds: float
    gather_fraction: float
    attempt_seconds: float
    ring_seconds: float = 0.0
    """How long a ring is at work by the manifest, beside its transfers: with shared steps its
    members train in it."""
    steps_seconds: float = 0.0
    """What the shared steps of the round before took."""

    @property
    def members_max(self) -> int:
        return self.payloads.members_max(self.chunk_elements)

    def chunk_bytes(self, num_members: int) -> int:
        """Size of a chunk on its way, the mean over a whole ring."""
        return self.payloads.mean_bytes(self.chunk_elements, num_members)


class RoundHints(NamedTuple):
    """What a round showed a peer, for its next one."""

    found_slow: frozenset[PeerId] = frozenset()
    """Whose lines its ring found to be far slower than the others', its own perhaps."""
    came_late: bool = False
    """The others committed without it, or it is new."""
    replay_seconds: float = 0.0
    """What those who fetch such a round instead may need for it."""


NO_HINTS = RoundHints()
