"""Rosters that came by gossip, which names the `Ready` in them.

A `Ready` that is still on its way completes the roster when it comes. If it does not, this node
compares its statement store with that of the roster's author, which brings the roster as a whole,
and all others of that author. An author is asked once in `ASK_SECONDS`, however many rosters it
publishes: the question names all that this node holds.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

import trio

from gossamer.node.peers.statements.store_comparison import RECONCILE_SECONDS
from gossamer.protocol.ids import PeerId
from gossamer.protocol.policy.statement_store import StatementStore
from gossamer.protocol.wire.gossip_messages import CompactRoster, put_together
from gossamer.protocol.wire.statements import Ready, Signed

LACKING_MAX = 16
"""Rosters that wait for a `Ready`, of all organisers together: rings at work in a divided swarm.
Comparisons of statements bring those for which there is no room."""

LACKING_OF_ONE_MAX = 4
"""Of these of one organiser, which publishes one or two in a round. So one organiser does not keep
out the rosters of others."""

LACKING_SECONDS = 0.25
"""Time for a `Ready` that a roster names to come on its own: it left its author before the
organiser had it. Then the organiser is asked."""

ASK_SECONDS = RECONCILE_SECONDS
"""Time between two questions to one organiser because of its rosters: as often as this node
compares its store with that of any peer. A small roster would provoke a large question otherwise,
at every node."""


class _Lacking(NamedTuple):
    """A roster that cannot be put together yet."""

    author: PeerId
    compact: CompactRoster


class CompactRosters:
    """Puts rosters together, and keeps those that lack a `Ready` until it comes."""

    def __init__(
        self,
        statement_store: StatementStore,
        is_good: Callable[[Signed], bool],
        ask: Callable[[PeerId], Awaitable[None]],
    ) -> None:
        """
        Args:
            is_good: whether the signature of an envelope is its author's.
            ask: takes from a peer the statements that are missing here, in bounded time.
        """
        self._store = statement_store
        self._is_good = is_good
        self._ask = ask
        self._lacking: dict[bytes, _Lacking] = {}
        """By the organiser's signature."""
        self._asked_seconds: dict[PeerId, float] = {}
        """Local time at which each organiser was asked, within `ASK_SECONDS`: no more than
        `LACKING_MAX` in the time in which a roster is given up."""
        self._send, self._receive = trio.open_memory_channel[_Lacking](LACKING_MAX)

    async def run(self) -> None:
        """Asks for what completes the rosters that wait, until cancelled."""
        async with trio.open_nursery() as nursery:
            async for lacking in self._receive:
                nursery.start_soon(self._complete, lacking)

    async def _complete(self, lacking: _Lacking) -> None:
        await trio.sleep(LACKING_SECONDS)
        author = lacking.author
        while lacking.compact.signature in self._lacking:
            now = trio.current_time()
            due_seconds = self._asked_seconds.get(author, -math.inf) + ASK_SECONDS
            if now < due_seconds:
                await trio.sleep(due_seconds - now)
                continue
            self._asked_seconds = {
                peer: asked
                for peer, asked in self._asked_seconds.items()
                if now < asked + ASK_SECONDS
            }
            self._asked_seconds[author] = now
            brought = self._of(author)
            await self._ask(author)
            for signature in brought:
                self._lacking.pop(signature, None)

    def put_together(self, author: PeerId, compact: CompactRoster) -> Signed | None:
        """Returns the signed roster; None: a `Ready` in it is not here, or is not the very one that
        the organiser has. The author of a `Ready` can sign one several times."""
        return self._from(author, compact, self._store.find(Ready))

    def _from(
        self, author: PeerId, compact: CompactRoster, found: Mapping[bytes, Signed]
    ) -> Signed | None:
        signed = put_together(author, compact, found)
        return signed if signed is not None and self._is_good(signed) else None

    def wait(self, author: PeerId, compact: CompactRoster) -> None:
        """Keeps a roster that cannot be put together yet, if there is room."""
        if compact.signature in self._lacking or len(self._lacking) >= LACKING_MAX:
            return
        if len(self._of(author)) >= LACKING_OF_ONE_MAX:
            return
        lacking = _Lacking(author, compact)
        try:
            self._send.send_nowait(lacking)
        except trio.WouldBlock:
            return
        self._lacking[compact.signature] = lacking

    def _of(self, author: PeerId) -> list[bytes]:
        """Returns the rosters of one organiser that wait."""
        return [each for each, one in self._lacking.items() if one.author == author]

    def completed(self) -> list[Signed]:
        """Takes out the rosters that can be put together now."""
        if not self._lacking:
            return []
        done: list[Signed] = []
        found = self._store.find(Ready)
        for author, compact in [*self._lacking.values()]:
            signed = self._from(author, compact, found)
            if signed is not None:
                del self._lacking[compact.signature]
                done.append(signed)
        return done
