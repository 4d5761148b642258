"""The daemon's side of the trainer: starts the worker, speaks with it, and outlives it.

    trainer = TrainerProcess(num_parameters)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervise)       # awaits `trainer.run()` again and again, with Backoff
        async for event in trainer.events:  # FromWorker messages; TrainerExit ends each life
            ...

`base` and `pending` belong to the daemon, not to the worker: they keep their values when it dies.
This module must not import torch, which the worker does.
"""

from __future__ import annotations

import dataclasses
import math
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import structlog
import trio
from numpy.typing import NDArray

from gossamer.trainer import memory, messages

if TYPE_CHECKING:
    from trio_typing import TaskStatus

# Messages to the worker that wait for the pipe, and from the worker that wait for the daemon. When
# the daemon does not read its own events, the worker waits in its next Step: nothing piles up.
QUEUE_MESSAGES_MAX = 256

# After Exit or the end of its stdin the worker needs one step, at most one evaluation; a large
# model on a slow machine takes seconds for a step, and nothing is lost when it is cut short.
EXIT_SECONDS = 5.0
# SIGTERM is handled between two instructions of Python: only a call that hangs in a driver takes
# longer.
TERMINATE_SECONDS = 2.0
# Reading what a dead worker left in its pipes takes milliseconds, unless a child of its holds them
# open.
LAST_WORDS_SECONDS = 2.0

# What the worker writes on stderr: the last lines explain its death; the rest of a flood is not
# logged.
STDERR_LINES_KEPT = 20
STDERR_LINE_CHARACTERS_MAX = 500
STDERR_LINES_LOGGED_MAX = 200

_READ_BYTES = 64 * 1024

log = structlog.get_logger("trainer")


class TrainerGoneError(Exception):
    """There is no running worker to send to. A TrainerExit is or was among the events."""


@dataclass(frozen=True)
class TrainerExit:
    """How a worker's life ended."""

    code: int | None
    """Exit code, or None if a signal ended it."""
    signal: int | None
    """Number of the signal that ended it, or None."""
    wanted: bool
    """Whether `close` or a cancellation asked for it."""
    failure: str
    """The reason of its Failed message, or empty."""
    stderr: tuple[str, ...]
    """Its last lines on stderr, at most `STDERR_LINES_KEPT`."""
    lived_seconds: float

    @property
    def description(self) -> str:
        """One sentence for people."""
        if self.failure:
            return f"the trainer failed: {self.failure}"
        if self.signal is not None:
            name = (
                signal.Signals(self.signal).name
                if self.signal in set(signal.Signals)
                else str(self.signal)
            )
            hint = " (out of memory?)" if self.signal == signal.SIGKILL and not self.wanted else ""
            return f"the trainer was ended by {name}{hint}"
        last = f": {self.stderr[-1]}" if self.code and self.stderr else ""
        return f"the trainer exited with code {self.code}{last}"


@dataclass(frozen=True)
class Backoff:
    """How long to wait before the worker is started again. Pure: `after` gives the next state."""

    first_seconds: float = 0.5
    factor: float = 2.0
    seconds_max: float = 60.0
    healthy_seconds: float = 120.0
    """A worker that lived this long was well: the count starts again."""
    failures: int = 0

    def after(self, lived_seconds: float) -> Backoff:
        """The state after a worker died that had lived so long."""
        failures = 1 if lived_seconds >= self.healthy_seconds else self.failures + 1
        return dataclasses.replace(self, failures=failures)

    @property
    def delay_seconds(self) -> float:
        """0 before the first failure; then `first_seconds`, growing by `factor` up to
        `seconds_max`."""
        if self.failures == 0:
            return 0.0
        # The exponent is bounded so that a worker that fails for weeks does not overflow a float.
        exponent = min(
            self.failures - 1,
            math.ceil(math.log(self.seconds_max / self.first_seconds, self.factor)),
        )
        return min(self.first_seconds * self.factor**exponent, self.seconds_max)


TrainerEvent = messages.FromWorker | TrainerExit


