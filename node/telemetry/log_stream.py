"""The stream that the log goes to, which may be broken or may be read by nobody.

A terminal that is stopped with Ctrl-S takes nothing, nor does a pager that shows its first page, a
program that hangs behind a pipe, or an ssh connection that has gone. A write to them does not
return. A thread writes there, so that the node goes on.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import select
import stat
import threading
from collections import deque
from collections.abc import Callable
from typing import TextIO

WAITING_BYTES_MAX = 2**20
"""Bytes that wait for a stream that takes nothing: the lines of hours."""

WRITE_SECONDS_MAX = 0.1
"""Wait for a stream to take a line. While it is not over, lines come in one order with what others
write there, and none is lost where the process ends. Then the stream counts as one that takes
nothing, and no line waits for it until it has taken them all."""

END_SECONDS_MAX = 2.0
"""Wait at the end of the process for a stream that takes nothing."""


def open_log_stream(stream: TextIO, gap_line: Callable[[int], str]) -> LossyStream | UnreadStream:
    """Returns a stream whose writes neither fail nor wait for a reader.

    Args:
        gap_line: returns the line that stands in the place of so many lines.
    """
    try:
        descriptor = stream.fileno()
        mode = os.fstat(descriptor).st_mode
    except (OSError, io.UnsupportedOperation):  # a text in memory
        return LossyStream(stream)
    if stat.S_ISREG(mode) or (stat.S_ISCHR(mode) and not os.isatty(descriptor)):
        return LossyStream(stream)
    unread = UnreadStream(stream, descriptor, gap_line)
    atexit.register(unread.drain, END_SECONDS_MAX)
    return unread


class LossyStream:
    """A stream that ignores write errors, such as those of a full disk.

    A node must not end because a log line cannot be written.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Returns the length of the text, whether it was written or not."""
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flushes the stream. Text that cannot be written now is tried again with the next line."""
        with contextlib.suppress(OSError):
            self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()


class UnreadStream:
    """A terminal, pipe or socket that may take nothing. Lines wait for it, so many and no more.

    The thread writes to the descriptor itself: a thread that hangs inside of Python's own stream
    would keep its lock, and Python could not end.
    """

    def __init__(self, stream: TextIO, descriptor: int, gap_line: Callable[[int], str]) -> None:
        self._stream = stream
        self._descriptor = descriptor
        self._gap_line = gap_line
        self._changed = threading.Condition()
        """Held for all below, and not while the thread writes."""
        self._waiting: deque[bytes] = deque()
        """The first one is being written."""
        self._waiting_bytes = 0
        self._left_out = 0
        self._takes_nothing = False
        threading.Thread(target=self._write_all, name="log", daemon=True).start()

    def write(self, text: str) -> int:
        """Hands a line to the thread, and waits a moment for it. Returns the text's length."""
        data = text.encode(self._stream.encoding or "utf-8", self._stream.errors or "replace")
        with self._changed:
            if self._left_out or self._waiting_bytes + len(data) > WAITING_BYTES_MAX:
                self._left_out += 1
                return len(text)
            self._put(data)
            if not self._takes_nothing:
                self._takes_nothing = not self._wait_for_all(WRITE_SECONDS_MAX)
        return len(text)

    def flush(self) -> None:
        """Does nothing: a line is never kept back."""

    def isatty(self) -> bool:
        return self._stream.isatty()

    def drain(self, timeout_seconds: float) -> None:
        """Waits until all lines are written, or for so long."""
        with self._changed:
            self._wait_for_all(timeout_seconds)

    def _put(self, data: bytes) -> None:
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        self._changed.notify_all()

    def _wait_for_all(self, timeout_seconds: float) -> bool:
        return self._changed.wait_for(lambda: not self._waiting, timeout_seconds)

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                data = self._waiting[0]
            self._write(data)
            with self._changed:
                self._waiting_bytes -= len(self._waiting.popleft())
                if self._waiting:
                    continue
                if self._left_out:
                    self._put(self._gap_line(self._left_out).encode("ascii", "replace"))
                    self._left_out = 0
                else:
                    self._takes_nothing = False
                    self._changed.notify_all()

    def _write(self, data: bytes) -> None:
        """Writes all of it, or as much as the stream takes before it breaks."""
        view = memoryview(data)
        with contextlib.suppress(OSError):
            while view:
                try:
                    view = view[os.write(self._descriptor, view) :]
                except BlockingIOError:  # another process of this terminal has set it so
                    waiter = select.poll()
                    waiter.register(self._descriptor, select.POLLOUT)
                    waiter.poll()
