"""The credit of each member, for the page: counted from the headers on disk, and not too often. The
names of members are kept for it, so that it shows those that are away."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
import trio

from gossamer.node.base.ticks import sleep_to_tick
from gossamer.node.rounds.opening import NodeContext
from gossamer.node.runs.results.credit import Credits
from gossamer.node.storage.owner_files import MemberName, MemberNames
from gossamer.node.storage.state_dir import StateDirError

FRESH_SECONDS_MIN = 10.0
"""A count is good for so long at least: a round takes longer."""

FRESH_TIMES = 100.0
"""A count is good for so many times the time that it took, so that counting takes 1 % of a core.
5,000 rounds of 64 members take 3.5 s."""

ROWS_MAX = 1024
"""Members in one answer, those with the most tokens. A run with more has a longer list on disk,
which `gossamer peers` reads."""

NAMES_SECONDS = 30.0
"""Interval of the looks for names of members. They change seldom, and a change is a write."""


class CreditView:
    """Counts the credit in a thread. There is one count at a time."""

    def __init__(
        self,
        read: Callable[[], Credits],
        names: Callable[[], Mapping[str, MemberName]] = dict,
    ) -> None:
        """`names`: returns what members want to be called, by peer id."""
        self._read = read
        self._names = names
        self._answer: bytes | None = None
        self._stale_at_seconds = 0.0
        self._is_counting = False

    async def answer(self) -> bytes | None:
        """Returns the newest count as JSON; None if there is none yet. A request that comes while
        one is under way gets the count before."""
        if self._is_counting or trio.current_time() < self._stale_at_seconds:
            return self._answer
        self._is_counting = True
        started_seconds = trio.current_time()
        try:
            self._answer = await trio.to_thread.run_sync(self._count)
        except StateDirError:
            pass  # a record is damaged; the node itself sees to that
        finally:
            self._is_counting = False
            took_seconds = trio.current_time() - started_seconds
            fresh_seconds = max(FRESH_SECONDS_MIN, FRESH_TIMES * took_seconds)
            self._stale_at_seconds = trio.current_time() + fresh_seconds
        return self._answer

    def _count(self) -> bytes:
        credits = self._read()
        names = self._names()
        members = [
            {
                "peer_id": row.peer_id,
                "rank": row.rank,
                "tokens": row.tokens,
                "share": row.share,
                **msgspec.structs.asdict(names.get(row.peer_id, MemberName())),
            }
            for row in credits.rows[:ROWS_MAX]
        ]
        answer = {"round": credits.round, "tokens_total": credits.tokens_total, "members": members}
        return msgspec.json.encode(answer)


async def keep_names(names: MemberNames, node: NodeContext, own: MemberName) -> None:
    """Keeps the names of members of the chain that are here, until cancelled.

    Args:
        own: the name and the team of this node.
    """
    await names.load()
    while True:
        members = node.choice.stakes_at(node.committed.entry.head)
        shown = {
            peer: MemberName(announce.name, announce.team)
            for peer, announce in node.swarm.living_anywhere().items()
        }
        shown[node.me] = own
        await names.note({peer: each for peer, each in shown.items() if peer in members})
        await sleep_to_tick(NAMES_SECONDS)
