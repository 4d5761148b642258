"""Curves of a run for TensorBoard or wandb, beside the node's own page.

`RunLog` puts a record of an inner step or of a round into a queue for each place, and never waits.
A task of each place takes what is there and writes it in a thread. Where the disk is slower than
the training, the queue is full and records are left out; where it fails, the log says so once and
the node tries again later. Training goes on in any case.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import structlog
import trio

from gossamer.node.base.threads import RunInThread, run_abandonable

QUEUE_MAX = 256
"""Records that wait for a place, about 100 KiB. Inner steps alone fill it in twenty minutes."""

STEP_SECONDS = 5.0
"""Time between two records of inner steps, at least: 10 MB a day. The curve of a day has 17,000
points, and a screen shows some thousand."""

RETRY_SECONDS = 60.0
"""Time from a failure of a place until the next try."""

CLOSE_SECONDS = 5.0
"""Time that the node, when it leaves, gives a place to write what waits and to close its files."""

log = structlog.get_logger("node")


class Record(NamedTuple):
    """Values at one moment of a run."""

    name: str
    """Of the curve's horizontal axis: `step` or `round`."""
    number: int
    """The place on that axis."""
    unix_seconds: float
    values: Mapping[str, float]
    """By name, such as `step/loss`; all are finite."""


class Place(Protocol):
    """A place to which the records go. A thread calls its methods, which block, one at a time."""

    name: str

    def write(self, records: Sequence[Record]) -> None:
        """Writes records. Raises OSError, or what its package raises."""

    def close(self) -> None:
        """Ends the files. A later `write` begins new ones."""


def record_of(
    axis: str, number: int, unix_seconds: float, values: Mapping[str, float | None]
) -> Record:
    """Returns a record without the values that are not known or not finite."""
    known = {
        f"{axis}/{name}": float(value)
        for name, value in values.items()
        if value is not None and math.isfinite(value)
    }
    return Record(axis, number, unix_seconds, known)


class RunLog:
    """Gives each record to all places. Its methods are for the event loop."""

    def __init__(
        self,
        places: Sequence[Place],
        unix_seconds: Callable[[], float],
        run_in_thread: RunInThread = run_abandonable,
    ) -> None:
        """
        Args:
            unix_seconds: the time of a record.
            run_in_thread: leaves a thread that hangs to itself when its task is cancelled.
        """
        self._writers = [_Writer(place, run_in_thread) for place in places]
        self._unix_seconds = unix_seconds
        self._due_seconds = -math.inf

    @property
    def wants_step(self) -> bool:
        """Whether a record of an inner step is due."""
        return bool(self._writers) and trio.current_time() >= self._due_seconds

    def step(self, number: int, values: Mapping[str, float | None]) -> None:
        """Notes an inner step, if one is due. `number`: its place in the schedule."""
        if self.wants_step:
            self._due_seconds = trio.current_time() + STEP_SECONDS
            self._put(record_of("step", number, self._unix_seconds(), values))

    def round(self, number: int, values: Mapping[str, float | None]) -> None:
        """Notes a round that has ended."""
        self._put(record_of("round", number, self._unix_seconds(), values))

    def _put(self, record: Record) -> None:
        for writer in self._writers:
            writer.put(record)

    async def run(self) -> None:
        """Writes until cancelled, and then what still waits."""
        async with trio.open_nursery() as nursery:
            for writer in self._writers:
                nursery.start_soon(writer.run)


class _Writer:
    """The queue of one place, and the task that empties it."""

    def __init__(self, place: Place, run_in_thread: RunInThread) -> None:
        self._place = place
        self._run_in_thread = run_in_thread
        self._send, self._receive = trio.open_memory_channel[Record](QUEUE_MAX)
        self._num_left_out = 0
        self._is_failing = False
        self._retry_seconds = -math.inf

    def put(self, record: Record) -> None:
        try:
            self._send.send_nowait(record)
        except trio.WouldBlock:
            self._num_left_out += 1

    async def run(self) -> None:
        try:
            while True:
                await self._write([await self._receive.receive(), *self._waiting()])
                await trio.sleep_until(self._retry_seconds)
        finally:
            with trio.CancelScope(deadline=trio.current_time() + CLOSE_SECONDS, shield=True):
                if not self._is_failing:
                    await self._write(self._waiting())
                    await self._do(self._place.close)

    def _waiting(self) -> list[Record]:
        """Takes what is in the queue."""
        records: list[Record] = []
        try:
            while True:
                records.append(self._receive.receive_nowait())
        except trio.WouldBlock:
            return records

    async def _write(self, records: Sequence[Record]) -> None:
        if not records:
            return
        if not await self._do(lambda: self._place.write(records)):
            self._num_left_out += len(records)
            await self._do(self._place.close)
            self._retry_seconds = trio.current_time() + RETRY_SECONDS
            return
        self._is_failing = False
        if self._num_left_out:
            log.warning(
                "records of the run are left out of its log: the disk is too slow, or failed",
                place=self._place.name,
                records=self._num_left_out,
            )
            self._num_left_out = 0

    async def _do(self, work: Callable[[], None]) -> bool:
        """Returns whether the work was done; says once why not."""
        try:
            await self._run_in_thread(work)
        except Exception as error:  # packages of others raise what they like
            if not self._is_failing:
                log.warning(
                    "the log of the run cannot be written, and the node tries again later",
                    place=self._place.name,
                    error=str(error) or type(error).__name__,
                )
            self._is_failing = True
            return False
        return True
