"""System calls that Python has no function for."""

from __future__ import annotations

import ctypes
import errno
import signal
import sys

_PR_SET_PDEATHSIG = 1

_Argument = int | bytes | ctypes.Array[ctypes.c_char] | None


def system_call(number: int, *arguments: _Argument) -> tuple[int, int]:
    """Returns the result, negative on an error, and the error's number (ENOSYS off Linux)."""
    return _call("syscall", number, *arguments)


def prctl(option: int, *arguments: _Argument) -> tuple[int, int]:
    """As `system_call`, for prctl(2), whose five arguments are filled up with zeros."""
    return _call("prctl", option, *arguments, *([0] * (4 - len(arguments))))


def end_with_parent() -> None:
    """Has this process killed when the thread that started it ends, also while it is stopped or
    hangs in a driver. Linux alone can do that."""
    prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


def _call(function: str, *arguments: _Argument) -> tuple[int, int]:
    if sys.platform != "linux":
        return -1, errno.ENOSYS
    library = ctypes.CDLL(None, use_errno=True)
    found = getattr(library, function)
    found.restype = ctypes.c_long
    # Every argument in a whole register: ctypes passes ints as 32 bits.
    whole = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result = int(found(*whole))
    return result, ctypes.get_errno() if result < 0 else 0
