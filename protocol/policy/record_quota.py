"""How many bytes of commit records that are not on the own chain a node keeps, by who brought them.

Records cost their author a signature each, and a peer may have any number of identities. So there
is a bound for each peer that brings them, and one for all together. This module has no I/O and no
clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from gossamer.protocol.ids import Digest, PeerId


@dataclass(frozen=True)
class RecordLimits:
    """Bounds in bytes."""

    peer: int
    total: int


class RecordQuota:
    """The records of one kind that are kept."""

    def __init__(self, limits: RecordLimits) -> None:
        self._limits = limits
        self._brought: dict[Digest, Counter[PeerId]] = {}
        """Bytes of each record, by who brought them."""
        self._bytes_of: Counter[PeerId] = Counter()
        self._num_bytes = 0

    def admits(self, bringer: PeerId, num_bytes: int) -> bool:
        """Returns whether a peer may bring a record of so many bytes."""
        return self._bytes_of[bringer] + num_bytes <= self._limits.peer and self.has_room(num_bytes)

    def has_room(self, num_bytes: int) -> bool:
        """Returns whether some peer may bring a record of so many bytes."""
        return self._num_bytes + num_bytes <= self._limits.total

    def note(self, head: Digest, bringer: PeerId, num_bytes: int) -> None:
        """A peer has brought a record, or something that was not in it."""
        self._brought.setdefault(head, Counter())[bringer] += num_bytes
        self._bytes_of[bringer] += num_bytes
        self._num_bytes += num_bytes

    def keep(self, wanted: Callable[[Digest], bool]) -> None:
        """Gives back the room of records that are not wanted: they were forgotten, or are on the
        own chain by now."""
        self._brought = {head: each for head, each in self._brought.items() if wanted(head)}
        self._bytes_of = Counter()
        for brought in self._brought.values():
            self._bytes_of.update(brought)
        self._num_bytes = self._bytes_of.total()

    def __contains__(self, head: object) -> bool:
        return head in self._brought
