"""The place of a node in its own text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
import trio
import trio.testing

from gossamer.node.base.disk_health import DiskHealth
from gossamer.node.storage.own_data import INDEX_NAME, OwnData
from gossamer.node.storage.state_dir import StateDirError
from gossamer.node.training.own_feed import OwnFeed
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.ids import digest_of
from gossamer.protocol.shard_index import ShardIndex, ShardInfo

T = TypeVar("T")
KEY = digest_of(b"a text")
SIZES = (100, 100, 40)


async def inline(function: Callable[[], T], /) -> T:
    return function()


def write_shards(root: Path, key: bytes = KEY, sizes: tuple[int, ...] = SIZES) -> OwnData:
    data = OwnData(root)
    folder = data.folder_for(key)
    infos = []
    for number, size in enumerate(sizes):
        content = bytes([number])
        infos.append(ShardInfo(digest_of(content), size, 1))
        (folder / digest_of(content).hex()).write_bytes(content)
    (folder / INDEX_NAME).write_bytes(to_msgpack(ShardIndex(shards=tuple(infos), heldout=())))
    data.begin(key)
    return data


class Life:
    """One life of a node: what it queues, and what its trainer reports."""

    def __init__(self, root: Path) -> None:
        data = OwnData(root)
        assert data.open()
        self.feed = OwnFeed(data, DiskHealth(), inline)
        self.queued: list[tuple[int, int, int]] = []

    async def queue(self, shard: int, path: str, start: int, stop: int) -> None:
        self.queued.append((shard, start, stop))

    def live(self, *events: Callable[[], object]) -> None:
        """Runs the feed, and lets it settle after each event."""

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.feed.run, self.queue)
                for event in events:
                    event()
                    await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()

        trio.run(main)


def test_it_reads_from_the_first_to_the_last_and_begins_again(tmp_path: Path) -> None:
    write_shards(tmp_path)
    life = Life(tmp_path)
    life.live(lambda: life.feed.want(150))
    assert life.queued == [(0, 0, 100), (1, 0, 100), (2, 0, 40), (0, 0, 100)]


def test_a_restart_goes_on_where_the_trainer_was(tmp_path: Path) -> None:
    write_shards(tmp_path)
    first = Life(tmp_path)
    first.live(
        lambda: first.feed.want(50),
        lambda: first.feed.consumed([(0, 0, 100), (1, 0, 30)]),
    )
    second = Life(tmp_path)
    assert second.feed.epoch_progress().tokens_consumed == 130
    second.live(lambda: second.feed.want(50))
    assert second.queued[0] == (1, 30, 100)
    second.live(lambda: second.feed.consumed([(1, 30, 100), (2, 0, 40), (0, 0, 10)]))
    progress = Life(tmp_path).feed.epoch_progress()
    assert (progress.epoch, progress.tokens_consumed) == (1, 10)


def test_steps_that_were_lost_with_the_trainer_are_done_again(tmp_path: Path) -> None:
    write_shards(tmp_path)
    life = Life(tmp_path)
    life.live(
        lambda: life.feed.want(30),
        lambda: life.feed.consumed([(0, 0, 25)]),
        life.feed.requeue,
    )
    assert life.queued == [(0, 0, 100), (0, 25, 100)]


def test_a_text_of_less_than_a_round_counts_its_epochs(tmp_path: Path) -> None:
    write_shards(tmp_path, sizes=(20,))
    life = Life(tmp_path)
    life.live(
        lambda: life.feed.want(50),
        lambda: life.feed.consumed([(0, 0, 20)] * 3),
    )
    assert life.feed.epoch_progress().epoch == 3


def test_what_is_reported_twice_is_no_new_epoch(tmp_path: Path) -> None:
    write_shards(tmp_path)
    life = Life(tmp_path)
    life.live(
        lambda: life.feed.want(50),
        lambda: life.feed.consumed([(0, 0, 50)]),
        # A training that was under way when the queue was emptied reports what it had.
        lambda: life.feed.consumed([(0, 0, 30)]),
    )
    progress = life.feed.epoch_progress()
    assert (progress.epoch, progress.tokens_consumed) == (0, 50)


def test_nothing_of_it_is_named_to_others(tmp_path: Path) -> None:
    write_shards(tmp_path)
    feed = Life(tmp_path).feed
    assert feed.claims == ()
    assert feed.consumed([(0, 0, 50)]) == ()


def test_another_text_begins_at_its_beginning_and_removes_the_old_one(tmp_path: Path) -> None:
    write_shards(tmp_path).save(70)
    other = digest_of(b"another text")
    write_shards(tmp_path, other, (60,))
    life = Life(tmp_path)
    progress = life.feed.epoch_progress()
    assert (progress.tokens_consumed, progress.num_tokens) == (0, 60)
    assert sorted(path.name for path in tmp_path.iterdir()) == [other.hex()[:16], "place"]


def test_a_text_that_was_not_cut_to_its_end_leaves_the_old_one(tmp_path: Path) -> None:
    write_shards(tmp_path).save(70)
    OwnData(tmp_path).folder_for(digest_of(b"another text"))
    assert Life(tmp_path).feed.epoch_progress().tokens_consumed == 70


def test_damage_is_told_and_not_trained_on(tmp_path: Path) -> None:
    write_shards(tmp_path)
    shard = next(tmp_path.glob(f"*/{digest_of(bytes([1])).hex()}"))
    shard.write_bytes(b"longer")
    with pytest.raises(StateDirError, match="join again with --corpus"):
        OwnData(tmp_path).open()
    assert OwnData(tmp_path).whole_key() is None
    shard.unlink()
    with pytest.raises(StateDirError, match="join again with --corpus"):
        OwnData(tmp_path).open()
