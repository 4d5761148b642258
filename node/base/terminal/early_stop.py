"""The signals that ask a node to leave, before there is a node that could leave."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def stopped_in_order() -> Iterator[None]:
    """Makes SIGTERM, and the SIGHUP of a closed terminal, end the process in order with status 0.

    Without it they end the process on the spot, and the files by which commands find the node stay.
    A signal that was ignored from the start, as `nohup` does with SIGHUP, stays ignored.

    Within the block such a signal does what Ctrl-C does, which trio raises only where it is safe.
    Python drops an exception that is raised in certain callbacks, as there are while it imports. So
    the end of the block looks again.

    Raises:
        SystemExit: a signal came.
    """
    is_told = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal is_told
        is_told = True
        ctrl_c = signal.getsignal(signal.SIGINT)
        (ctrl_c if callable(ctrl_c) else signal.default_int_handler)(number, frame)

    taken = [each for each in _SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in taken}
    try:
        yield
    except BaseException:
        if not is_told:
            raise  # else it is what the signal broke off
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if is_told:
        print("gossamer: stopped before the node took part in a run", file=sys.stderr)
        raise SystemExit(0)
