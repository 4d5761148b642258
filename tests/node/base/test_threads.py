"""Pieces that threads work at: in order, at the same time, and no further ahead than is said."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gossamer.node.base import threads
from gossamer.node.base.threads import (
    PIECE_ELEMENTS,
    map_pieces,
    num_piece_threads,
    num_usable_cores,
)
from gossamer.trainer.ipc.control_groups import group_cores


@pytest.mark.parametrize("num_threads", [1, 2, 5])
@pytest.mark.parametrize("num_items", [0, 1, 50])
def test_results_come_in_the_order_of_the_items(num_items: int, num_threads: int) -> None:
    found = map_pieces(lambda item: item * item, range(num_items), num_threads)
    assert list(found) == [item * item for item in range(num_items)]


def test_as_many_threads_as_are_wanted_work_at_the_same_time() -> None:
    met = threading.Barrier(3)
    for _ in map_pieces(lambda _item: met.wait(60), range(3), 3):
        pass


def test_no_more_results_wait_than_are_allowed() -> None:
    begun: list[int] = []

    def items() -> Iterator[int]:
        for item in range(100):
            begun.append(item)
            yield item

    used = 0
    for used, _ in enumerate(map_pieces(abs, items(), 2), start=1):
        assert len(begun) - used <= threads._AHEAD_PER_THREAD * 2
    assert used == 100


def test_a_failure_comes_at_its_place_and_no_further_call_begins() -> None:
    begun: list[int] = []

    def fails(item: int) -> int:
        begun.append(item)
        if item == 3:
            raise ValueError("the third")
        return item

    results = map_pieces(fails, range(1000), 2)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="the third"):
        next(results)
    assert max(begun) < 100


def test_threads_are_over_when_the_iterator_is_closed() -> None:
    results = map_pieces(lambda item: item, range(1000), 3)
    assert next(results) == 0
    assert any(thread.name.startswith("pieces") for thread in threading.enumerate())
    results.close()  # type: ignore[attr-defined]  # it is a generator
    assert not any(thread.name.startswith("pieces") for thread in threading.enumerate())


def test_small_vectors_have_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "num_usable_cores", lambda: 64)
    assert num_piece_threads(2 * PIECE_ELEMENTS - 1) == 1
    assert num_piece_threads(3 * PIECE_ELEMENTS) == 3
    assert num_piece_threads(10**9) == threads.PIECE_THREADS_MAX
    monkeypatch.setattr(threads, "num_usable_cores", lambda: 2)
    assert num_piece_threads(10**9) == 2


@pytest.mark.parametrize(
    ("limit", "cores"),
    [("250000 100000", 2), ("50000 100000", 1), ("6400000 100000", 8), ("max 100000", 8)],
)
def test_a_container_has_no_more_threads_at_a_vector_than_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limit: str, cores: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "cpu.max").write_text(f"{limit}\n")
    assert num_usable_cores(tmp_path) == cores
    monkeypatch.setattr(threads, "group_cores", lambda _: group_cores(tmp_path))
    assert num_piece_threads(10**9) == cores
