"""The order in which entries of a roll count, the same on every node.

Entries count in the order of (`unix_seconds`, newcomer, digest). An entry counts if, of what
counted before it,

- its sponsor is a member and may have a level below it,
- its witness is a member,
- its certificate had not expired at its time, and has a slot left,
- its newcomer has no entry,
- fewer than `SPONSORED_MAX` came in through its sponsor, and through each member above it that is
  no root, directly or not,
- the run has a place left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

from gossamer.protocol import limits
from gossamer.protocol.ids import PeerId, peer_id_from_public_key
from gossamer.protocol.wire.invitation_messages import DEPTH_MAX, Certificate, Entry

SPONSORED_MAX = 64
"""Members below one that is no root, over all its certificates and all levels: as many as one
certificate may have slots. So one member cannot fill the run: those below it could let in others,
each as many again, and its witness may date them before honest entries."""


class Counted:
    """The entries that count, in their order, and what follows from them."""

    def __init__(self, roots: frozenset[bytes]) -> None:
        self._roots = roots
        self.entries: dict[bytes, Entry] = {}
        """By newcomer."""
        self.out: set[bytes] = set()
        """Newcomers that a revocation has put out."""
        self._slots_used: Counter[bytes] = Counter()
        """By one-time key."""
        self._below: Counter[bytes] = Counter()
        """Newcomers that came in through a member that is no root, directly or not."""

    def add(self, entry: Entry) -> None:
        """Counts an entry behind all others, if it counts."""
        if not self.why_not(entry):
            self.entries[entry.newcomer] = entry
            self._slots_used[entry.certificate.key] += 1
            self._below.update(self._line(entry.certificate.sponsor))

    def levels_below(self, key: bytes) -> int:
        """Returns the levels of members that may come in below a member; 0 for a stranger."""
        if key in self._roots:
            return DEPTH_MAX
        entry = self.entries.get(key)
        return 0 if entry is None else entry.certificate.depth

    def is_used(self, key: bytes) -> bool:
        """Returns whether somebody came in by a one-time key."""
        return self._slots_used[key] > 0

    def time_of(self, certificate: Certificate, witness: bytes, unix_seconds: int) -> int:
        """Returns the time of a new entry: behind all that it needs, and behind the others of its
        certificate unless these are dated to its last second. A witness may have done that, and the
        other slots are still good: entries of one second count in the order of their newcomers.

        Args:
            unix_seconds: the witness's clock.
        """
        needed = [
            self.entries[key] for key in (certificate.sponsor, witness) if key in self.entries
        ]
        first = max([unix_seconds, *(entry.unix_seconds + 1 for entry in needed)])
        same = [each for each in self.entries.values() if each.certificate.key == certificate.key]
        behind = max((each.unix_seconds + 1 for each in same), default=0)
        return max(first, min(behind, certificate.expires_unix_seconds))

    def why_not(self, entry: Entry) -> str:
        """Returns the reason why an entry does not count behind all others; empty if it counts."""
        certificate, members = entry.certificate, self.entries
        if not self.is_known(certificate.sponsor):
            return "its sponsor is no member"
        if certificate.depth >= self.levels_below(certificate.sponsor):
            return "its sponsor may not let in members so deep"
        if not self.is_known(entry.witness):
            return "its witness is no member"
        if self.is_known(entry.newcomer):
            return "the newcomer is a member already"
        if entry.unix_seconds > certificate.expires_unix_seconds:
            return "the invitation has expired"
        if self._slots_used[certificate.key] >= certificate.slots:
            return "the invitation is used up: as many have come in by it as it has slots"
        if any(self._below[each] >= SPONSORED_MAX for each in self._line(certificate.sponsor)):
            return "as many came in through its sponsor, or one above it, as one member may let in"
        if len(members) + len(self._roots) >= limits.MEMBERS_MAX:
            return "the run has as many members as a run may have"
        return ""

    def _line(self, key: bytes) -> list[bytes]:
        """Returns a member and those above it, up to below a root; nobody for a root."""
        line: list[bytes] = []
        while key in self.entries:
            line.append(key)
            key = self.entries[key].certificate.sponsor
        return line

    def is_known(self, key: bytes) -> bool:
        """Returns whether a key is that of a root, or of somebody whose entry counts."""
        return key in self._roots or key in self.entries


def count(roots: frozenset[bytes], entries: Iterable[Entry]) -> Counted:
    """Returns the entries that count of these, with nobody put out."""
    counted = Counted(roots)
    for entry in in_order(entries):
        counted.add(entry)
    return counted


def in_order(entries: Iterable[Entry]) -> list[Entry]:
    """Returns entries in the order in which they count: each behind those that it needs."""
    return sorted(entries, key=_order)


def _order(entry: Entry) -> tuple[int, bytes, bytes]:
    return (entry.unix_seconds, entry.newcomer, entry.digest)


@lru_cache(4 * limits.MEMBERS_MAX)
def peer_of(key: bytes) -> PeerId:
    """The peer id of a public key. base58 is slow, and each member is asked for often."""
    return peer_id_from_public_key(key)
