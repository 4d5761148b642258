"""What each member has given, for the page: counted from the headers on disk, and not too often."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
import trio

from gossamer.node.runs.credit import Credits
from gossamer.node.storage.owner_files import MemberName
from gossamer.node.storage.state_dir import StateDirError

FRESH_SECONDS_MIN = 10.0
"""A count is good for so long at least: a round takes longer."""

FRESH_TIMES = 100.0
"""A count is good for so many times the time that it took, so that counting takes 1 % of a core.
5,000 rounds of 64 members take 3.5 s."""

ROWS_MAX = 1024
"""Members in one answer, those with the most tokens. A run with more has a longer list on disk,
which `gossamer peers` reads."""


class MemberCredit(msgspec.Struct, frozen=True):
    """The tokens of one member in the run."""

    peer_id: str
    rank: int
    tokens: int
    share: float
    name: str = ""
    team: str = ""


class CreditAnswer(msgspec.Struct, frozen=True):
    """The credit of the members at one round."""

    round: int
    tokens_total: int
    members: tuple[MemberCredit, ...]


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
        names, none = self._names(), MemberName()
        members = tuple(
            MemberCredit(
                row.peer_id,
                row.rank,
                row.tokens,
                row.share,
                names.get(row.peer_id, none).name,
                names.get(row.peer_id, none).team,
            )
            for row in credits.rows[:ROWS_MAX]
        )
        return msgspec.json.encode(CreditAnswer(credits.round, credits.tokens_total, members))