class TrainerProcess:
    """One trainer over any number of worker processes, one at a time."""

    def __init__(self, num_parameters: int, *, command: Sequence[str] = ()) -> None:
        """Reserves the shared memory, 8 bytes a parameter. `command` replaces the worker's in
        tests.

        Raises:
            OSError: not enough memory.
        """
        self._command = list(command) or [sys.executable, "-m", "gossamer.trainer.worker"]
        self._fds: list[int] = []
        try:
            for name in ("gossamer-base", "gossamer-pending"):
                self._fds.append(memory.create(name, num_parameters))
            self.base_fd, self.pending_fd = self._fds
            self.base: NDArray[np.float32] = memory.open_vector(self.base_fd, num_parameters)
            """(num_parameters,) of the newest committed state; the daemon writes, the worker
            reads."""
            self.pending: NDArray[np.float32] = memory.open_vector(self.pending_fd, num_parameters)
            """(num_parameters,) of work that the swarm has not taken; the worker adds, the daemon
            takes away."""
        except BaseException:
            self.release()
            raise
        self._events_in, self.events = trio.open_memory_channel[TrainerEvent](QUEUE_MESSAGES_MAX)
        self._outbox: trio.MemorySendChannel[messages.ToWorker] | None = None
        self._process: trio.Process | None = None
        self._closing = trio.Event()
        self._idle = trio.Event()
        self._idle.set()

    @property
    def pid(self) -> int | None:
        """Of the running worker."""
        return self._process.pid if self._process is not None else None

    def release(self) -> None:
        """Closes the descriptors; call when no `run` is under way. `base` and `pending` stay
        mapped while somebody holds them."""
        while self._fds:
            os.close(self._fds.pop())

    async def send(self, message: messages.ToWorker) -> None:
        """Queues a message; waits while `QUEUE_MESSAGES_MAX` are queued. Cancelled: it was not
        queued.

        Raises:
            TrainerGoneError: no worker is running. (A message that was queued when the worker died
            is lost.)
        """
        outbox = self._outbox
        if outbox is None:
            raise TrainerGoneError("the trainer is not running")
        try:
            await outbox.send(message)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise TrainerGoneError("the trainer is gone") from error

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> TrainerExit:
        """One life of a worker: starts it, moves messages, returns how it ended (also the last
        event).

        `task_status.started` is called when messages can be sent; nothing is sent by itself, so
        the first message has to be Configure with `base_fd` and `pending_fd`. May be called again
        after it returned. Cancelled: the worker's stdin is closed and it gets `EXIT_SECONDS`, then
        SIGTERM and `TERMINATE_SECONDS`, then SIGKILL; no TrainerExit is reported then.

        Raises:
            OSError: the process could not be started.
        """
        assert self._outbox is None, "one worker at a time"
        self._closing, self._idle = trio.Event(), trio.Event()
        life = _Life(self._events_in)
        started = trio.current_time()
        self._outbox, inbox = trio.open_memory_channel[messages.ToWorker](QUEUE_MESSAGES_MAX)
        try:
            async with self._started_process() as process:
                self._process = process
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(life.write, process, inbox)
                    nursery.start_soon(life.read_errors, process)
                    nursery.start_soon(self._close_when_asked, process, nursery.cancel_scope)
                    task_status.started()
                    await life.read(process)
                    # stdout has ended: the worker is on its way out, or it is no worker any more.
                    await _end(process)
                    with trio.move_on_after(LAST_WORDS_SECONDS):
                        await life.errors_read.wait()
                    nursery.cancel_scope.cancel()
            status = process.returncode
            assert status is not None
            exit_ = TrainerExit(
                code=status if status >= 0 else None,
                signal=-status if status < 0 else None,
                wanted=self._closing.is_set(),
                failure=life.failure,
                stderr=tuple(life.stderr),
                lived_seconds=trio.current_time() - started,
            )
        finally:
            self._outbox.close()
            self._outbox = self._process = None
            inbox.close()
            self._idle.set()
        await self._events_in.send(exit_)
        return exit_

    async def close(self) -> None:
        """Ends the running worker in order: Exit, then after `EXIT_SECONDS` SIGTERM, after
        `TERMINATE_SECONDS` SIGKILL. Returns when it is gone (at once if none runs); its events
        must be read meanwhile or fit the queue. `run` returns as usual. Cancelled: the ending goes
        on."""
        self._closing.set()
        await self._idle.wait()

    @asynccontextmanager
    async def _started_process(self) -> AsyncIterator[trio.Process]:
        process = await trio.lowlevel.open_process(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=self._fds,
            # A Ctrl-C at the terminal is the daemon's to handle; the end of stdin ends the worker.
            start_new_session=True,
        )
        try:
            yield process
        finally:
            with trio.CancelScope(shield=True):
                assert process.stdin is not None
                assert process.stdout is not None
                assert process.stderr is not None
                await process.stdin.aclose()
                await _end(process)
                await process.stdout.aclose()
                await process.stderr.aclose()

    async def _close_when_asked(self, process: trio.Process, scope: trio.CancelScope) -> None:
        await self._closing.wait()
        with trio.move_on_after(EXIT_SECONDS):
            with suppress(TrainerGoneError):
                await self.send(messages.Exit())
            await process.wait()
        await _end(process, 0.0)
        # `run` ends with the worker's stdout, unless nobody reads the events.
        await trio.sleep(LAST_WORDS_SECONDS)
        scope.cancel()


