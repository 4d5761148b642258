"""Tries several ways to one end, each with a head start over the next (RFC 8305, section 5)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import trio

HEAD_START_TURNS = 16
"""Turns of the event loop that a way has besides its head start. A busy process comes late to all
its tasks, so the first way may have got nowhere for that reason, and another one makes it busier. A
dial takes some ten turns until its first packet is answered."""

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
    is_near: Callable[[Way], bool] = lambda _way: False,
) -> tuple[Way, Result]:
    """The first way that succeeds, and its result.

    The next way begins when the one before has failed, or after its head start. As soon as one has
    succeeded the others are cancelled, so an attempt must leave nothing behind when it is.

    Args:
        failure: what an attempt raises when its way does not lead to the end.
        is_near: says at the end of a way's head start whether it has come so far that the next one
            is to begin only if it fails.
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
                await _wait(ended, head_start_seconds)
                if is_near(ways[place]):
                    await ended.wait()
        returned = 1
    finally:
        if discard is not None:
            for _, result in won[returned:]:
                discard(result)
    if not won:
        raise RaceLost([each for each in failures if each is not None])
    return won[0]


async def _wait(ended: trio.Event, head_start_seconds: float) -> None:
    """Waits until an attempt has ended, or its head start has."""
    with trio.move_on_after(head_start_seconds):
        await ended.wait()
    for _ in range(HEAD_START_TURNS):
        if ended.is_set():
            break
        await trio.lowlevel.checkpoint()
