"""A founder's node that cuts the rest of its corpus: in parts, again after a crash, with a file
that cannot be used, and with a full cache."""

from __future__ import annotations

import os
import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import trio

from gossamer.node.base.disk_health import DiskHealth
from gossamer.node.network.identity import Identity
from gossamer.node.peers.blocks import first_copies
from gossamer.node.peers.blocks.first_copies import FirstCopies
from gossamer.node.peers.blocks.replication import keep_copies
from gossamer.node.runs.founding.cutting import CorpusCutter
from gossamer.node.runs.founding.preparing import prepare_elsewhere
from gossamer.node.runs.founding.rest_of_corpus import RestFile
from gossamer.node.runs.planning.draft import draft_of_preset, manifest_of
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.storage.state_dir import StateDir, StateDirError
from gossamer.node.training.more_data import AddedData, MoreDataFile
from gossamer.protocol.accounting.run_data import RunData
from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.limits import KIB, MIB
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.shard_index import decode_index
from gossamer.protocol.wire.statements import MoreData, Signed
from gossamer.trainer.text.sources.corpus import no_progress
from tests.support.builders import peers
from tests.support.synced import Synced

FOUNDER, OTHER = (Identity.from_seed(digest_of(name)) for name in (b"founder", b"other"))
DRAFT = draft_of_preset("tiny")
PATIENCE_SECONDS = 60.0
NUM_PARTS = 4


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Some 1 MB, which are cut in four parts."""
    folder, draw = tmp_path / "corpus", random.Random(1)
    folder.mkdir()
    for number in range(8):
        lines = (f"{number} {n} " + "w" * draw.randrange(250) for n in range(1_000))
        (folder / f"{number}.txt").write_text("\n".join(lines) + "\n")
    return folder


async def in_thread(function: Callable[[], Any], /) -> Any:
    return await trio.to_thread.run_sync(function)


class NothingComes:
    """Blocks that this node never gets."""

    async def fetch(self, *_: object) -> None:
        await trio.sleep_forever()


class Founder:
    """One life of a founder's node, as far as its corpus goes."""

    def __init__(self, root: Path, manifest: Manifest, identity: Identity = FOUNDER) -> None:
        self.state_dir = StateDir(root)
        self.store = BlockStore(self.state_dir.blocks_path, 64 * MIB)
        index = decode_index(self.store.get(Digest(manifest.data.index_digest)))
        self.data = RunData.of(manifest, index)
        self.added = AddedData(
            manifest,
            MoreDataFile(root, manifest),
            self.store,
            cast(Any, SimpleNamespace(fetch_checked=self._fetch)),
            list,
            DiskHealth(),
        )
        self.added.load(self.data)
        self.others = frozenset[PeerId]()
        self.have_copies = False
        """Whether the others have all that there is."""
        self.copies = FirstCopies(self.data, self.store, self._is_at, lambda: self.others)
        self.copies.note_added()
        self.cutter = CorpusCutter(
            manifest, identity, self.state_dir, self.store, self.data, self.added,
            self.copies, in_thread, lambda: self.is_paused,
        )  # fmt: skip
        self.is_paused = False
        self.published: list[int] = []

    async def _is_at(self, _peer: PeerId, _digest: Digest) -> bool:
        await trio.lowlevel.checkpoint()
        return self.have_copies

    async def _fetch(self, digests: Sequence[Digest], *_: object, **__: object) -> None:
        assert not self.store.missing(digests), "the founder has all that it says"
        await trio.lowlevel.checkpoint()

    def _keep_posted(self, number: int) -> None:
        if number not in self.published:
            self.published.append(number)

    @property
    def num_parts(self) -> int:
        return len(self.data.parts.parts)

    def missing(self) -> list[Digest]:
        return self.store.missing(Digest(shard.digest) for shard in self.data.shards)

    async def run(self, until: Callable[[], bool] | None = None) -> None:
        """Lives until the corpus is cut, or until a condition."""
        gossip = SimpleNamespace(
            keep_posted=lambda _, statement: self._keep_posted(statement.number),
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.added.run, cast(Any, gossip), lambda: None, in_thread)
            nursery.start_soon(self.copies.run)
            nursery.start_soon(
                keep_copies, self.data, self.store, cast(Any, NothingComes()),
                cast(Any, SimpleNamespace(living=lambda: self.others, sources=())),
                FOUNDER.peer_id,
            )  # fmt: skip
            if until is None:
                await self.cutter.run()
            else:
                nursery.start_soon(self.cutter.run)
                while not until():  # noqa: ASYNC110 - what is watched has no event to wait for
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()


def make(root: Path) -> None:
    root.mkdir()


