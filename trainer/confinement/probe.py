"""Tries in a child process whether NVIDIA's driver works for a confined process.

The driver does at its start what no documentation lists. Version 570 and later write the names of
their threads to /proc, for one, and end with error 304 where they cannot. So a confinement is tried
by a process that has nothing to lose, before this one gives up for good what cannot be undone.

Nothing here loads more than the standard library, see `landlock`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

SECONDS_MAX = 60.0
"""Time of one trial, for a driver that hangs. One that loads a kernel's module takes longest."""

_POLL_SECONDS = 0.01


def works(
    confine: Callable[[], object], use: Callable[[], bool], *, in_child: bool = False
) -> bool:
    """Whether `use` is true in a process that did `confine`, or (`in_child`) in a child of it, as a
    compiler or another device has. An error counts as false."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            confine()
            code = 0 if (works(_nothing, use) if in_child else use()) else 1
        except Exception:
            pass
        finally:
            os._exit(code)
    deadline = time.monotonic() + SECONDS_MAX * (2 if in_child else 1)
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status) == 0
        if time.monotonic() > deadline:
            break
        time.sleep(_POLL_SECONDS)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False


def cuda_starts() -> bool:
    """Whether NVIDIA's driver starts in this process and finds a card."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return False
    return count.value > 0


def _nothing() -> None:
    pass
