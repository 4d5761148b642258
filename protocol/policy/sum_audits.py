"""Audits of sums: after a round a member adds up one chunk again, from the parts that went into it.

Where members trust each other a partial sum says nothing of its parts, and the records of a set
have no signature. So a member could replace those that it passes on, and nobody would find it.
After each round its head picks a chunk and one of the members, the *auditor*. The others open that
chunk for the auditor: their part of it, and what they did to its sums. In the rules below a set is
a sum, and adding up is putting records together.

Rules
-----
- A member signs in its `Ready` the root over its work, chunk by chunk in fp32, or over its sparse
  records (`record_tree`). So nobody chooses its part when it knows the sum, or the chunk that is
  looked at. Shared steps are trained inside the ring and have no root. Their sets need none: the
  digest of a set that a member signed leaves one record that it can have added to what came.
- A member signs each partial sum that it passes on (`rounds.ring_signatures`), and keeps what the
  sender of each sum that it used has signed (`rounds.inventory.SumStep`).
- The way back begins at the average's finisher. Each member on it names the sum, with the sender's
  signature, from which it made the one that it signed itself. The way ends with a member that began
  a sum (`rounds.sum_way`).
- The auditor goes that way forward, with the parts. The first member whose part and the sum that
  came to it do not make what it signed has *replaced* a sum. Its part is the one under its root,
  and all sums before it were made by these rules, so nobody else can be blamed.
- A member that is there and does not show its part, or from what it made a sum that it signed, has
  *not opened* the chunk. Of one that went away, was started again, or was out of the ring when it
  was committed, nothing can be told. Nor can it of one that is asked so late that it may have
  forgotten the round, because another member kept the auditor waiting.

The arithmetic of a sum (`rounds.ring_parts`) is made of additions, multiplications, divisions and
roundings that IEEE 754 fixes, one element at a time. So the same parts make the same bytes on all
machines. The outer step needs the same of them: on a machine that computed otherwise it would lead
to another state.

A head follows from the averages. So the member that finishes the last one can try values until the
head picks itself as the auditor, or a chunk in which it did not lie: nothing prevents that yet.

A part is looked at as it is: an audit shows that a sum was added up from what its members signed
before, and not that this is good work (`policy.audits`).

What follows
------------
- The auditor bans a member that it found to have replaced a sum.
- An auditor says what it found in a signed verdict. No peer acts on the verdict of another one
  alone. A member that did not open a chunk gets a mark from the auditor, once another auditor has
  found something against it within `MEMORY_ROUNDS` as well. With two marks it sits out of the
  rings that this auditor organises (`policy.poor_work`).

This module has no I/O, no clock and no randomness.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection

from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.policy.audits import MEMORY_ROUNDS
from gossamer.protocol.policy.poor_work import MARKS_MAX
from gossamer.protocol.sync_modes import SYNC_MODES
from gossamer.protocol.wire.audit_messages import SumVerdict

_CHUNK, _AUDITOR = b"audited chunk", b"auditor of a chunk"


def has_sum_audits(manifest: Manifest) -> bool:
    """Returns whether the sums of a run are audited: members trust each other, so payloads travel
    that a member can replace."""
    return manifest.trust == "members"


def has_roots(manifest: Manifest) -> bool:
    """Returns whether each `Ready` of a run has a root: over the author's work, or in an open run
    over its records. The work of shared steps is done after it."""
    return not SYNC_MODES[manifest.sync].shares_steps


def audited_chunk(head: Digest, num_chunks: int) -> int:
    """The chunk that a head picks, of those of its round."""
    return int.from_bytes(digest_of(_CHUNK, head)[:8], "big") % num_chunks


def auditor_after(head: Digest, credited: Collection[PeerId]) -> PeerId | None:
    """The member that a head picks; None: there are no two that could look at each other.

    Args:
        credited: the members of which the round took tokens.
    """
    if len(credited) < 2:
        return None
    return min(credited, key=lambda peer: digest_of(_AUDITOR, head, peer.encode()))


class SumVerdicts:
    """The verdicts of the newest audits of sums, as one peer has heard them, its own among them."""

    def __init__(self, me: PeerId) -> None:
        self._me = me
        self._heard: OrderedDict[Digest, tuple[PeerId, SumVerdict]] = OrderedDict()
        """By head: there is one auditor of each."""

    def heard(self, auditor: PeerId, verdict: SumVerdict) -> bool:
        """Takes the verdict of the auditor that its head picks. Returns whether it is new."""
        head = Digest(verdict.head)
        if head in self._heard:
            return False
        self._heard[head] = auditor, verdict
        if len(self._heard) > MEMORY_ROUNDS:
            self._heard.popitem(last=False)
        return True

    def marks(self, verdict: SumVerdict) -> bool:
        """Returns whether the member of a verdict of this peer gets a mark: another auditor has
        found something against it as well."""
        return any(auditor != self._me for auditor in self._auditors_of(verdict.member))

    def leave_outs(self) -> frozenset[tuple[PeerId, PeerId]]:
        """Returns pairs of an organiser and a member against which it has found so much, and
        another one has found something, that it may let it sit out."""
        pairs = Counter((auditor, PeerId(each.member)) for auditor, each in self._heard.values())
        return frozenset(
            (auditor, member)
            for (auditor, member), times in pairs.items()
            if times >= MARKS_MAX and len({*self._auditors_of(member)}) > 1
        )

    def _auditors_of(self, member: str) -> list[PeerId]:
        """The auditors of all that was found against a member."""
        return [auditor for auditor, each in self._heard.values() if each.member == member]