class _Life:
    """The pipes of one worker."""

    def __init__(self, events: trio.MemorySendChannel[TrainerEvent]) -> None:
        self._events = events
        self.failure = ""
        self.stderr: deque[str] = deque(maxlen=STDERR_LINES_KEPT)
        self.errors_read = trio.Event()

    async def write(
        self, process: trio.Process, inbox: trio.MemoryReceiveChannel[messages.ToWorker]
    ) -> None:
        """Sends what is queued until the worker stops reading. Cancelled: a message may be cut in
        two, so nothing may be written after it."""
        assert process.stdin is not None
        with inbox:
            async for message in inbox:
                try:
                    await process.stdin.send_all(messages.encode(message))
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    return

    async def read(self, process: trio.Process) -> None:
        """Hands on the worker's messages until its stdout ends or is not understood."""
        assert process.stdout is not None
        splitter = messages.MessageSplitter()
        while data := await process.stdout.receive_some(_READ_BYTES):
            try:
                received = [messages.decode_from_worker(body) for body in splitter.feed(data)]
            except messages.MessageError as error:
                self.failure = str(error)
                process.kill()
                return
            for message in received:
                if isinstance(message, messages.Failed):
                    self.failure = message.reason
                await self._events.send(message)

    async def read_errors(self, process: trio.Process) -> None:
        """Logs the worker's stderr line by line and keeps the end of it."""
        assert process.stderr is not None
        partial, num_lines = "", 0
        try:
            while data := await process.stderr.receive_some(_READ_BYTES):
                *lines, partial = (partial + data.decode("utf-8", "replace")).split("\n")
                if len(partial) > STDERR_LINE_CHARACTERS_MAX:
                    lines, partial = [*lines, partial], ""
                for line in lines:
                    num_lines += 1
                    self._keep(line, num_lines <= STDERR_LINES_LOGGED_MAX)
            if partial:
                self._keep(partial, num_lines < STDERR_LINES_LOGGED_MAX)
        finally:
            self.errors_read.set()

    def _keep(self, line: str, logged: bool) -> None:
        if line := line.strip()[:STDERR_LINE_CHARACTERS_MAX]:
            self.stderr.append(line)
            if logged:
                log.warning("the trainer says", line=line)


async def _end(process: trio.Process, exit_seconds: float = EXIT_SECONDS) -> None:
    """Waits for the end of a process that was told to end, and makes it end."""
    with trio.move_on_after(exit_seconds):
        await process.wait()
    if process.returncode is None:
        process.terminate()
        with trio.move_on_after(TERMINATE_SECONDS):
            await process.wait()
    if process.returncode is None:
        process.kill()
        await process.wait()
