"""Who is in the run, from what peers announce of themselves.

Rules
-----
- A peer exists from its first `Announce`; a higher (incarnation, sequence) replaces a lower one.
- It is *living* while an announcement came within `MEMBER_SECONDS` of the local clock, its
  connection was not seen to break since, and it does not say that it leaves. Clocks of different
  peers are never compared.
- A broken connection ends its life at once; its next announcement begins it again.
- At most `MEMBERS_MAX` are kept: a newcomer replaces the peer that has been silent longest, and is
  refused if all are living.
"""

from __future__ import annotations

from dataclasses import dataclass

from gossamer.protocol import limits
from gossamer.protocol.ids import PeerId
from gossamer.protocol.messages import Announce

ANNOUNCE_SECONDS = 2.0
"""Each peer repeats its announcement this often: some 1 KiB, so 0.5 KiB/s a peer."""

MEMBER_SECONDS = 12.0
"""Silence after which a peer counts as gone: six announcements, and longer than the 10 s in which
the transport notices a dead link."""


@dataclass(frozen=True)
class Seen:
    """A peer's newest announcement and the local time at which it came."""

    announce: Announce
    seen_seconds: float
    connected: bool


class Membership:
    """The announcements of the other peers. Events carry the local clock in seconds."""

    def __init__(self, me: PeerId) -> None:
        self._me = me
        self._peers: dict[PeerId, Seen] = {}

    def announced(self, now: float, author: PeerId, announce: Announce) -> bool:
        """Takes an announcement; says whether it was news."""
        if author == self._me:
            return False
        known = self._peers.get(author)
        version = (announce.incarnation, announce.sequence)
        if known is not None:
            old = (known.announce.incarnation, known.announce.sequence)
            if version <= old:
                return False
        elif len(self._peers) >= limits.MEMBERS_MAX and not self._make_room(now):
            return False
        self._peers[author] = Seen(announce, now, True)
        return True

    def disconnected(self, peer: PeerId) -> None:
        """The connection to a peer broke: it is not living until it announces itself again."""
        if peer in self._peers:
            seen = self._peers[peer]
            self._peers[peer] = Seen(seen.announce, seen.seen_seconds, False)

    def is_living(self, now: float, peer: PeerId) -> bool:
        seen = self._peers.get(peer)
        return (
            seen is not None
            and seen.connected
            and now - seen.seen_seconds <= MEMBER_SECONDS
            and seen.announce.phase not in ("leaving", "failed")
        )

    def living(self, now: float) -> dict[PeerId, Announce]:
        """The living others, sorted by peer id."""
        return {
            peer: self._peers[peer].announce
            for peer in sorted(self._peers)
            if self.is_living(now, peer)
        }

    def expected(self, now: float, head: bytes) -> list[PeerId]:
        """Living others that work on the round after `head`: a round waits for these."""
        return [
            peer
            for peer, announce in self.living(now).items()
            if announce.head == head and announce.phase in ("training", "averaging")
        ]

    def known(self) -> dict[PeerId, Announce]:
        """Everybody heard of, the dead too, sorted by peer id."""
        return {peer: self._peers[peer].announce for peer in sorted(self._peers)}

    def _make_room(self, now: float) -> bool:
        dead = [peer for peer in sorted(self._peers) if not self.is_living(now, peer)]
        if not dead:
            return False
        del self._peers[min(dead, key=lambda peer: self._peers[peer].seen_seconds)]
        return True
