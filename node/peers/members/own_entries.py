"""The entries by which this node is, or was, a member of a run by invitation.

A roll forgets what does not count. The time of an entry is its witness's word, and certificate and
proof stand in the roll for all to read: so a hostile witness can make a copy of anybody's entry
that counts in its place, and lose its own slot afterwards. The copy then counts no more, and nobody
has the original. So the node that came in by it keeps it, and offers it again.
"""

from __future__ import annotations

from collections.abc import Iterable

from gossamer.protocol.ids import PeerId, public_key_of
from gossamer.protocol.policy.members.roll import Roll
from gossamer.protocol.policy.members.roll_order import in_order, peer_of
from gossamer.protocol.wire.invitation_messages import PROOF_ENTRIES_MAX, Claim, Entry

WITNESSES_MAX = 8
"""Entries of this node that are kept, of a witness each. A copy that replaced one has an earlier
time, so those with the latest times stay: the original is among them."""

OTHERS_MAX = 4 * PROOF_ENTRIES_MAX
"""Entries of members that these need, those of the newest proofs: they may be gone with them."""


class OwnEntries:
    """Keeps them through all changes of the roll."""

    def __init__(self, me: PeerId, kept: Iterable[Entry] = ()) -> None:
        """`kept`: entries of an earlier life that may not count; their signatures are not
        checked."""
        self._me = me
        self._own: dict[bytes, Entry] = {}
        """By witness."""
        self._others: dict[bytes, Entry] = {}
        """By digest, the newest last."""
        self._keep(kept)

    def __bool__(self) -> bool:
        return bool(self._own)

    def note(self, roll: Roll) -> None:
        """Keeps the entry by which this node counts, and those that it needs."""
        entry = roll.entry(self._me)
        if entry is not None and self._own.get(entry.witness) != entry:
            self._keep(roll.proof_of(self._me))

    def _keep(self, entries: Iterable[Entry]) -> None:
        key = public_key_of(self._me)
        for entry in entries:
            if entry.newcomer != key:
                self._others.pop(entry.digest, None)
                self._others[entry.digest] = entry
                continue
            held = self._own.get(entry.witness)
            if held is None or held.unix_seconds < entry.unix_seconds:
                self._own[entry.witness] = entry
        while len(self._own) > WITNESSES_MAX:
            del self._own[in_order(self._own.values())[0].witness]
        while len(self._others) > OTHERS_MAX:
            del self._others[next(iter(self._others))]

    def missing_in(self, roll: Roll) -> tuple[Entry, ...]:
        """Returns all that is kept here and does not count in a roll."""
        kept = [*self._own.values(), *self._others.values()]
        return tuple(each for each in in_order(kept) if roll.entry(peer_of(each.newcomer)) != each)

    def claim(self, roll: Roll) -> Claim:
        """Returns the claim that this node is a member: all of its entries, and as many as have
        room of those that they need. The certificate is shown again, too: where no entry counts
        any more, the peer that is asked is the new witness."""
        current = roll.entry(self._me)
        own = in_order(self._own.values())
        shown = own[-1] if current is None and own else current
        if shown is None:
            return Claim((), None, b"")
        found = dict.fromkeys((*roll.proof_of(self._me), *own))
        for entry in reversed(own):
            for key in (entry.witness, entry.certificate.sponsor):
                found.update(dict.fromkeys(roll.proof_of(peer_of(key))))
        found.update(dict.fromkeys(reversed(self._others.values())))
        entries = in_order(list(found)[:PROOF_ENTRIES_MAX])
        return Claim(tuple(entries), shown.certificate, shown.proof)
