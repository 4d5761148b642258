"""Counts the streams of one protocol that each peer has open to this node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from gossamer.node.network.transport import StreamClosed
from gossamer.protocol.ids import PeerId


class StreamSlots:
    """Slots of one protocol: so many a peer."""

    def __init__(self, per_peer_max: int) -> None:
        self._per_peer_max = per_peer_max
        self._taken: Counter[PeerId] = Counter()

    @contextmanager
    def taken_by(self, peer: PeerId) -> Iterator[None]:
        """Holds a slot for the block. StreamClosed when the peer has none left."""
        if self._taken[peer] >= self._per_peer_max:
            raise StreamClosed(f"{peer} has {self._per_peer_max} streams open already")
        self._taken[peer] += 1
        try:
            yield
        finally:
            self._taken[peer] -= 1
            if not self._taken[peer]:
                del self._taken[peer]
