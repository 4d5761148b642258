"""The daemon's side of the trainer: starts the worker, speaks with it, and outlives it.

    trainer = TrainerProcess(num_parameters)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervise)       # awaits `trainer.run()` again and again
        async for event in trainer.events:  # FromWorker messages; TrainerExit ends each life
            ...

The shared vectors belong to the daemon, not to the worker: `base` keeps its values when it dies,
and `pseudo_gradient` means nothing before Finished. A worker that gives no sign of life, or of
progress, is killed. This module must not import torch, which the worker does.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
import trio

from gossamer.node.base.awake_clock import AwakeClock
from gossamer.node.machine.shared_vectors import SharedVectors
from gossamer.node.machine.trainer_exit import TrainerExit, kernel_memory_kills
from gossamer.trainer.ipc import framing, messages, pipe
from gossamer.trainer.ipc.environment import computing_environment

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

# Python and torch are loaded before the first sign of life: up to a minute with CUDA from a cold
# network disk.
START_SECONDS_MAX = 180.0
# Signs of life come every two seconds, from a thread of its own: only a worker that is stopped, or
# a machine that does nothing but swap, is silent for so long.
SILENT_SECONDS_MAX = 15.0
# One micro-batch, file or shard takes a minute on the slowest machine that is worth its while.
STUCK_SECONDS_MAX = 300.0

_WATCH_SECONDS = 1.0

# Bounds on the worker's stderr: the last lines explain its death; the rest of a flood is not
# logged.
STDERR_LINES_KEPT = 20
STDERR_LINE_CHARACTERS_MAX = 500
STDERR_LINES_LOGGED_MAX = 200

_READ_BYTES = 64 * 1024

log = structlog.get_logger("trainer")


class TrainerGoneError(Exception):
    """There is no running worker to send to. A TrainerExit is or was among the events."""


TrainerEvent = messages.FromWorker | TrainerExit


class TrainerProcess:
    """One trainer over any number of worker processes, one at a time."""

    def __init__(
        self,
        num_parameters: int,
        *,
        folder: Path | None = None,
        command: Sequence[str] = (),
        has_audits: bool = False,
        has_several: bool = False,
        message_bytes_max: int = framing.MESSAGE_BYTES_MAX,
    ) -> None:
        """Reserves the shared memory, 8 bytes a parameter.

        Args:
            num_parameters: elements of each vector.
            folder: the only one that workers can write to, where the system can see to that. They
                make it. None: workers are not confined.
            command: replaces the worker's in tests.
            has_audits: whether there is a vector for parameters that are audited.
            has_several: whether several devices may train. Then a worker gives up the network only
                when their processes are connected.
            message_bytes_max: bound on a worker's message. A worker that says more is killed.

        Raises:
            OSError: not enough memory.
        """
        confined_to = [] if folder is None else [str(folder)]
        if confined_to and has_several:
            confined_to.append("several")
        worker = [sys.executable, "-m", "gossamer.trainer.worker", *confined_to]
        self._command = list(command) or worker
        self._message_bytes_max = message_bytes_max
        self.vectors = SharedVectors(num_parameters, has_audits=has_audits)
        self._events_in, self.events = trio.open_memory_channel[TrainerEvent](QUEUE_MESSAGES_MAX)
        self._outbox: trio.MemorySendChannel[messages.ToWorker] | None = None
        self._process: trio.Process | None = None
        self._closing = trio.Event()
        self._idle = trio.Event()
        self._idle.set()

    @property
    def pid(self) -> int | None:
        """Process id of the running worker; None without one."""
        return self._process.pid if self._process is not None else None

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
        the first message has to be Configure with `base_fd` and `pseudo_gradient_fd`. May be
        called again after it returned. Cancelled: the worker's stdin is closed and it gets
        `EXIT_SECONDS`, then SIGTERM and `TERMINATE_SECONDS`, then SIGKILL; no TrainerExit is
        reported then.

        Raises:
            OSError: the process could not be started.
        """
        assert self._outbox is None, "one worker at a time"
        self._closing, self._idle = trio.Event(), trio.Event()
        life = _Life(self._events_in, self._message_bytes_max)
        memory_kills = kernel_memory_kills()
        self._outbox, inbox = trio.open_memory_channel[messages.ToWorker](QUEUE_MESSAGES_MAX)
        try:
            async with self._started_process() as process:
                self._process = process
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(life.write, process, inbox)
                    nursery.start_soon(life.read_errors, process)
                    nursery.start_soon(life.watch, process)
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
                hung=life.hung,
                out_of_memory=_more_kills_than(memory_kills),
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
            pass_fds=self.vectors.fds,
            # A Ctrl-C at the terminal is the daemon's to handle; the end of stdin ends the worker.
            start_new_session=True,
            env=computing_environment(),
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
        # `run` ends with the worker's stdout, unless no task reads the events.
        await trio.sleep(LAST_WORDS_SECONDS)
        scope.cancel()


class _Life:
    """The pipes of one worker."""

    def __init__(
        self, events: trio.MemorySendChannel[TrainerEvent], message_bytes_max: int
    ) -> None:
        self._events = events
        self._message_bytes_max = message_bytes_max
        self.failure = ""
        self.hung = False
        self._stalls = AwakeClock()
        self._heard_seconds = -math.inf
        """Time at which the worker gave the last sign of life; -inf before the first."""
        self._delivering = False
        """Whether events of the worker still wait for the daemon, so that no more is read."""
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
                    await process.stdin.send_all(framing.encode(message))
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    return

    async def read(self, process: trio.Process) -> None:
        """Hands on the worker's messages until its stdout ends or is not understood."""
        assert process.stdout is not None
        splitter = framing.MessageSplitter(self._message_bytes_max)
        while data := await process.stdout.receive_some(_READ_BYTES):
            try:
                received = [framing.decode_from_worker(body) for body in splitter.feed(data)]
            except pipe.MessageError as error:
                self.failure = f"what it sends is of no use: {error}"
                process.kill()
                return
            self._delivering = True
            for message in received:
                await self._take(process, message)
            self._delivering = False
            self._heard_seconds = trio.current_time()

    async def _take(self, process: trio.Process, message: messages.FromWorker) -> None:
        if isinstance(message, messages.Alive):
            if message.busy_seconds > STUCK_SECONDS_MAX:
                self._hangs(process, f"it got no further for {message.busy_seconds:.0f} s")
            return
        if isinstance(message, messages.Failed):
            self.failure = message.reason
        await self._events.send(message)

    async def watch(self, process: trio.Process) -> None:
        """Kills a worker that gives no sign of life."""
        started = trio.current_time()
        async with trio.open_nursery() as nursery:
            await nursery.start(self._stalls.run)
            while True:
                await trio.sleep(_WATCH_SECONDS)
                if self._delivering:
                    continue
                has_begun = self._heard_seconds > started
                silent_seconds = self._stalls.awake_since(max(self._heard_seconds, started))
                if silent_seconds > (SILENT_SECONDS_MAX if has_begun else START_SECONDS_MAX):
                    self._hangs(process, f"it gave no sign of life for {silent_seconds:.0f} s")

    def _hangs(self, process: trio.Process, why: str) -> None:
        # Nothing gentler: a stopped process does not act on other signals.
        self.hung, self.failure = True, why
        process.kill()

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


def _more_kills_than(before: int | None) -> bool | None:
    """Returns whether the kernel has killed for lack of memory since; None if it does not say."""
    now = kernel_memory_kills()
    return None if before is None or now is None else now > before
