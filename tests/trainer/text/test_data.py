"""Cutting shards into sequences, and the account of what was consumed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zstandard

from gossamer.trainer.ipc.messages import DATA_RANGES_MAX
from gossamer.trainer.text.data import DataError, DataQueue, load_shard

CONTEXT = 8
SEQUENCE = CONTEXT + 1


def write(path: Path, num_tokens: int, first: int = 0) -> str:
    tokens = (np.arange(num_tokens) + first).astype("<u2")
    path.write_bytes(zstandard.compress(tokens.tobytes()))
    return str(path)


@pytest.fixture
def queue() -> DataQueue:
    return DataQueue(CONTEXT, token_bytes=2, vocabulary=1000)


def test_sequences_lie_end_to_end(tmp_path: Path, queue: DataQueue) -> None:
    path = write(tmp_path / "a", 10 * SEQUENCE)
    for start, stop in [(0, 4 * SEQUENCE), (4 * SEQUENCE, 10 * SEQUENCE)]:
        queue.push(3, path, start, stop)
    batch = queue.take(10)
    assert batch is not None
    assert batch.sequences.shape == (10, SEQUENCE)
    assert batch.sequences.dtype == np.int64
    assert batch.sequences.flatten().tolist() == list(range(10 * SEQUENCE))
    assert batch.spans == ((3, 0, 10 * SEQUENCE),)
    assert queue.tokens_queued == 0


def test_steps_continue_where_the_last_one_ended(tmp_path: Path, queue: DataQueue) -> None:
    queue.push(3, write(tmp_path / "a", 100), 9, 63)
    first, second = queue.take(2), queue.take(3)
    assert first is not None
    assert second is not None
    assert first.spans == ((3, 9, 27),)
    assert second.spans == ((3, 27, 54),)
    assert queue.tokens_queued == 9
    assert second.sequences[0, 0] == 27


def test_a_short_tail_is_consumed_with_the_sequence_before_it(
    tmp_path: Path, queue: DataQueue
) -> None:
    path = write(tmp_path / "a", 100)
    queue.push(0, path, 0, 20)
    queue.push(1, path, 0, 18)
    batch = queue.take(2)
    assert batch is not None
    assert batch.spans == ((0, 0, 20),)
    assert queue.tokens_queued == 18


def test_no_target_is_taken_from_behind_the_range(tmp_path: Path, queue: DataQueue) -> None:
    # 17 tokens: one sequence and a tail, although the shard goes on.
    queue.push(0, write(tmp_path / "a", 100), 0, 17)
    batch = queue.take(1)
    assert batch is not None
    assert batch.spans == ((0, 0, 17),)


def test_a_range_that_is_too_short_is_reported_once(tmp_path: Path, queue: DataQueue) -> None:
    path = write(tmp_path / "a", 100)
    queue.push(0, path, 0, 5)
    assert queue.take(1) is None
    queue.push(1, path, 0, 18)
    first, second = queue.take(1), queue.take(1)
    assert first is not None
    assert second is not None
    assert first.spans == ((0, 0, 5), (1, 0, 9))
    assert second.spans == ((1, 9, 18),)


def test_too_few_sequences_consume_nothing(tmp_path: Path, queue: DataQueue) -> None:
    path = write(tmp_path / "a", 100)
    queue.push(0, path, 0, 18)
    assert queue.take(3) is None
    assert queue.tokens_queued == 18
    queue.push(0, path, 18, 27)
    batch = queue.take(3)
    assert batch is not None
    assert batch.spans == ((0, 0, 27),)


def test_forget_drops_what_was_cut_too(tmp_path: Path, queue: DataQueue) -> None:
    path = write(tmp_path / "a", 100)
    queue.push(0, path, 0, 18)
    assert queue.take(3) is None
    queue.forget()
    assert queue.tokens_queued == 0
    queue.push(1, path, 40, 49)
    batch = queue.take(1)
    assert batch is not None
    assert batch.spans == ((1, 40, 49),)


def test_bounds(tmp_path: Path, queue: DataQueue) -> None:
    path = write(tmp_path / "a", 10)
    with pytest.raises(DataError, match="not a range"):
        queue.push(0, path, 5, 5)
    for _ in range(DATA_RANGES_MAX):
        queue.push(0, path, 0, 10)
    with pytest.raises(DataError, match="more than"):
        queue.push(0, path, 0, 10)
    queue.forget()
    queue.push(0, path, 0, 11)
    with pytest.raises(DataError, match=r"has 10 tokens; 11 were to be used"):
        queue.take(1)


def test_shards_that_cannot_be_used(tmp_path: Path) -> None:
    good = write(tmp_path / "good", 10, first=995)
    with pytest.raises(DataError, match=r"has token 1004; the vocabulary has 1000"):
        load_shard(good, 2, 1000)
    with pytest.raises(DataError, match="cannot read shard"):
        load_shard(tmp_path / "missing", 2, 1000)
    (tmp_path / "damaged").write_bytes(b"no zstd")
    with pytest.raises(DataError, match="damaged"):
        load_shard(tmp_path / "damaged", 2, 1000)
    (tmp_path / "odd").write_bytes(zstandard.compress(b"abc"))
    with pytest.raises(DataError, match="not a multiple"):
        load_shard(tmp_path / "odd", 2, 1000)


def test_a_shard_that_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb"
    # 64 MiB of zeros in a few kilobytes, with and without a stated length.
    zeros = bytes(64 * 1024 * 1024)
    for states_length in (True, False):
        compressor = zstandard.ZstdCompressor(write_content_size=states_length)
        bomb.write_bytes(compressor.compress(zeros))
        with pytest.raises(DataError, match=r"would have more than|damaged"):
            load_shard(bomb, 2, 1000)
