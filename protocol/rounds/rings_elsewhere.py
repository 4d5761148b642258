"""Rings without this peer on its head, and how long it waits for them.

Rules
-----
- A peer organises no ring while a ring without it is at work on the same head. A ring is at work as
  long as one of its members is expected on this head and is not out of the ring. A member that
  leaves a ring says so.
- The wait has an end: the manifest's `gather_seconds`, plus the training time where members train
  in their ring. Then the peer organises a ring without those members. Otherwise one peer could stop
  all others with a ring that it never commits.
- The members of such a ring may all have left this head. Then they have probably committed, and
  their commit record is on its way: the peer waits `attempt_seconds` for it. Otherwise an excluded
  peer with more tokens could commit alone and outweigh the ring.

The states are those of `states.GATHERING`.
"""

from __future__ import annotations

from dataclasses import dataclass

from gossamer.protocol import limits
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.rounds.accusations import Accusations
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.rounds.states import GATHERING, GatheringEvent, GatheringState


@dataclass(frozen=True)
class Wait:
    """The consequence of rings elsewhere for this peer."""

    until_seconds: float | None
    """Local time until which this peer organises no ring; None: it may organise one."""
    reason: str
    left_out: frozenset[PeerId]
    """Members of rings elsewhere, without which a ring may be organised."""


class RingsElsewhere:
    """The rings without this peer on one head. Events carry the local clock in seconds."""

    def __init__(self, me: PeerId, patience_seconds: float, commit_seconds: float) -> None:
        """
        Args:
            patience_seconds: longest wait for a ring that is at work.
            commit_seconds: wait for the commit of a ring whose members left this head.
        """
        self._me = me
        self._patience_seconds = patience_seconds
        self._commit_seconds = commit_seconds
        self._rings: dict[Digest, tuple[frozenset[PeerId], Accusations]] = {}
        self.state: GatheringState = GATHERING.initial
        self._since_seconds = 0.0
        """Time at which a ring was first seen at work; meaningful in `yielding`."""
        self._commit_until_seconds = float("-inf")

    def note(self, ring: Ring) -> bool:
        """A ring without this peer is on this head. Returns whether the ring was unknown."""
        if ring.ring_id in self._rings:
            return False
        self.note_lost(ring, Accusations(ring.members, self._me))
        return True

    def note_lost(self, ring: Ring, accusations: Accusations) -> None:
        """This peer is out of a ring on this head and hears none of the members."""
        if len(self._rings) >= limits.ROSTERS_KEPT_MAX:
            del self._rings[next(iter(self._rings))]
        self._rings[ring.ring_id] = (frozenset(ring.members) - {self._me}, accusations)

    def note_accusation(self, ring_id: bytes, author: PeerId, accused: PeerId) -> None:
        """An accusation in a ring; ignored if the ring is unknown."""
        if (known := self._rings.get(Digest(ring_id))) is not None:
            known[1].accuse(author, accused)

    def wait(self, now: float, expected: frozenset[PeerId]) -> Wait:
        """Returns how long this peer has to wait, and why.

        Args:
            expected: living other peers that work on this head.
        """
        at_work = self._at_work(expected)
        event = self._event(now, at_work)
        while event is not None:
            self._go(now, event)
            event = self._event(now, at_work)
        if self.state == "yielding":
            reason = "a ring without this peer is at work on this head"
            return Wait(self._patience_until_seconds, reason, at_work)
        if now < self._commit_until_seconds:
            reason = "a ring without this peer may be committed"
            return Wait(self._commit_until_seconds, reason, at_work)
        return Wait(None, "no ring elsewhere is waited for", at_work)

    @property
    def _patience_until_seconds(self) -> float:
        return self._since_seconds + self._patience_seconds

    def _event(self, now: float, at_work: frozenset[PeerId]) -> GatheringEvent | None:
        """Returns the events since the last call on which the state depends."""
        match self.state:
            case "open" | "awaiting commit" if at_work:
                return "ring elsewhere"
            case "awaiting commit" if now >= self._commit_until_seconds:
                return "no commit"
            case "yielding" | "overruling" if not at_work:
                if self._has_gone_on() or now < self._commit_until_seconds:
                    return "members went on"
                return "ring gone"
            case "yielding" if now >= self._patience_until_seconds:
                return "patience over"
        return None

    def _go(self, now: float, event: GatheringEvent) -> None:
        self.state = GATHERING.after(self.state, event)
        if event == "ring elsewhere":
            self._since_seconds = now
        elif event == "members went on" and self._has_gone_on():
            self._commit_until_seconds = now + self._commit_seconds

    def _at_work(self, expected: frozenset[PeerId]) -> frozenset[PeerId]:
        """Members of all rings that are at work."""
        rings = (members - accusations.out for members, accusations in self._rings.values())
        return frozenset().union(*(members for members in rings if members & expected))

    def _has_gone_on(self) -> bool:
        """Returns whether a ring has a member left. Call it while no ring is at work: then that
        member left this head."""
        return any(members - accusations.out for members, accusations in self._rings.values())
