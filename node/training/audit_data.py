"""The sequences on which this node audits others: from the run's shards, fetched where they are not
here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import structlog
import trio

from gossamer.node.base.disk_health import DiskError
from gossamer.node.peers.blocks.block_exchange import BlockService, FetchError
from gossamer.node.peers.swarm import Swarm
from gossamer.node.storage.blocks import BlockStore
from gossamer.protocol.accounting.excerpts import Excerpt, declared_excerpts, heldout_excerpts
from gossamer.protocol.accounting.run_data import RunData
from gossamer.protocol.accounting.spans import merged
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.policy.auditing.audits import names_its_data
from gossamer.protocol.wire.statements import Ready

_PIN = "audited shards"

log = structlog.get_logger("data")


class AuditSequences(NamedTuple):
    """The sequences of one audit."""

    places: list[tuple[str, int]]
    """(file of a shard, first token), the declared ones first."""
    num_declared: int


class AuditData:
    """The data of one node's audits."""

    def __init__(
        self,
        data: RunData,
        store: BlockStore,
        blocks: BlockService,
        swarm: Swarm,
        length: int,
    ) -> None:
        """
        Args:
            data: the shards of the run.
            length: tokens of a sequence: the context and one.
        """
        self._data = data
        self._store = store
        self._blocks = blocks
        self._swarm = swarm
        self._length = length

    def declared(self, head: Digest, me: PeerId, ready: Ready) -> tuple[Excerpt, ...]:
        """The sequences of a member's declared data, see `declared_excerpts`. There are none if it
        names too little, as far as this node knows these data."""
        partitions = self._data.partitions
        known = merged(span for span in ready.spans if span.partition < len(partitions))
        if not names_its_data(ready.tokens, known, self._length):
            return ()
        return declared_excerpts(head, me, known, partitions, self._length)

    def heldout(self, head: Digest, me: PeerId) -> tuple[Excerpt, ...]:
        """The held-out sequences, see `heldout_excerpts`."""
        shard_tokens = [shard.num_tokens for shard in self._data.heldout]
        return heldout_excerpts(head, me, shard_tokens, self._length)

    async def fetch(
        self, declared: Sequence[Excerpt], heldout: Sequence[Excerpt], patience: trio.CancelScope
    ) -> AuditSequences:
        """Returns the sequences whose shards can be had now, once these are here.

        All declared ones are among them or none: a member could have trained on the few that it
        gives out. Otherwise the held-out ones decide, and where nobody has what a member names it
        does not escape.

        Args:
            patience: of this audit alone. Its end ends the wait for the declared ones.

        Cancellation: shards that have come stay. `done` has to follow.
        """
        shards, heldout_shards = self._data.shards, self._data.heldout
        named = [(Digest(shards[each.shard].digest), each.start) for each in declared]
        others = [(Digest(heldout_shards[each.shard].digest), each.start) for each in heldout]
        self._store.pin(_PIN, dict.fromkeys(digest for digest, _ in (*named, *others)))
        # These are here but in the first rounds of a node, which measures its own loss on them.
        if not await self._are_here(others):
            others = []
        is_named_here = False
        with patience:
            is_named_here = await self._are_here(named)
        if not is_named_here:
            named = []
        places = [(str(self._store.path(digest)), start) for digest, start in (*named, *others)]
        return AuditSequences(places, len(named))

    async def _are_here(self, places: Sequence[tuple[Digest, int]]) -> bool:
        """Fetches the shards of places that are not here. False if one cannot be had now."""
        digests = dict.fromkeys(digest for digest, _ in places)
        try:
            await self._blocks.fetch_checked(digests, self._swarm.sources, passes=1)
        except (FetchError, DiskError) as error:
            log.debug("some of the data of an audit cannot be had", error=str(error))
            return False
        return True

    def done(self) -> None:
        """The sequences are not needed any more."""
        self._store.pin(_PIN, [])
