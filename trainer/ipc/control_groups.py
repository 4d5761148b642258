"""Limits that the system sets on groups of processes (Linux's control groups). Without torch.

A container is such a group, and so are a service of systemd and a job of a cluster. A group lies in
other groups, and the least limit of all of them holds. Version 2 has one tree of groups. Version 1,
which clusters still have, has a tree for memory and another one for processor time.

A group may have a second limit of memory (`memory.high` of version 2, `MemoryHigh=` of a service).
What lies above it is not refused, but the processes are slowed down until they crawl, so it counts
like the other.

A container sees its own group at the top of the tree. With version 1 the kernel names it by a path
of the host all the same, which is not there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path("/")

_TREES = "sys/fs/cgroup"
_UNIFIED = "unified"
"""Folder of version 2 on a system with both."""

_NO_LIMIT_BYTES = 2**60
"""Version 1 writes the largest number of pages where there is no limit."""


class GroupMemory(NamedTuple):
    """The memory of this process's groups, in bytes."""

    limit: int
    """The least limit."""
    free: int
    """What the fullest group may still take. Pages of files count as used there, and are given up
    when memory is wanted: a node that has read its state twice has all of it in them."""


def group_memory(root: Path = ROOT) -> GroupMemory | None:
    """Returns the memory of the groups of this process; None where none has a limit."""
    found = [
        _memory_of(folder, *names)
        for controller, names in (
            ("", ("memory.max", "memory.current", "")),
            ("", ("memory.high", "memory.current", "")),
            ("memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")),
        )
        for folder in _groups(root, controller)
    ]
    limited = [memory for memory in found if memory is not None]
    if not limited:
        return None
    return GroupMemory(min(each.limit for each in limited), min(each.free for each in limited))


def _memory_of(folder: Path, limit: str, used: str, prefix: str) -> GroupMemory | None:
    """Returns the memory of one group; None without a limit.

    Args:
        limit, used: names of files.
        prefix: of the statistics that count the groups below it, too.
    """
    limit_bytes = _number(folder / limit)
    if limit_bytes is None or limit_bytes >= _NO_LIMIT_BYTES:
        return None
    used_bytes = _number(folder / used)
    if used_bytes is None:
        return GroupMemory(limit_bytes, limit_bytes)
    pages = (f"{prefix}inactive_file", f"{prefix}active_file")
    free = limit_bytes - used_bytes + _sum_of(pages, folder / "memory.stat")
    return GroupMemory(limit_bytes, max(0, min(free, limit_bytes)))


def group_cores(root: Path = ROOT) -> int | None:
    """Returns the whole cores whose time the groups of this process may use, at least 1; None
    without a limit."""
    quotas = [_text(folder / "cpu.max").split() for folder in _groups(root, "")]
    quotas += [
        [_text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")]
        for folder in _groups(root, "cpu")
    ]
    cores = [
        max(1, int(quota[0]) // int(quota[1]))
        for quota in quotas
        # `max` and -1 are no limit.
        if len(quota) == 2 and all(number.isdigit() and int(number) for number in quota)
    ]
    return min(cores, default=None)


def group_processes(root: Path = ROOT) -> int | None:
    """Returns how many more processes and threads the groups of this process may have; None without
    a limit."""
    free = []
    for controller in ("", "pids"):
        for folder in _groups(root, controller):
            most, present = _number(folder / "pids.max"), _number(folder / "pids.current")
            if most is not None:
                free.append(max(0, most - (present or 0)))
    return min(free, default=None)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yields the folder of each group that this process is in, from the top of the tree.

    Args:
        controller: the tree of version 1 with this controller; empty: that of version 2.
    """
    trees = root / _TREES
    for line in _text(root / "proc/self/cgroup").splitlines() or ["0::/"]:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller not in controllers.split(","):
            continue
        if controller:
            together = trees / controllers
            folder = together if together.is_dir() else trees / controller
        else:
            folder = trees / _UNIFIED if (trees / _UNIFIED).is_dir() else trees
        yield folder
        for part in path.split("/"):
            if part == "..":  # a group outside of what this process can see
                break
            if part:
                folder = folder / part
                yield folder


def _sum_of(names: Collection[str], path: Path) -> int:
    values = dict(line.partition(" ")[::2] for line in _text(path).splitlines())
    return sum(int(values[name]) for name in names if values.get(name, "").isdigit())


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
