"""Votes that this node hears of rounds whose records it has, until they are in these records.

A record has as many votes as its author needed when it committed. The others are heard a moment
later. They belong into the record: a node that is started again, and one that comes back and learns
the rounds from this one, would otherwise know fewer signers of them.
"""

from __future__ import annotations

import threading

from gossamer.protocol.ids import Digest
from gossamer.protocol.wire.statements import Signed

ROUNDS_MAX = 64
"""Rounds whose votes wait. They are taken at the end of each round of this node; in a longer pause
votes of older rounds are left out."""


class FurtherVotes:
    """Checked votes of members by round. The event loop adds them, and a thread takes them."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._votes: dict[Digest, dict[str, Signed]] = {}

    def add(self, head: Digest, signed: Signed) -> None:
        """Takes a checked vote of a member of a round."""
        with self._changing:
            self._votes.setdefault(head, {})[signed.author] = signed
            if len(self._votes) > ROUNDS_MAX:
                del self._votes[next(iter(self._votes))]

    def take(self, but: Digest | None) -> dict[Digest, tuple[Signed, ...]]:
        """Returns the votes by round. They are forgotten here, but those of one round."""
        with self._changing:
            taken = {head: votes for head, votes in self._votes.items() if head != but}
            self._votes = {head: votes for head, votes in self._votes.items() if head == but}
        return {head: tuple(votes.values()) for head, votes in taken.items()}
