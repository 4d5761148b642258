"""Data that the founder adds: what a node takes, keeps, tells, and refuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import trio
from trio.testing import MockClock

from gossamer.node.base.disk_health import DiskHealth
from gossamer.node.network.identity import Identity
from gossamer.node.peers.admission import Admission
from gossamer.node.peers.blocks.block_exchange import FetchError
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.training.more_data import RETRY_SECONDS, AddedData, MoreDataFile
from gossamer.protocol.accounting.run_data import RunData
from gossamer.protocol.data_parts import DataPart, PartList
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import ForgedError, ImplausibleError
from gossamer.protocol.ids import Digest, digest_of
from gossamer.protocol.limits import MIB
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.shard_index import ShardIndex, ShardInfo
from gossamer.protocol.wire.envelopes import seal
from gossamer.protocol.wire.statements import MoreData, Signed
from tests.support.builders import manifest
from tests.support.node_world import in_no_thread

replace = msgspec.structs.replace
FOUNDER, OTHER = (Identity.from_seed(digest_of(name)) for name in (b"founder", b"other"))
RUN: Manifest = replace(
    manifest(), founder=FOUNDER.peer_id, data=replace(manifest().data, grows=True)
)
FIRST = ShardIndex(shards=(ShardInfo(digest_of(b"first"), 1_000, 10),), heldout=())


def index_of(number: int, num_shards: int = 2) -> ShardIndex:
    infos = (ShardInfo(digest_of(bytes([number, n])), 100, 10) for n in range(num_shards))
    return ShardIndex(shards=tuple(infos), heldout=())


class Founder:
    """The blocks of the founder, and its statements on them."""

    def __init__(self, root: Path) -> None:
        self.store = BlockStore(root, MIB)

    def says(
        self,
        *numbers: int,
        num_tokens: int | None = None,
        count: int | None = None,
        identity: Identity = FOUNDER,
    ) -> tuple[Signed, MoreData]:
        """The parts with these numbers are in the run."""
        parts = [
            DataPart(self.store.put(to_msgpack(index_of(number))), 2, 200) for number in numbers
        ]
        digest = self.store.put(to_msgpack(PartList(parts=tuple(parts))))
        tokens = 200 * len(parts) if num_tokens is None else num_tokens
        statement = MoreData(len(parts) if count is None else count, digest, tokens, 1_000)
        return seal(statement, identity.peer_id, RUN.run_id, identity.sign), statement


class Gossip:
    """Notes what is published."""

    def __init__(self) -> None:
        self.published: list[Signed] = []

    def keep_posted(self, signed: Signed, _statement: MoreData) -> None:
        if signed not in self.published:
            self.published.append(signed)


class Node:
    """One life of a node, as far as added data go. It fetches blocks from the founder."""

    def __init__(self, root: Path, founder: Founder | None) -> None:
        self.founder = founder
        self.store = BlockStore(root / "blocks", MIB)
        self.file = MoreDataFile(root, RUN)
        blocks = SimpleNamespace(fetch_checked=self._fetch)
        self.added = AddedData(RUN, self.file, self.store, cast(Any, blocks), list, DiskHealth())
        self.data = RunData(FIRST, 1)
        self.added.load(self.data)
        self.gossip = Gossip()
        self.news = 0

    async def _fetch(
        self, digests: Sequence[Digest], _sources: Callable[[], object], passes: int = 0
    ) -> None:
        await trio.lowlevel.checkpoint()
        for digest in self.store.missing(digests):
            if self.founder is None or not self.founder.store.has(digest):
                raise FetchError([digest], 1, "nobody has it")
            self.store.put(self.founder.store.get(digest))

    def _notify(self) -> None:
        self.news += 1

    async def run(self) -> None:
        await self.added.run(cast(Any, self.gossip), self._notify, in_no_thread)

    @property
    def shards(self) -> int:
        return len(self.data.shards)


def live(node: Node, story: Callable[[], Any]) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.run)
            await story()
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0.0))


def test_parts_come_in_order_are_told_once_and_outlive_the_node(tmp_path: Path) -> None:
    founder = Founder(tmp_path / "founder")
    node = Node(tmp_path, founder)
    first, both = founder.says(1), founder.says(1, 2)

    async def story() -> None:
        assert node.added.heard(*first)
        await trio.sleep(RETRY_SECONDS)
        assert node.shards == 3
        assert node.added.heard(*both)
        assert not node.added.heard(*first), "an older one"
        await trio.sleep(3 * RETRY_SECONDS)

    live(node, story)
    assert node.data.shards == [*FIRST.shards, *index_of(1).shards, *index_of(2).shards]
    assert node.data.partitions.tokens == [1_000, 100, 100, 100, 100]
    assert node.data.expected_tokens == max(1_400, RUN.data.num_tokens + 1_000)
    assert node.gossip.published == [first[0], both[0]]
    assert node.news == 2

    later = Node(tmp_path, None)
    assert later.data.shards == node.data.shards
    assert later.added.newest == both[1]


def test_a_newcomer_that_hears_only_the_newest_gets_all(tmp_path: Path) -> None:
    founder = Founder(tmp_path / "founder")
    node = Node(tmp_path, founder)
    founder.says(1)

    async def story() -> None:
        node.added.heard(*founder.says(1, 2, 3))
        await trio.sleep(RETRY_SECONDS)

    live(node, story)
    assert node.shards == 7
    assert node.news == 1


def test_blocks_that_nobody_has_are_tried_again(tmp_path: Path) -> None:
    founder = Founder(tmp_path / "founder")
    node = Node(tmp_path, None)

    async def story() -> None:
        node.added.heard(*founder.says(1))
        await trio.sleep(3 * RETRY_SECONDS)
        assert node.shards == 1
        node.founder = founder
        await trio.sleep(2 * RETRY_SECONDS)
        assert node.shards == 3

    live(node, story)


def test_a_statement_that_changes_what_was_added_is_left_out(tmp_path: Path) -> None:
    founder = Founder(tmp_path / "founder")
    node = Node(tmp_path, founder)

    async def story() -> None:
        node.added.heard(*founder.says(1))
        await trio.sleep(RETRY_SECONDS)
        node.added.heard(*founder.says(2, 3))
        await trio.sleep(2 * RETRY_SECONDS)
        assert node.data.shards == [*FIRST.shards, *index_of(1).shards]
        node.added.heard(*founder.says(1, 2, 3))
        await trio.sleep(2 * RETRY_SECONDS)
        assert node.shards == 7

    live(node, story)


@pytest.mark.parametrize("wrong", [{"num_tokens": 399}, {"count": 3}])
def test_a_list_that_does_not_fit_its_statement_is_left_out(
    tmp_path: Path, wrong: dict[str, int]
) -> None:
    founder = Founder(tmp_path / "founder")
    node = Node(tmp_path, founder)

    async def story() -> None:
        node.added.heard(*founder.says(1, 2, **cast(Any, wrong)))
        await trio.sleep(2 * RETRY_SECONDS)

    live(node, story)
    assert node.shards == 1


def test_a_file_that_the_founder_did_not_sign_counts_for_nothing(tmp_path: Path) -> None:
    founder = Founder(tmp_path / "founder")
    node = Node(tmp_path, founder)
    node.file.write(founder.says(1, identity=OTHER)[0])
    with pytest.raises(ForgedError):
        node.file.read()
    again = Node(tmp_path, founder)
    assert again.shards == 1
    assert again.added.newest is None


def admits(run: Manifest, identity: Identity, statement: MoreData) -> bool:
    """Whether a node of a run takes a statement; the author is banned and not connected."""
    offences = SimpleNamespace(is_banned=lambda _peer: True)
    transport = SimpleNamespace(peer_id=OTHER.peer_id, peers=list)
    parts = (transport, None, None, offences, None, None)
    return Admission(run, *cast(Any, parts)).admits(identity.peer_id, statement)


def test_only_the_founder_adds_data_and_only_where_data_grow() -> None:
    statement = MoreData(1, digest_of(b"list"), 200, 1_000)
    assert admits(RUN, FOUNDER, statement)
    with pytest.raises(ForgedError):
        admits(RUN, OTHER, statement)
    fixed = replace(RUN, data=replace(RUN.data, grows=msgspec.UNSET))
    with pytest.raises(ImplausibleError):
        admits(fixed, FOUNDER, statement)