def bytes_of(corpus: Path) -> int:
    return sum(path.stat().st_size for path in corpus.iterdir())


async def found(root: Path, corpus: Path) -> Manifest:
    """Founds a run on the first part."""
    make(root)
    data = await prepare_elsewhere(
        DRAFT, [corpus], root / "blocks", 64 * MIB, no_progress, start_bytes=128 * KIB
    )
    assert data.config.grows
    return manifest_of(
        DRAFT,
        founder=FOUNDER.peer_id,
        created_unix_seconds=0,
        data=data.config,
        genesis_digest=digest_of(b"genesis"),
    )


def live(story: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        with trio.fail_after(PATIENCE_SECONDS):
            await story()

    trio.run(main)


def test_all_parts_are_added_in_order_and_nothing_is_left_behind(
    tmp_path: Path, corpus: Path
) -> None:
    async def story() -> None:
        manifest = await found(tmp_path / "a", corpus)
        founder = Founder(tmp_path / "a", manifest)
        seen: set[str] = set()

        def has_one_part() -> bool:
            seen.add(founder.cutter.status)
            return founder.num_parts == 1

        await founder.run(has_one_part)
        assert any(f"part 2 of {NUM_PARTS}" in status for status in seen)
        await founder.run()
        assert founder.cutter.status == ""
        assert founder.num_parts == NUM_PARTS - 1
        assert founder.published == [1, 2, 3]
        newest = founder.added.newest
        assert newest is not None
        assert newest.expected_tokens == newest.num_tokens
        num_bytes = bytes_of(corpus)
        heldout = sum(shard.num_tokens for shard in founder.data.heldout)
        # One byte a token, and one token more for the end of each document.
        assert num_bytes < founder.data.num_tokens + heldout < 1.05 * num_bytes
        assert not founder.missing()
        names = {path.name for path in (tmp_path / "a").iterdir()}
        assert names == {"blocks", "more_data"}
        await founder.cutter.run()  # it knows that nothing is left
        assert founder.num_parts == NUM_PARTS - 1

    live(story)


def test_a_founder_that_dies_goes_on_with_the_part_that_it_did_not_sign(
    tmp_path: Path, corpus: Path
) -> None:
    async def story() -> None:
        manifest = await found(tmp_path / "a", corpus)
        assert await found(tmp_path / "b", corpus) == manifest
        undisturbed = Founder(tmp_path / "b", manifest)
        await undisturbed.run()

        first = Founder(tmp_path / "a", manifest)
        await first.run(lambda: first.num_parts == 1)
        second = Founder(tmp_path / "a", manifest)
        assert second.num_parts == 1
        folder = tmp_path / "a" / "cutting"
        folder.mkdir(exist_ok=True)
        (folder / "left").write_bytes(b"by a crash")
        cut_begins = lambda: "reading" in second.cutter.status or second.num_parts > 1  # noqa: E731
        await second.run(cut_begins)
        third = Founder(tmp_path / "a", manifest)
        await third.run()
        assert third.data.parts == undisturbed.data.parts
        assert third.data.shards == undisturbed.data.shards
        assert not folder.exists()

    live(story)


def test_a_file_that_cannot_be_used_ends_the_cutting_and_not_the_run(
    tmp_path: Path, corpus: Path
) -> None:
    async def story() -> None:
        manifest = await found(tmp_path / "a", corpus)
        rest = RestFile(tmp_path / "a").read()
        assert rest is not None
        bad, start, *_ = rest.plan.part(2)[0]
        data = bytearray(bad.read_bytes())
        good, data[start + 300] = bytes(data), 0xFF
        bad.write_bytes(data)
        founder = Founder(tmp_path / "a", manifest)
        await founder.run()
        assert founder.num_parts == 1
        assert founder.cutter.status.startswith("stopped: ")
        assert bad.name in founder.cutter.status
        assert "mend the files, and start the node again" in founder.cutter.status

        bad.write_bytes(good)
        again = Founder(tmp_path / "a", manifest)
        await again.run()
        assert again.num_parts == NUM_PARTS - 1

    live(story)


def test_a_part_without_text_is_passed_over(tmp_path: Path, corpus: Path) -> None:
    async def story() -> None:
        manifest = await found(tmp_path / "a", corpus)
        rest = RestFile(tmp_path / "a").read()
        assert rest is not None
        blank = tmp_path / "blank.jsonl"
        blank.write_bytes(b"\n" * 100)
        names = (*rest.plan.files, str(blank))
        begin, end = rest.plan.ends[1:3]
        sections = (
            *rest.plan.sections[:begin],
            (len(names) - 1, 0, 100),
            *rest.plan.sections[end:],
        )
        ends = (*rest.plan.ends[:2], *(each - end + begin + 1 for each in rest.plan.ends[2:]))
        plan = msgspec.structs.replace(
            rest.plan, files=names, sections=sections, ends=ends,
            sizes=(*rest.plan.sizes, 100), groups=(*rest.plan.groups, 0),
        )  # fmt: skip
        assert plan.without(2).num_parts == NUM_PARTS - 1
        RestFile(tmp_path / "a").write(msgspec.structs.replace(rest, plan=plan))
        founder = Founder(tmp_path / "a", manifest)
        await founder.run()
        assert founder.cutter.status == ""
        assert founder.num_parts == NUM_PARTS - 2
        assert not (tmp_path / "a" / "corpus_rest").exists()

    live(story)


def test_a_full_cache_makes_the_cutting_wait(tmp_path: Path, corpus: Path) -> None:
    async def story() -> None:
        manifest = await found(tmp_path / "a", corpus)
        founder = Founder(tmp_path / "a", manifest)
        founder.store.quota_bytes = 1
        await founder.run(lambda: "waits for room" in founder.cutter.status)
        assert founder.num_parts == 0
        founder.store.quota_bytes = 64 * MIB
        await founder.run()
        assert founder.num_parts == NUM_PARTS - 1

    live(story)


def test_a_founder_keeps_what_it_cut_until_others_have_it(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven others are keepers of most shards, and have copied nothing for two of its lives."""
    monkeypatch.setattr(first_copies, "LOOK_SECONDS", 0.01)

    async def story() -> None:
        manifest = await found(tmp_path / "a", corpus)
        quota_bytes = 9 * Founder(tmp_path / "a", manifest).data.num_bytes // 2
        for _ in range(2):
            founder = Founder(tmp_path / "a", manifest)
            founder.others = frozenset(peers(7))
            founder.store.quota_bytes = quota_bytes
            await founder.run(lambda: "waits for room" in founder.cutter.status)  # noqa: B023
            assert founder.num_parts == 1
            assert not founder.missing()
        founder.have_copies = True
        await founder.run(lambda: founder.num_parts == 2)

    live(story)


def test_no_part_is_begun_while_the_node_is_paused(tmp_path: Path, corpus: Path) -> None:
    async def story() -> None:
        manifest = await found(tmp_path / "a", corpus)
        founder = Founder(tmp_path / "a", manifest)
        founder.is_paused = True
        await founder.run(lambda: "this node is paused" in founder.cutter.status)
        assert founder.num_parts == 0
        founder.is_paused = False
        await founder.run(lambda: founder.num_parts == 1)

    live(story)


def test_only_the_founder_cuts_and_a_damaged_plan_is_named(tmp_path: Path, corpus: Path) -> None:
    async def story() -> None:
        manifest = await found(tmp_path / "a", corpus)
        other = Founder(tmp_path / "a", manifest, OTHER)
        await other.run()
        assert other.num_parts == 0
        for damage in (b"nonsense", b"\x81\xaatext_field\xa2\xff\xfe"):
            (tmp_path / "a" / "corpus_rest").write_bytes(damage)
            with pytest.raises(StateDirError):
                RestFile(tmp_path / "a").read()
        founder = Founder(tmp_path / "a", manifest)
        await founder.run()
        assert "corpus_rest" in founder.cutter.status

    live(story)


def test_files_whose_names_are_not_utf8_are_cut_in_parts(tmp_path: Path, corpus: Path) -> None:
    for path in list(corpus.iterdir()):
        path.rename(path.with_name(path.stem + os.fsdecode(b"\xe9.txt")))

    async def story() -> None:
        manifest = await found(tmp_path / "a", corpus)
        founder = Founder(tmp_path / "a", manifest)
        await founder.run()
        assert founder.cutter.status == ""
        assert founder.num_parts == NUM_PARTS - 1

    live(story)


def test_a_part_is_on_the_disk_for_good_before_it_is_signed(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = Synced(monkeypatch)
    blocks = tmp_path / "a" / "blocks"

    async def story() -> None:
        manifest = await found(tmp_path / "a", corpus)
        first = set(blocks.glob("??/*"))
        founder = Founder(tmp_path / "a", manifest)
        heard, parts = founder.added.heard, list[int]()

        def hear(signed: Signed, statement: MoreData) -> bool:
            parts.append(statement.number)
            assert not synced.missing(set(blocks.glob("??/*")) - first)
            return heard(signed, statement)

        monkeypatch.setattr(founder.added, "heard", hear)
        await founder.run()
        assert parts == [1, 2, 3]

    live(story)
