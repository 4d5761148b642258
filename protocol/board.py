"""The board: the newest signed statement of every author and kind, for gossip and anti-entropy.

Gossip loses messages, so nothing may hang on one of them. Every peer keeps the statements that
still matter on its board; peers compare boards over a stream from time to time and hand each other
what is missing. Merging boards is idempotent and does not depend on order.

What matters: every living author's announcement, and whatever belongs to the current head.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from gossamer.protocol import limits
from gossamer.protocol.ids import Digest
from gossamer.protocol.messages import Signed, Statement, key_of, version_of

STATEMENTS_MAX = 8 * limits.MEMBERS_MAX
"""Announcement, Ready, Vote and a few Rosters and Suspects for every possible member."""

REPLY_BYTES_MAX = limits.FRAME_MESSAGE_BYTES_MAX // 2
"""Statements in one anti-entropy reply; the rest comes with the next exchange."""


class Board:
    """Newest statement by key. Insertion order is kept, so that replies are deterministic."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, ...], tuple[Statement, Signed]] = {}

    def post(self, signed: Signed, statement: Statement) -> bool:
        """Takes a checked statement; says whether it was news."""
        key = key_of(signed.author, statement)
        known = self._entries.get(key)
        if known is not None and version_of(known[0]) >= version_of(statement):
            return False
        if known is None and len(self._entries) >= STATEMENTS_MAX:
            return False
        self._entries[key] = (statement, signed)
        return True

    def keep(self, wanted: Callable[[Signed, Statement], bool]) -> None:
        """Drops every statement that is not wanted any more."""
        self._entries = {
            key: (statement, signed)
            for key, (statement, signed) in self._entries.items()
            if wanted(signed, statement)
        }

    def digests(self) -> list[Digest]:
        return [signed.digest for _, signed in self._entries.values()]

    def missing_from(self, held: Collection[bytes]) -> list[Signed]:
        """Statements whose digest is not among `held`, up to `REPLY_BYTES_MAX`."""
        known = set(held)
        missing: list[Signed] = []
        num_bytes = 0
        for _, signed in self._entries.values():
            if signed.digest in known:
                continue
            num_bytes += len(signed.payload) + 200
            if num_bytes > REPLY_BYTES_MAX:
                break
            missing.append(signed)
        return missing

    def statements(self) -> list[tuple[Signed, Statement]]:
        return [(signed, statement) for statement, signed in self._entries.values()]

    def __len__(self) -> int:
        return len(self._entries)
