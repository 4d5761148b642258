"""Peers of the network in memory that have no connection to each other, but to all others."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from gossamer.protocol.ids import PeerId
from tests.support.memory_peer import MemoryPeer

REUNION_SECONDS = 20.0
"""Limit of the time after which peers that were cut off from each other for minutes are connected
again: a back-off (6 s), and a dial that was begun before (10 s), if they have one address each."""


class Apart:
    """From `begin` on some peers do not see each other among those that they are connected to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, peers: Collection[PeerId]) -> None:
        real, self._holds = MemoryPeer.peers, False

        def seen(peer: MemoryPeer) -> list[PeerId]:
            found = real(peer)
            if not self._holds or peer.peer_id not in peers:
                return found
            return [each for each in found if each not in peers]

        monkeypatch.setattr(MemoryPeer, "peers", seen)

    def begin(self) -> None:
        """Parts them."""
        self._holds = True
