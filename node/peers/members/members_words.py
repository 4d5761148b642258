"""What the members of an invite-only run say of one node: whether they take it for a member.

A node that was put out while it was away does not hear of it: members show their roll to members
only. It learns it from their refusals. One member's word is not enough, as a single one may lie or
lack a piece of the roll. And a peer that takes the node for a member may have been put out with it.
So the roots decide if one of them has spoken, and else all members, each time by most of them.
"""

from __future__ import annotations

from gossamer.protocol.ids import PeerId, public_key_of
from gossamer.protocol.policy.members.roll import Roll

WORD_SECONDS = 900.0
"""Time for which a word counts that its author does not repeat: a connected member is asked again
within some minutes, and one that is gone may have been mistaken."""


class MembersWords:
    """The newest word of each member."""

    def __init__(self, roll: Roll) -> None:
        self._roll = roll
        self._words: dict[PeerId, tuple[float, str]] = {}
        """Time of each word, and the reason of a refusal; members only, so they are few."""
        self._refused_since: float | None = None

    def note(self, peer: PeerId, refusal: str, now: float) -> None:
        """A peer has spoken. `refusal`: its reason; empty: it takes this node for a member."""
        self._words[peer] = now, refusal
        if self._refusals(now):
            self._refused_since = now if self._refused_since is None else self._refused_since
        else:
            self._refused_since = None

    def refusal(self, now: float, seconds: float) -> str | None:
        """Returns the reason for which the members have refused this node for so many seconds or
        longer; None if they have not."""
        if self._refused_since is None or now - self._refused_since < seconds:
            return None
        refusals = self._refusals(now)
        return refusals[0] if refusals else None

    def _refusals(self, now: float) -> list[str]:
        """Returns the reasons of the refusals, the oldest first, if most words are such."""
        self._words = {
            peer: word
            for peer, word in self._words.items()
            if now - word[0] < WORD_SECONDS and self._roll.is_member(peer)
        }
        of_roots = [
            word for peer, word in self._words.items() if public_key_of(peer) in self._roll.roots
        ]
        words = sorted(of_roots or self._words.values())
        refusals = [reason for _, reason in words if reason]
        return refusals if 2 * len(refusals) > len(words) else []
