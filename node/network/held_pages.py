"""The places for pages that lie in memory until their readers have them: few, and none for long
while others wait.

A page of commit records or of statements has up to 256 KiB, and the question for it next to
nothing. A reader that takes it slowly, or not at all, keeps it in this node's memory until the
answer is given up. Without a bound 200 slow strangers made a node hold 550 MB of records, and 200
slow members 450 MB of statements.

Rules
-----
- Strangers and members have places of their own, so neither keeps the other out.
- Where all places are taken, a newcomer waits, in the order of the questions.
- The page that has been held for the longest gives way to one that waits, if it has been held for
  `HELD_SECONDS`. The oldest and not the slowest: a byte now and then makes a reader look busy.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from gossamer.node.network.transport import StreamClosed

RECORD_PAGES_MAX = 64
"""Pages of records that are held for peers of one kind, 16 MiB of them. With `HELD_SECONDS` 32 of
them give way in a second, however many readers are slow: a newcomer waits some seconds."""

STATEMENT_PAGES_MAX = 32
"""Pages of statements that are held for peers of one kind. A peer that waits too long compares its
store with another peer's."""

HELD_SECONDS = 2.0
"""Time that each reader has for its page. The longest page takes so long on a line of 1 Mbit/s."""


class HeldPages:
    """The pages of one sort that one node holds."""

    def __init__(self, pages_max: int) -> None:
        """`pages_max`: of strangers, and as many of members."""
        self._of_members = _Places(pages_max)
        self._of_strangers = _Places(pages_max)

    @asynccontextmanager
    async def place(self, *, is_member: bool) -> AsyncIterator[None]:
        """A context in which a page for a peer is held.

        Raises:
            StreamClosed: the page gave way to another one.
        """
        places = self._of_members if is_member else self._of_strangers
        with trio.CancelScope() as answer:
            await places.enter(answer)
            try:
                yield
            finally:
                places.leave(answer)
        if answer.cancelled_caught:
            raise StreamClosed("a page that others wait behind was not read in time")


class _Places:
    """The places for pages of peers of one kind."""

    def __init__(self, pages_max: int) -> None:
        self._pages_max = pages_max
        self._held: dict[trio.CancelScope, float] = {}
        """By the scope of the answer: the local time since which its page is held, the oldest
        first."""
        self._line = trio.Lock()
        self._left = trio.Event()
        """Is set when a page has left."""

    async def enter(self, answer: trio.CancelScope) -> None:
        """Returns when there is a place for a page. Does not wait while one is free.

        Args:
            answer: is cancelled when the page gives way.
        """
        if len(self._held) >= self._pages_max or self._line.locked():
            async with self._line:
                while len(self._held) >= self._pages_max:
                    await self._free_one()
        self._held[answer] = trio.current_time()

    async def _free_one(self) -> None:
        """Returns when a page has left, or has had its time and gives way."""
        oldest, since_seconds = next(iter(self._held.items()))
        with trio.move_on_at(since_seconds + HELD_SECONDS) as time_of_oldest:
            await self._left.wait()
        if time_of_oldest.cancelled_caught:
            oldest.cancel()
            self.leave(oldest)  # its place is free at once

    def leave(self, answer: trio.CancelScope) -> None:
        """An answer has ended."""
        if self._held.pop(answer, None) is not None:
            self._left.set()
            self._left = trio.Event()
