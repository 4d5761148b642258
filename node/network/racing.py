"""Tries several ways to one end, each with a head start over the next (RFC 8305, section 5)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import trio

Way = TypeVar("Way")
Result = TypeVar("Result")


class RaceLost(Exception, Generic[Way]):
    """No way led to the end."""

    def __init__(self, failures: Sequence[Exception]) -> None:
        super().__init__("; ".join(map(str, failures)))
        self.failures = failures
        """The failure of each way, in the order of the ways."""


async def race(
    attempt: Callable[[Way], Awaitable[Result]],
    ways: Sequence[Way],
    head_start_seconds: float,
    failure: type[Exception],
    discard: Callable[[Result], None] | None = None,
) -> tuple[Way, Result]:
    """The first way that succeeds, and its result.

    The next way begins when the one before has failed, or after its head start. As soon as one has
    succeeded the others are cancelled, so an attempt must leave nothing behind when it is.

    Args:
        failure: what an attempt raises when its way does not lead to the end.
        discard: releases a result that is not returned: a second way may succeed in the same step,
            and the race may be cancelled when it is won. None where a result holds nothing.

    Raises:
        RaceLost: every attempt failed; at once if there are no ways.
    """
    won: list[tuple[Way, Result]] = []
    failures: list[Exception | None] = [None] * len(ways)

    async def run(place: int, ended: trio.Event, scope: trio.CancelScope) -> None:
        try:
            result = await attempt(ways[place])
        except failure as error:
            failures[place] = error
            ended.set()
            return
        # An attempt may end in the same step as the winner: the first one counts.
        won.append((ways[place], result))
        scope.cancel()

    returned = 0
    try:
        async with trio.open_nursery() as nursery:
            for place in range(len(ways)):
                ended = trio.Event()
                nursery.start_soon(run, place, ended, nursery.cancel_scope)
                with trio.move_on_after(head_start_seconds):
                    await ended.wait()
        returned = 1
    finally:
        if discard is not None:
            for _, result in won[returned:]:
                discard(result)
    if not won:
        raise RaceLost([each for each in failures if each is not None])
    return won[0]
