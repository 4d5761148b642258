"""The model behind `gossamer serve`: a process that has it, and a queue in front of that process.

The process makes one text at a time, since two at once take twice as long each on one device. It
is confined as the trainer is. If it dies, the next request starts another one from the same
parameters.
"""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Awaitable, Callable
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import structlog
import trio

from gossamer.node.base.settings.settings import Settings
from gossamer.node.runs.results.generating import (
    GenerateError,
    generator_command,
    load_model,
    read_answer,
    share_parameters,
)
from gossamer.node.runs.results.reading import StateOnDisk, read_state
from gossamer.node.storage.chain.chain_tree import Entry
from gossamer.node.storage.state_dir import StateDir, StateDirError
from gossamer.protocol.ids import Digest, short
from gossamer.trainer.ipc import memory
from gossamer.trainer.ipc.environment import computing_environment
from gossamer.trainer.ipc.generation import (
    LINE_BYTES_MAX,
    Done,
    FromGenerator,
    GenerateText,
    Loaded,
    Refused,
    ReloadModel,
    StopText,
    Text,
    ToGenerator,
    frame,
)

if TYPE_CHECKING:
    from trio_typing import TaskStatus

WAITING_MAX = 16
"""Requests that wait for their turn. More would wait for minutes, and their clients give up."""

WAIT_SECONDS_MAX = 120.0
"""Time that a request waits for its turn; clients give up after some minutes."""

ANSWER_SECONDS_MAX = 300.0
"""Time without a word of the process, after which it is ended. To read a long prompt takes minutes
on a CPU; a chat template that never ends takes longer."""

STOP_SECONDS_MAX = 5.0
"""Time that the process has to end a text that nobody wants. It notices between two tokens. While
it reads a long prompt it does not, and is ended: to start another takes some seconds."""

SEND_SECONDS_MAX = 60.0
"""Time to send the process a message. It reads from its first moments on, also while it is busy."""

EXIT_SECONDS_MAX = 1.0
"""Time from the last word of a process to its end."""

FOLLOW_SECONDS = 2.0
"""Between two looks for a new round. The look reads 65 bytes."""

FOLLOW_SECONDS_MAX = 60.0
"""The same, while the newest state cannot be read: each such look reads the state before it."""

# What the node's parts log of a round that is being committed meanwhile is no news of this server:
# the command keeps them to errors, and says itself which round it took.
log = structlog.wrap_logger(
    None,
    wrapper_class=structlog.make_filtering_bound_logger("info"),
    logger_factory_args=("serve",),
)

OnText = Callable[[str], Awaitable[None]]

OnTurn = Callable[[Entry], None]
"""Is told of the round whose state answers."""


class BusyError(Exception):
    """Too many requests wait already, or this one waited for too long. The message says which."""

    def __init__(self, problem: str, *, is_full: bool) -> None:
        super().__init__(problem)
        self.is_full = is_full


class RefusedError(Exception):
    """The model does not answer. The message says why."""

    def __init__(self, problem: str, *, is_request: bool) -> None:
        super().__init__(problem)
        self.is_request = is_request
        """Whether another request may be answered."""


