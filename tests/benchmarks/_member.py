"""One member of a measured all-reduce, whatever does it: how it speaks with `ring.py`.

Standard library and numpy only, because hivemind's member runs in a virtual environment of its own.

A member is a process. It gets its `Assignment` as the first line of its standard input, and then
both sides take turns, a line of JSON each:

    member -> {"address": ...}                  where the others reach it
    ring   -> {"addresses": [...]}              of all members, by rank
    member -> {}                                connected
    ring   -> {"repeat": 0}                     prepare
    member -> {}                                prepared
    ring   -> {"start_seconds": ...}            when to begin, by the machine's monotonic clock
    member -> {"finished_seconds": ..., ...}    when the whole average was there, and the cost
    ring   -> {"check": true}                   compare it with numpy's mean
    member -> {"digest": ..., "error": ...}
    ...                                         end of input: leave
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]

_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
_PIECE_ELEMENTS = 1 << 20


@dataclass(frozen=True)
class Assignment:
    """The task of one member."""

    rank: int
    num_members: int
    num_elements: int
    codec: str
    chunk_elements: int
    host: str
    interface: str
    trust: str = "members"
    """For Gossamer: `open` or `members`."""
    packing: bool = True
    """For Gossamer: whether chunks are packed on their way, as in a run that is founded today."""


class Channel:
    """The member's side of the conversation. Whatever else prints goes to the log."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
        line = sys.stdin.readline()
        self.assignment = Assignment(**json.loads(line))

    def say(self, **message: Any) -> None:
        self._out.write(json.dumps(message) + "\n")

    def hear(self) -> dict[str, Any] | None:
        """The next message; None at the end. Blocks."""
        line = sys.stdin.readline()
        return json.loads(line) if line else None


def encode_assignment(assignment: Assignment) -> str:
    return json.dumps(asdict(assignment)) + "\n"


def vector_of(rank: int, num_elements: int) -> Vector:
    """Returns a member's vector: normally distributed, the same in every process that asks."""
    return np.random.default_rng(rank).standard_normal(num_elements, dtype=np.float32)


def sleep_until(seconds: float) -> None:
    """Sleeps until this time of the monotonic clock, which all processes of a machine share."""
    while (left := seconds - time.monotonic()) > 0:
        time.sleep(left)


class Usage:
    """Processor time and peak memory of this process and its children, from now on."""

    def __init__(self) -> None:
        for process in _family(os.getpid()):
            try:
                (process / "clear_refs").write_text("5")  # peak memory begins anew (proc(5))
            except OSError:
                continue
        self._cpu_seconds = self._total_cpu_seconds()

    def so_far(self) -> dict[str, float]:
        """`cpu_seconds` since the beginning, and `rss_bytes`, the sum of every process's peak."""
        peaks = [_peak_rss_bytes(process) for process in _family(os.getpid())]
        return {
            "cpu_seconds": self._total_cpu_seconds() - self._cpu_seconds,
            "rss_bytes": sum(peaks),
        }

    @staticmethod
    def _total_cpu_seconds() -> float:
        return sum(_cpu_seconds(process) for process in _family(os.getpid()))


def _family(pid: int) -> list[Path]:
    family = [Path(f"/proc/{pid}")]
    for task in family[0].glob("task/*/children"):
        try:
            children = task.read_text().split()
        except OSError:
            continue
        for child in children:
            family += _family(int(child))
    return family


def _cpu_seconds(process: Path) -> float:
    try:
        fields = (process / "stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS  # utime and stime


def _peak_rss_bytes(process: Path) -> int:
    try:
        for line in (process / "status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


class Part(NamedTuple):
    """A range of an average, and the ranks of those whose vectors are in it."""

    start: int
    stop: int
    ranks: list[int]


class Checker:
    """Compares results with numpy's mean. Only the first member does, the others say digests."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment

    def check(self, result: Vector, parts: Sequence[Part] | None = None) -> dict[str, Any]:
        """`digest` of the result, its `parts`, `error` (the largest) and `magnitude` (of the mean).

        Without `parts` all members have to be in the whole result.
        """
        if parts is None:
            parts = [Part(0, result.size, list(range(self._assignment.num_members)))]
        digest = hashlib.blake2b(np.ascontiguousarray(result).data, digest_size=16).hexdigest()
        if self._assignment.rank != 0:
            return {"digest": digest, "parts": parts}
        error = magnitude = 0.0
        for ranks in sorted({tuple(part.ranks) for part in parts}):
            mean = self._mean(ranks)
            for part in parts:
                if tuple(part.ranks) == ranks:
                    found = slice(part.start, part.stop)
                    error = max(error, _largest_difference(result[found], mean[found]))
                    magnitude = max(magnitude, float(np.abs(mean[found]).max()))
        return {"digest": digest, "parts": parts, "error": error, "magnitude": magnitude}

    def _mean(self, ranks: Sequence[int]) -> Vector:
        total = np.zeros(self._assignment.num_elements, np.float32)
        for rank in ranks:
            total += vector_of(rank, total.size)
        total /= np.float32(len(ranks))
        return total


def _largest_difference(result: Vector, mean: Vector) -> float:
    """Infinite if an element is not a number."""
    largest = 0.0
    for start in range(0, result.size, _PIECE_ELEMENTS):
        piece = slice(start, start + _PIECE_ELEMENTS)
        difference = np.abs(result[piece] - mean[piece])
        if not np.isfinite(difference).all():
            return float("inf")
        largest = max(largest, float(difference.max()))
    return largest
