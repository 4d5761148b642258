"""The way to a head may be forgotten while its blocks are fetched: nobody announces it any more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from gossamer.node.peers.blocks.block_exchange import FetchError
from gossamer.node.peers.chain.chain_records import BehindError
from gossamer.node.peers.chain.chain_sync import ChainSync
from gossamer.protocol.ids import Digest
from tests.support.committed_rounds import Holder, small_manifest

NUM_ROUNDS = 7
"""More than two checkpoints apart, so that the node begins with checkpoints of others."""


async def inline(function: Callable[[], Any], /) -> Any:
    await trio.lowlevel.checkpoint()
    return function()


class Peers:
    """They answer some questions, and none after that. The rounds are forgotten meanwhile."""

    def __init__(self, theirs: Holder, mine: Holder, num_answers: int) -> None:
        self._theirs, self._mine = theirs, mine
        self._num_answers = num_answers

    async def fetch(self, digests: Sequence[Digest], *_: object, **__: object) -> None:
        await trio.lowlevel.checkpoint()
        if self._num_answers < 2:
            self._mine.chain.forget_all_but([])
        if not self._num_answers:
            raise FetchError(digests, len(digests), "nobody has it")
        self._num_answers -= 1
        for digest in digests:
            self._mine.store.put(self._theirs.store.get(digest))


@pytest.mark.parametrize("way", ["fetch", "follow"])
@pytest.mark.parametrize("num_answers", [0, 1, 2, 3])
def test_a_way_that_is_forgotten_meanwhile_leads_nowhere(
    tmp_path: Path, way: str, num_answers: int
) -> None:
    manifest = small_manifest(checkpoint_rounds=3)
    other, mine = Holder(manifest, tmp_path / "other"), Holder(manifest, tmp_path / "mine")
    head = mine.state.head
    for number in range(NUM_ROUNDS):
        made = other.commit(other.averages(number))
        head = mine.chain.add(made.commit, made.header)

    async def main() -> None:
        peers, unused = cast(Any, Peers(other, mine, num_answers)), cast(Any, None)
        sync = ChainSync(manifest, unused, peers, mine.state, inline)
        go = sync.fetch if way == "fetch" else sync.follow
        with pytest.raises(BehindError):
            await go(head, tuple)
        assert mine.state.head == manifest.run_id

    trio.run(main)
