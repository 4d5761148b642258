"""The processes of a trainer's further devices, as the first one sees them.

A thread for each reads its words. A process that ends before it is told to is the end of the
trainer: the main thread learns it at the next word that it waits for, and if it does not, because
it waits for the daemon or in a collective, `on_lost` is called after `LOST_SECONDS`.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO, TypeVar

import msgspec

from gossamer.trainer.inner_step.gradients import TrainerError
from gossamer.trainer.ranks import messages

START_SECONDS_MAX = 180.0
"""torch is loaded before the first word: up to a minute with CUDA from a cold network disk."""

ANSWER_SECONDS_MAX = 240.0
"""A micro-batch takes a minute on the slowest device that is worth its while. It is less than what
the daemon gives the whole trainer (`STUCK_SECONDS_MAX`), which then hears which device it was."""

LOST_SECONDS = 10.0
"""The main thread needs milliseconds to see the end of a process, where it looks."""

END_SECONDS = 2.0
"""A process ends itself when its stdin does. It is killed after this time."""

_WORDS_MAX = 1024
"""Words that are read ahead: one for each micro-batch."""

_T = TypeVar("_T", bound=messages.FromFollower)


class _Lost(msgspec.Struct, frozen=True):
    """A process has ended."""

    how: str


_Word = tuple[int, messages.FromFollower | _Lost]


class Followers:
    """Processes of ranks 1 and up."""

    def __init__(
        self,
        starts: Sequence[messages.Start],
        on_progress: Callable[[], None],
        on_lost: Callable[[str], None],
    ) -> None:
        """Starts the processes and returns without waiting for them.

        Args:
            starts: for each rank from 1 on.
            on_progress: is called at every sign of work, in the thread that waits for it.
            on_lost: is called with the reason, in another thread, if a process has ended and nobody
                asks for its words.

        Raises:
            OSError: a process cannot be started.
        """
        self._on_progress, self._on_lost = on_progress, on_lost
        self._words: queue.Queue[_Word] = queue.Queue(_WORDS_MAX)
        self._is_closing = False
        self._ending = threading.RLock()
        """A signal's handler may end them while this thread does."""
        self._devices = [start.configure.device for start in starts]
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            for start in starts:
                self._start(start)
        except BaseException:
            self.close()
            raise

    def _start(self, start: messages.Start) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "gossamer.trainer.ranks.follower"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._processes.append(process)
        assert process.stdout is not None
        number = len(self._processes) - 1
        threading.Thread(
            target=self._read, args=(number, process.stdout), name=f"rank-{start.rank}", daemon=True
        ).start()
        self._tell_one(number, start)

    def tell(self, *each: messages.ToFollower) -> None:
        """Sends a message to each: one for all, or as many as there are processes.

        Raises:
            TrainerError: one of them is gone, or the message is too long.
        """
        for number in range(len(self._processes)):
            self._tell_one(number, each[number if len(each) > 1 else 0])

    def hear(self, kind: type[_T], seconds_max: float = 0.0) -> list[_T]:
        """The next message of a kind from each, in the order of ranks.

        Args:
            seconds_max: limit of the time without a sign of work; 0 is the usual one.

        Raises:
            TrainerError: one of them cannot go on, is gone, or gives no sign of work.
        """
        limit = seconds_max or ANSWER_SECONDS_MAX
        heard = dict.fromkeys(range(len(self._processes)), time.monotonic())
        found: dict[int, _T] = {}
        while heard:
            slowest = min(heard, key=lambda number: heard[number])
            try:
                left = heard[slowest] + limit - time.monotonic()
                number, word = self._words.get(timeout=max(0.0, left))
            except queue.Empty:
                raise TrainerError(
                    f"{self._process_of(slowest)} gave no sign of work for {limit:.0f} s"
                ) from None
            self._require_well(number, word)
            self._on_progress()
            if isinstance(word, kind):
                found[number] = word
                heard.pop(number, None)
            elif number in heard:
                heard[number] = time.monotonic()
        return [found[number] for number in sorted(found)]

    def require_alive(self) -> None:
        """Waits a moment for the end of a process, where something failed that may come from it.

        Raises:
            TrainerError: one is gone, or cannot go on.
        """
        ends = time.monotonic() + END_SECONDS
        with suppress(queue.Empty):
            while True:  # signs of work of the others do not lengthen the wait
                left = max(0.0, ends - time.monotonic())
                self._require_well(*self._words.get(timeout=left))

    def close(self) -> None:
        """Ends all processes in about `END_SECONDS`. May be called from any thread, and twice."""
        self._is_closing = True
        with self._ending:
            for process in self._processes:
                _hang_up(process)
            ends = time.monotonic() + END_SECONDS
            for process in self._processes:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, ends - time.monotonic()))
                if process.returncode is None:
                    process.kill()
                    process.wait()
                assert process.stdin is not None
                # The handler of a signal cannot close what its own thread is writing to.
                with suppress(OSError, RuntimeError):
                    process.stdin.close()

    def _tell_one(self, number: int, message: messages.ToFollower) -> None:
        stdin = self._processes[number].stdin
        assert stdin is not None
        try:
            messages.write(stdin, message)
        except ValueError as error:
            raise TrainerError(f"a step is too large for several devices: {error}") from error
        except OSError as error:
            self.require_alive()
            raise TrainerError(f"{self._process_of(number)} reads no more: {error}") from error

    def _require_well(self, number: int, word: messages.FromFollower | _Lost) -> None:
        match word:
            case _Lost(how):
                raise TrainerError(f"{self._process_of(number)} {how}")
            case messages.Failed(reason):
                raise TrainerError(f"{self._process_of(number)} cannot go on: {reason}")

    def _process_of(self, number: int) -> str:
        return f"the process of device {number + 2} ({self._devices[number]})"

    def _read(self, number: int, stdout: IO[bytes]) -> None:
        """Hands on the words of one process until its end. Runs in a thread of its own."""
        with stdout, suppress(ValueError, msgspec.DecodeError):
            while (body := messages.read(stdout)) is not None:
                self._words.put((number, messages.from_follower.decode(body)))
        if self._is_closing:
            return
        how = _end_of(self._processes[number])
        self._words.put((number, _Lost(how)))
        time.sleep(LOST_SECONDS)
        if not self._is_closing:
            self._on_lost(f"{self._process_of(number)} {how}")


def _hang_up(process: subprocess.Popen[bytes]) -> None:
    """Ends the stdin of a process. `close` would wait for a thread that is in the middle of a
    write, and so for a process that is stopped and reads nothing."""
    assert process.stdin is not None
    with suppress(OSError, ValueError), open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), process.stdin.fileno(), inheritable=False)


def _end_of(process: subprocess.Popen[bytes]) -> str:
    """How a process ended whose stdout has ended, in words."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_SECONDS)
    if process.returncode is None:
        return "says no more"
    if process.returncode >= 0:
        return f"ended with status {process.returncode}"
    number = -process.returncode
    known = number in set(signal.Signals)
    return f"was killed ({signal.Signals(number).name if known else f'signal {number}'})"
