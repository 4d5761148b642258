"""The parts of a round that a member keeps for auditors."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

from gossamer.node.storage.state_dir import StateDir
from gossamer.node.storage.work.kept_parts import KeptParts

PARTS = [b"first", b"", b"the third", bytes(70_000)]


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_parts_come_back_and_leave_nothing_behind(tmp_path: Path) -> None:
    gc.collect()  # other tests may have left files that nobody has any more
    files = open_files()
    kept = KeptParts(tmp_path, lambda: map(memoryview, PARTS))
    assert not kept.are_in_memory
    assert [kept.part(chunk) for chunk in range(len(PARTS))] == PARTS
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == sum(map(len, PARTS))
    del kept
    gc.collect()
    assert open_files() == files
    assert not [*tmp_path.iterdir()]


def test_the_next_life_removes_what_a_killed_process_left(tmp_path: Path) -> None:
    state_dir = StateDir(tmp_path)
    (tmp_path / "work").mkdir()
    kept = KeptParts(tmp_path / "work", lambda: PARTS)
    assert [*(tmp_path / "work").glob(".parts*")]
    with state_dir.locked():
        assert not [*(tmp_path / "work").glob(".parts*")]
    assert kept.part(0) is None


def test_a_disk_that_takes_nothing_leaves_them_in_memory(tmp_path: Path) -> None:
    """Otherwise a node with a full disk could not open its chunks, and would sit out for it."""
    kept = KeptParts(tmp_path / "gone", lambda: iter(PARTS))
    assert kept.are_in_memory
    assert [kept.part(chunk) for chunk in range(len(PARTS))] == PARTS


def test_a_disk_that_is_full_in_between_leaves_all_of_them_in_memory(tmp_path: Path) -> None:
    num_calls = 0

    def parts() -> Iterator[bytes]:
        nonlocal num_calls
        num_calls += 1
        yield from PARTS[:3]
        if num_calls == 1:
            raise OSError(28, "No space left on device")
        yield PARTS[3]

    kept = KeptParts(tmp_path, parts)
    assert kept.are_in_memory
    assert kept.part(2) == PARTS[2]
    assert not [*tmp_path.iterdir()], "what was written takes room on the full disk"


def test_a_part_that_the_disk_does_not_give_back_is_none(tmp_path: Path) -> None:
    kept = KeptParts(tmp_path, lambda: PARTS)
    (path,) = tmp_path.iterdir()
    os.truncate(path, len(PARTS[0]) - 1)
    assert kept.part(0) is None
    path.unlink()
    assert kept.part(0) is None
