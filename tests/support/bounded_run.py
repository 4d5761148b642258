"""`trio.run` with an end, for tests of real sockets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio


def run(case: Callable[[], Awaitable[object]], seconds: float = 30) -> None:
    """Runs a case. Raises trio.TooSlowError if it does not end in time."""

    async def bounded() -> None:
        with trio.fail_after(seconds):
            await case()

    trio.run(bounded)
