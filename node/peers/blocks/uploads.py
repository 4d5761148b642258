"""What this node uploads of model, corpus and chain: members of its rounds first, strangers by a
budget.

Blocks, records and signed checkpoints of the chain, and the manifest are served to every peer that
the run admits, because a newcomer needs them before it can be of use. An identity costs nothing, so
one stranger with many streams could take the whole line and much of the processor. Strangers share
a budget of bytes a second, in equal parts by peer, and give way to members. Members have no budget
here: what they fetch, the round waits for.

An answer waits for its turn and is not refused: a newcomer that was refused by chance would lose to
strangers that ask more often.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Literal, TypeAlias

import trio

from gossamer.node.base.rate_limit import NO_LIMIT, RateLimit
from gossamer.node.network.held_pages import RECORD_PAGES_MAX, HeldPages
from gossamer.protocol.ids import PeerId
from gossamer.protocol.limits import FRAME_MESSAGE_BYTES_MAX, KIB

MEMBERS_FIRST_SECONDS = 0.5
"""Longest wait of a stranger's piece for members that are being served. A member that does not read
must not keep newcomers out."""

STRANGERS_UPLOAD_SHARE = 0.5
"""Part of the owner's limit of the upload that strangers get at most. The rest is for rings: with a
quarter of the limit a link of a ring is still as fast as its owner lets it be."""

TURN_BYTES_MIN = 16 * KIB
"""Bytes for which each answer to a stranger counts at least, however short it is: to find out that
a block is not here takes some 0.1 ms as well. By the default limit strangers get 760 such answers a
second."""

PAGE_BYTES = FRAME_MESSAGE_BYTES_MAX // 2
"""Bytes for which a page of records counts: as much as the longest one has. A stranger asks with 64
bytes, and each record of a page is a file of its own: a page takes 2 ms of the processor and more.
By the default limit strangers get 47 pages a second."""

Kind: TypeAlias = Literal["blocks", "records"]
"""What goes to a stranger: pieces of blocks, or what says which blocks there are."""


class Uploads:
    """The order in which pieces of blocks, and answers about the chain, go out."""

    def __init__(self, limit: RateLimit = NO_LIMIT) -> None:
        """`limit`: of all strangers together."""
        self.is_member: Callable[[PeerId], bool] = lambda _peer: False
        """Returns whether a peer takes part in the newest rounds."""
        self._limit = limit
        self._num_members = 0
        self._no_member = trio.Event()
        self._turns: dict[tuple[PeerId, Kind], tuple[trio.Lock, int]] = {}
        """The lock of each stranger that waits, and how many of its pieces do."""
        self._pages = HeldPages(RECORD_PAGES_MAX)

    @contextmanager
    def serving(self, peer: PeerId) -> Iterator[None]:
        """A context for the time in which a block goes to a peer: strangers give way to members."""
        is_member = self.is_member(peer)
        self._num_members += is_member
        try:
            yield
        finally:
            self._num_members -= is_member
            if is_member and not self._num_members:
                self._no_member.set()
                self._no_member = trio.Event()

    async def turn(self, peer: PeerId, num_bytes: int, kind: Kind = "blocks") -> None:
        """Returns when so many bytes may go to a peer. They count as `TURN_BYTES_MIN` at least.

        Args:
            kind: a peer's turns of one kind wait for each other. What says which blocks to fetch
                does not wait behind the blocks that the same peer fetches already.

        Cancellation: the bytes may count as gone.
        """
        if self.is_member(peer):
            return
        key = peer, kind
        lock, num_waiting = self._turns.get(key, (trio.Lock(), 0))
        self._turns[key] = lock, num_waiting + 1
        try:
            # One piece of each peer stands in the line, so a peer with many streams gets no more.
            async with lock:
                with trio.move_on_after(MEMBERS_FIRST_SECONDS):
                    while self._num_members:
                        await self._no_member.wait()
                await self._limit.take(max(num_bytes, TURN_BYTES_MIN))
        finally:
            lock, num_waiting = self._turns[key]
            if num_waiting > 1:
                self._turns[key] = lock, num_waiting - 1
            else:
                del self._turns[key]

    @asynccontextmanager
    async def page(self, peer: PeerId) -> AsyncIterator[None]:
        """A context in which a page of records is read and goes to a peer.

        Raises:
            StreamClosed: the peer did not take it in time, and others wait.
        """
        await self.turn(peer, PAGE_BYTES, "records")
        async with self._pages.place(is_member=self.is_member(peer)):
            yield
