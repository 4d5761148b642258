"""Who broke the protocol so often that nobody here talks to it for a while. No I/O, no clock.

Rules
-----
- An offence adds its reason's weight to the peer's score. The score falls by one every
  `FORGIVE_SECONDS`, so what goes wrong once in a while is forgiven, however long a peer lives.
- At `BAN_SCORE` the peer is banned for `BAN_SECONDS`, twice as long each time again, up to
  `BAN_SECONDS_MAX`. After the ban it begins with a clean score. A peer that kept out of trouble for
  `FORGET_SECONDS` after a ban is treated as if it had had none.
- A banned peer's further offences count for nothing: what it sent before may still arrive.
- At most `PEERS_MAX` peers are remembered. For new ones those with the lowest scores go, banned
  ones last: identities cost nothing, and a flood of them must not free a worse one.

A weight is small where an honest peer could come to it: by a race, by a disk that lost something,
by another version of this program. Only what nobody honest ever sends bans after a few times."""

from __future__ import annotations

from dataclasses import dataclass

from gossamer.protocol.ids import PeerId

BAN_SCORE = 10.0

FORGIVE_SECONDS = 30.0
"""One unit of score. An honest peer with an offence of weight 4 in two minutes is never banned."""

BAN_SECONDS = 60.0
"""The first ban: long enough for a few rounds in peace, short enough for whoever got it wrongly."""

BAN_SECONDS_MAX = 3600.0

_DOUBLINGS_MAX = 10
"""`BAN_SECONDS_MAX` is reached long before."""

FORGET_SECONDS = 3600.0

PEERS_MAX = 4096
"""Four times the members of a run; some 100 bytes each."""

WEIGHTS = {
    # What no program of this protocol says, whatever happens to it.
    "forged": 4.0,
    "malformed": 4.0,
    "oversized": 4.0,
    "protocol": 4.0,
    "implausible": 4.0,
    # A version that we do not know may be honest.
    "version": 1.0,
    # Over a rate that no honest peer comes near, but a machine that swaps may catch up in a burst.
    "flood": 2.0,
    # A head of which a peer has no proof: it may have lost its disk since it said so.
    "unproven": 1.0,
}
OTHER_WEIGHT = 1.0


@dataclass(frozen=True)
class Ban:
    """A peer is banned from now on."""

    seconds: float
    number: int
    """1 for its first ban."""


@dataclass
class _Conduct:
    score: float = 0.0
    scored_seconds: float = 0.0
    """When the score was true."""
    num_bans: int = 0
    until_seconds: float = 0.0
    """End of the newest ban."""

    def forgive(self, now: float) -> None:
        self.score = max(0.0, self.score - (now - self.scored_seconds) / FORGIVE_SECONDS)
        self.scored_seconds = now
        if self.num_bans and now > self.until_seconds + FORGET_SECONDS:
            self.num_bans = 0


class Bans:
    """The scores of all peers. Events carry the local clock in seconds."""

    def __init__(self) -> None:
        self._conduct: dict[PeerId, _Conduct] = {}

    def offence(self, now: float, peer: PeerId, reason: str) -> Ban | None:
        """Counts an offence; the answer is the ban that it led to, if it did."""
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
        conduct.until_seconds = now + seconds
        return Ban(seconds, conduct.num_bans)

    def is_banned(self, now: float, peer: PeerId) -> bool:
        conduct = self._conduct.get(peer)
        return conduct is not None and now < conduct.until_seconds

    def score(self, now: float, peer: PeerId) -> float:
        """What the peer has on its account now."""
        conduct = self._conduct.get(peer)
        if conduct is None:
            return 0.0
        conduct.forgive(now)
        return conduct.score

    def num_banned(self, now: float) -> int:
        return sum(now < conduct.until_seconds for conduct in self._conduct.values())

    def __len__(self) -> int:
        return len(self._conduct)

    def _make_room(self, now: float) -> None:
        """Forgets the peers that it costs least to forget, many at once: sorting takes a while."""
        for conduct in self._conduct.values():
            conduct.forgive(now)

        def cost(peer: PeerId) -> tuple[bool, int, float, PeerId]:
            conduct = self._conduct[peer]
            return (now < conduct.until_seconds, conduct.num_bans, conduct.score, peer)

        for peer in sorted(self._conduct, key=cost)[: PEERS_MAX // 8]:
            del self._conduct[peer]
