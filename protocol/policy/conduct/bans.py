"""Bans: peers that broke the protocol so often that this node refuses them for a while.

Rules
-----
- An offence adds the weight of its reason to the peer's score. The score falls by one every
  `FORGIVE_SECONDS`, so rare faults are forgiven, however long a peer lives.
- At `BAN_SCORE` the peer is banned for `BAN_SECONDS`. Each further ban is twice as long, up to
  `BAN_SECONDS_MAX`. After a ban the score is 0. After `FORGET_SECONDS` without a new ban the next
  one counts as the first.
- An offence that two signatures prove bans at once, and for the longest time (`SHORTEST_BANS`).
- Further offences of a banned peer do not count: bytes that it sent before may still arrive.
- At most `PEERS_MAX` peers are remembered. A new peer replaces those with the lowest scores, banned
  ones last: identities cost nothing, and a flood of them must not free a worse peer.

The weight of an offence is small, or none, if an honest peer could commit it: by a race, a disk
that lost data, or another version of this program. Only offences that no honest peer commits lead
to a ban after a few times.
"""

from __future__ import annotations

from dataclasses import dataclass

from gossamer.protocol.ids import PeerId

BAN_SCORE = 10.0

FORGIVE_SECONDS = 30.0
"""Time in which a score falls by one unit. An honest peer with an offence of weight 4 in two
minutes is never banned."""

BAN_SECONDS = 60.0
"""Length of the first ban: a few rounds without the peer, and short for a peer that is banned by
mistake."""

BAN_SECONDS_MAX = 3600.0

_DOUBLINGS_MAX = 10
"""Doublings of a ban that are computed at most; `BAN_SECONDS_MAX` is reached long before."""

FORGET_SECONDS = 3600.0

PEERS_MAX = 4096
"""Peers with a score that are remembered: four times the members of a run, some 100 bytes each."""

WEIGHTS = {
    # No program of this protocol sends this, whatever happens to it.
    "forged": 4.0,
    "malformed": 4.0,
    "oversized": 4.0,
    "protocol": 4.0,
    "implausible": 4.0,
    # A peer with an unknown version may be honest.
    "version": 1.0,
    # No honest peer reaches this rate, but a machine that swaps may catch up in a burst.
    "flood": 2.0,
    # A peer without the proof of its head may have lost its disk since it announced the head.
    "unproven": 1.0,
    # Its sender may have it from another member, and cannot tell. Audits find who made it up.
    "claimed": 0.0,
    # Two signatures prove it, and every node judges alike.
    "equivocation": BAN_SCORE,
    # This node has added up the sum again, from parts that were signed before.
    "replaced": BAN_SCORE,
}
OTHER_WEIGHT = 1.0

SHORTEST_BANS = {"equivocation": BAN_SECONDS_MAX}
"""Shortest ban that follows from an offence of a reason: from one that nobody commits by mistake,
the longest."""


@dataclass(frozen=True)
class Ban:
    """A peer is banned from now on."""

    seconds: float
    number: int
    """Number of this ban among the peer's bans, from 1."""


@dataclass
class _Conduct:
    score: float = 0.0
    scored_seconds: float = 0.0
    """Local time of the score."""
    num_bans: int = 0
    until_seconds: float = 0.0
    """End of the newest ban."""

    def forgive(self, now: float) -> None:
        self.score = max(0.0, self.score - (now - self.scored_seconds) / FORGIVE_SECONDS)
        self.scored_seconds = now
        if now > self.until_seconds + FORGET_SECONDS:
            self.num_bans = 0


class Bans:
    """The scores of all peers. Events carry the local clock in seconds."""

    def __init__(self) -> None:
        self._conduct: dict[PeerId, _Conduct] = {}

    def offence(self, now: float, peer: PeerId, reason: str) -> Ban | None:
        """Counts an offence. Returns the ban that follows from it; None: no ban follows."""
        conduct = self._conduct.get(peer)
        if conduct is None:
            if len(self._conduct) >= PEERS_MAX:
                self._make_room(now)
            conduct = self._conduct[peer] = _Conduct(scored_seconds=now)
        if now < conduct.until_seconds:
            return None
        conduct.forgive(now)
        conduct.score += WEIGHTS.get(reason, OTHER_WEIGHT)
        if conduct.score < BAN_SCORE:
            return None
        conduct.score = 0.0
        conduct.num_bans += 1
        doublings = min(conduct.num_bans - 1, _DOUBLINGS_MAX)
        seconds = min(BAN_SECONDS * 2**doublings, BAN_SECONDS_MAX)
        seconds = max(seconds, SHORTEST_BANS.get(reason, 0.0))
        conduct.until_seconds = now + seconds
        return Ban(seconds, conduct.num_bans)

    def is_banned(self, now: float, peer: PeerId) -> bool:
        conduct = self._conduct.get(peer)
        return conduct is not None and now < conduct.until_seconds

    def seconds_left(self, now: float, peer: PeerId) -> float:
        """Returns the rest of a peer's ban; 0.0 for one that is not banned."""
        conduct = self._conduct.get(peer)
        return 0.0 if conduct is None else max(0.0, conduct.until_seconds - now)

    def num_banned(self, now: float) -> int:
        return sum(now < conduct.until_seconds for conduct in self._conduct.values())

    def _make_room(self, now: float) -> None:
        """Forgets an eighth of the peers, the least important ones. One at a time would sort
        often."""
        for conduct in self._conduct.values():
            conduct.forgive(now)

        def cost(peer: PeerId) -> tuple[bool, int, float, PeerId]:
            conduct = self._conduct[peer]
            return (now < conduct.until_seconds, conduct.num_bans, conduct.score, peer)

        for peer in sorted(self._conduct, key=cost)[: PEERS_MAX // 8]:
            del self._conduct[peer]
