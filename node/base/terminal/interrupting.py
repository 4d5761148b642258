"""Runs a command's asynchronous part so that Ctrl-C ends it in order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

T = TypeVar("T")


def run_interruptibly(function: Callable[[], Awaitable[T]]) -> T:
    """Runs an asynchronous function with `trio.run` and returns its result.

    A Ctrl-C is raised where the function itself waits. By default it is raised in whatever line
    runs at that moment. In the middle of the network's own tasks that leaves their locks taken and
    their scopes open, and closing the network may wait for them for ever.

    Raises:
        KeyboardInterrupt: Ctrl-C. It is inside an exception group only beside other errors.
    """
    try:
        return trio.run(function, restrict_keyboard_interrupt_to_checkpoints=True)
    except BaseExceptionGroup as group:  # a nursery's
        if group.split(KeyboardInterrupt)[1] is not None:
            raise
        raise KeyboardInterrupt from None


def only_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Returns the only exception inside nested groups, or the group if there are several."""
    inner: BaseException = group
    while isinstance(inner, BaseExceptionGroup) and len(inner.exceptions) == 1:
        inner = inner.exceptions[0]
    return inner
