"""Agreement on the header of a round: everybody computes it, signs its digest, and counts.

Rules
-----
- A member votes for the header that it computed from its finals. When better finals change the
  header, or a member is removed from the ring, it votes again with a higher sequence.
- The newest vote of each member counts. When the votes for my header reach the quorum
  (`chain.quorum_reached`), the header is committed.
- A living member whose vote differs has other finals: both hand each other theirs, the ring's
  lattice rule merges them, and both compute again.
- A member that has not voted `vote_seconds` after I did is removed from the ring, so that a peer
  which falls silent here does not hold up the round.
"""

from __future__ import annotations

from collections.abc import Sequence

from gossamer.protocol.chain import Commit, quorum_reached
from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.messages import Signed, Vote


class Commitment:
    """One member's view of the votes of one ring."""

    def __init__(self, ring_id: Digest, members: Sequence[PeerId], me: PeerId) -> None:
        self._ring_id = ring_id
        self._members = tuple(members)
        self._me = me
        self._votes: dict[PeerId, tuple[Vote, Signed]] = {}
        self._sequence = 0
        self._header: bytes | None = None
        self._voted_seconds: float | None = None

    @property
    def header(self) -> bytes | None:
        """The header that I computed last."""
        return self._header

    @property
    def voted_seconds(self) -> float | None:
        """When I first voted (local clock)."""
        return self._voted_seconds

    def propose(self, now: float, header: bytes, removed: frozenset[PeerId]) -> Vote:
        """My vote for a header, to be signed, published and given to `vote_received`."""
        self._header = header
        if self._voted_seconds is None:
            self._voted_seconds = now
        self._sequence += 1
        return Vote(self._ring_id, self._sequence, digest_of(header), tuple(sorted(removed)))

    def vote_received(self, author: PeerId, vote: Vote, signed: Signed) -> bool:
        """Takes a checked vote; says whether it was news."""
        if author not in self._members or vote.ring_id != self._ring_id:
            return False
        known = self._votes.get(author)
        if known is not None and known[0].sequence >= vote.sequence:
            return False
        self._votes[author] = (vote, signed)
        return True

    def result(self) -> Commit | None:
        """The commit record once my header has its quorum."""
        if self._header is None:
            return None
        digest = digest_of(self._header)
        mine = {
            author: (vote, signed)
            for author, (vote, signed) in sorted(self._votes.items())
            if vote.header_digest == digest
        }
        if self._me not in mine:
            return None
        if not quorum_reached(self._members, {a: vote for a, (vote, _) in mine.items()}):
            return None
        return Commit(self._header, tuple(signed for _, signed in mine.values()))

    def disagreeing(self) -> list[tuple[PeerId, Digest]]:
        """Members whose newest vote is for another header than mine, with that header's digest."""
        if self._header is None:
            return []
        digest = digest_of(self._header)
        return [
            (author, Digest(vote.header_digest))
            for author, (vote, _) in sorted(self._votes.items())
            if vote.header_digest != digest
        ]

    def silent(self, living: Sequence[PeerId]) -> list[PeerId]:
        """Living members that have not voted at all."""
        return [member for member in living if member not in self._votes]