class ServedModel:
    """A committed state that answers requests, one at a time in the order in which they came."""

    def __init__(self, settings: Settings, state: StateOnDisk, device: str) -> None:
        """Raises OSError if memory is short."""
        self._settings = settings
        self.manifest = state.manifest
        self.entry = state.entry
        """The round whose state answers now."""
        self._head_seen: Digest | None = state.entry.head
        self._descriptor = share_parameters(state)
        # Without the parameters, which are in the shared memory now.
        self._load = load_model(state, self._descriptor, device)
        self._folder = TemporaryDirectory(prefix="gossamer-serve-")
        self._turn = trio.Lock()
        self._num_waiting = 0
        self._numbers = itertools.count()
        self._process: trio.Process | None = None
        self._buffer = bytearray()

    async def run(
        self, *, follow: bool, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Keeps the model until cancelled, which ends its process. `task_status` is told when the
        model is loaded.

        Args:
            follow: whether to take each new round of the disk.

        Raises:
            RefusedError: the model cannot be loaded.
        """
        try:
            async with self._turn:
                await self._start()
            task_status.started()
            if not follow:
                await trio.sleep_forever()
            seconds = FOLLOW_SECONDS
            while True:
                await trio.sleep(seconds)
                seconds = min(2 * seconds, FOLLOW_SECONDS_MAX)
                if await self._follow():
                    seconds = FOLLOW_SECONDS
        finally:
            await self._end()
            os.close(self._descriptor)
            self._folder.cleanup()

    async def generate(
        self, request: GenerateText, on_text: OnText, on_turn: OnTurn = lambda _entry: None
    ) -> Done:
        """Makes one text when its turn has come, and gives its pieces to `on_text`. Cancelling
        ends the text.

        Args:
            on_turn: is called before the first piece. While a request waits, the model may become
                that of another round.

        Raises:
            BusyError: too many wait already, or the turn did not come.
            RefusedError: the model does not answer.
        """
        if self._num_waiting >= WAITING_MAX:
            raise BusyError(f"{WAITING_MAX} requests wait already; try again later", is_full=True)
        self._num_waiting += 1
        try:
            with trio.fail_after(WAIT_SECONDS_MAX):
                await self._turn.acquire()
        except trio.TooSlowError:
            raise BusyError(
                f"the turn did not come within {WAIT_SECONDS_MAX:.0f} s; try again later",
                is_full=False,
            ) from None
        finally:
            self._num_waiting -= 1
        try:
            on_turn(self.entry)
            if self._process is None:
                await self._start()
            return await self._generate(
                msgspec.structs.replace(request, number=next(self._numbers)), on_text
            )
        finally:
            self._turn.release()

    async def _generate(self, request: GenerateText, on_text: OnText) -> Done:
        answer: FromGenerator | None = None
        try:
            await self._send(request)
            while True:
                answer = await self._receive()
                if isinstance(answer, Text):
                    await on_text(answer.text)
                elif isinstance(answer, Done):
                    return answer
                else:
                    raise _refusal(answer)
        finally:
            if not isinstance(answer, Done | Refused):
                await self._stop(request.number)

    async def _stop(self, number: int) -> None:
        """Ends a text before its end, and its process if it does not hear."""
        if self._process is None:
            return
        with trio.CancelScope(shield=True) as scope:
            scope.deadline = trio.current_time() + STOP_SECONDS_MAX
            try:
                await self._send(StopText(number))
                while not isinstance(await self._receive(), Done | Refused):
                    pass
            except RefusedError:
                pass  # it has ended already
        if scope.cancelled_caught:
            await self._end()

    async def _follow(self) -> bool:
        """Takes the newest state of the disk if it is another one. Returns False if there is a
        newer one than was read, so that another look has to follow, though no later round may
        come."""
        state_dir = StateDir(self._settings.state_dir)
        try:
            newest = state_dir.read_head()
            if newest is None or newest == self._head_seen:
                return True
            state = await trio.to_thread.run_sync(read_state, self._settings)
        except (OSError, ValueError, StateDirError) as error:
            log.warning("the newest round cannot be read; the model stays", problem=str(error))
            return False
        if state.manifest.run_id != self.manifest.run_id:
            self._head_seen = newest
            log.warning("the state directory has another run now; the model stays")
            return True
        if state.is_newest:
            self._head_seen = newest
        # A state that is only the best of what could be read is no reason to go back.
        if state.is_newest or state.entry.round > self.entry.round:
            await self._take(state)
        return state.is_newest

    async def _take(self, state: StateOnDisk) -> None:
        """Answers from another state from now on."""
        if state.entry.head == self.entry.head:
            return
        async with self._turn:
            vector = memory.open_vector(self._descriptor, state.parameters.size)
            await trio.to_thread.run_sync(np.copyto, vector, state.parameters)
            self.entry = state.entry
            # A process that starts later reads the new parameters anyway.
            if self._process is not None:
                try:
                    await self._expect_loaded(ReloadModel())
                except RefusedError as error:
                    log.warning("the process with the model ended", problem=str(error))
        log.info("the model is that of a new round", round=state.entry.round)

    async def _start(self) -> None:
        """Starts the process and loads the model. Raises RefusedError."""
        self._buffer.clear()
        self._process = await trio.lowlevel.open_process(
            generator_command(self._settings, self._folder.name),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[self._descriptor],
            # Ctrl-C ends this server, which ends the process.
            start_new_session=True,
            env=computing_environment(),
        )
        await self._expect_loaded(self._load)
        log.debug("the model is loaded", state=short(self.entry.state_digest))

    async def _expect_loaded(self, message: ToGenerator) -> None:
        try:
            await self._send(message)
            answer = await self._receive()
        except BaseException:
            await self._end()
            raise
        if not isinstance(answer, Loaded):
            await self._end()
            raise _refusal(answer)

    async def _send(self, message: ToGenerator) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            # Shielded: half a frame would be read together with the next one.
            with trio.CancelScope(shield=True), trio.fail_after(SEND_SECONDS_MAX):
                await self._process.stdin.send_all(frame(message))
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            await self._say_gone()

    async def _receive(self) -> FromGenerator:
        """Returns the next message. Raises RefusedError if the process is gone or silent."""
        if self._process is None or self._process.stdout is None:
            await self._say_gone()
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            with trio.fail_after(ANSWER_SECONDS_MAX):
                while (end := self._buffer.find(b"\n")) < 0:
                    data = await self._process.stdout.receive_some()
                    self._buffer += data
                    if not data or len(self._buffer) > LINE_BYTES_MAX:
                        await self._say_gone()
        except trio.TooSlowError:
            log.warning("the process with the model is silent and is ended")
            await self._end()
            raise RefusedError(
                f"the model said nothing for {ANSWER_SECONDS_MAX:g} s and was ended: to read a "
                "long prompt takes long on a slow device; send a shorter one",
                is_request=False,
            ) from None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        try:
            return read_answer(line)
        except GenerateError as error:
            await self._end()
            raise RefusedError(str(error), is_request=False) from error

    async def _say_gone(self) -> None:
        # A process that ended by itself has its own exit status a moment later.
        status = await self._end(EXIT_SECONDS_MAX)
        raise RefusedError(
            f"the process with the model ended (status {status}); if memory is short, free some, "
            "and try again",
            is_request=False,
        )

    async def _end(self, patience_seconds: float = 0.0) -> int | None:
        """Ends the process, whatever it does, after some time in which it may end by itself.
        Returns its exit status."""
        process, self._process = self._process, None
        if process is None:
            return None
        with trio.CancelScope(shield=True):
            with trio.move_on_after(patience_seconds):
                await process.wait()
            process.kill()
            status = await process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    await stream.aclose()
        return status


def _refusal(answer: FromGenerator) -> RefusedError:
    if isinstance(answer, Refused):
        return RefusedError(answer.problem, is_request=answer.is_request)
    return RefusedError("the process with the model said something else", is_request=False)
