"""The founder's hold on data of which it has the only copy.

What a founder has just cut lies on its disk alone, and the swarm copies it in its own time
(`replication`). Until then its copy is the run's. So a founder pins each shard until two other
keepers have it.

It asks keepers only where the pins leave no room, because a peer that has a shard begins to send
it. What others have is not written down: after a restart a founder pins all shards that it has, and
asks again where it needs the room.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

import structlog
import trio

from gossamer.node.peers.blocks.replication import CACHE_SHARE, COPIES, LOOK_SECONDS
from gossamer.node.storage.blocks import BlockStore
from gossamer.protocol.accounting.ledger import keeper_rank
from gossamer.protocol.accounting.run_data import RunData
from gossamer.protocol.ids import Digest, PeerId

SHARDS_PER_LOOK = 32
"""Shards that are asked for between two pauses, so that the keepers' lines are not taken up."""

_PIN = "first copies"

log = structlog.get_logger("data")


class FirstCopies:
    """The shards that no two other keepers are known to have."""

    def __init__(
        self,
        data: RunData,
        store: BlockStore,
        is_at: Callable[[PeerId, Digest], Awaitable[bool]],
        keepers: Callable[[], Collection[PeerId]],
    ) -> None:
        """
        Args:
            is_at: asks a peer whether it has a block.
            keepers: living others that may be trusted with a copy. A stranger's word counts for
                nothing: it may have many names.
        """
        self._data = data
        self._store = store
        self._is_at = is_at
        self._keepers = keepers
        self._num_noted = 0
        self._held: dict[Digest, int] = {}
        """The number of each shard, for the ranks of its keepers; the next one to ask for first."""
        self.needed_bytes = 0
        """Room that the next part of the corpus waits for."""

    def note_added(self) -> None:
        """Pins all shards that are new in the data and on this disk."""
        shards = self._data.shards_to_keep()
        for number in range(self._num_noted, len(shards)):
            digest = Digest(shards[number].digest)
            if self._store.has(digest):
                self._held[digest] = number
        self._num_noted = len(shards)
        self._store.pin(_PIN, self._held)

    @property
    def has_room(self) -> bool:
        """Returns whether what is pinned, and what waits, fits in the cache."""
        store = self._store
        needed_bytes = store.pinned_bytes() - store.reserved_bytes + self.needed_bytes
        return needed_bytes <= CACHE_SHARE * store.quota_bytes

    async def run(self) -> None:
        """Lets go of shards that others keep, wherever there is no room, until cancelled."""
        while True:
            await trio.sleep(LOOK_SECONDS)
            await self._look()

    async def _look(self) -> None:
        for digest in list(self._held)[:SHARDS_PER_LOOK]:
            if self.has_room:
                return
            number = self._held.pop(digest)
            self._held[digest] = number  # the others are asked for before it comes again
            if await self._is_copied(number, digest):
                del self._held[digest]
                self._store.pin(_PIN, self._held)

    async def _is_copied(self, number: int, digest: Digest) -> bool:
        """Returns whether as many others have a shard as keep it besides this node."""
        ranked = sorted(self._keepers(), key=lambda peer: keeper_rank(number, peer))
        num_copies = 0
        for peer in ranked[:COPIES]:
            num_copies += await self._is_at(peer, digest)
            if num_copies == COPIES - 1:
                return True
        return False
