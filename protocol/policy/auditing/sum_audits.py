"""Audits of sums: after a round a member adds up one chunk again, from the parts that went into it.

Where members trust each other a partial sum says nothing of its parts, and the records of a set
have no signature. So a member could replace those that it passes on, and nobody would find it.
After each round each member draws in secret whether it is an *auditor*, and of which chunk. The
others open that chunk for the auditor: their part of it, and what they did to its sums. In the
rules below a set is a sum, and adding up is putting records together.

Rules
-----
- A member signs in its `Ready` a commitment to a *secret* of that `Ready` (`commitment_to`). Its
  secret and the head after the round say whether it is an auditor (`is_auditor`), and of which
  chunk (`audited_chunk`). It shows the secret with its question, and in its verdict, so everybody
  can check both with the `Ready` in the round's roster.
- A member makes its secret from its signature under the number of the `Ready`. So it need not keep
  the secret, and no two `Ready` have the same one.
- A member signs in its `Ready` the root over its work, chunk by chunk in fp32, or over its sparse
  records (`record_tree`). So nobody chooses its part when it knows the sum, or the chunk that is
  looked at. Shared steps are trained inside the ring and have no root. Their sets need none: the
  digest of a set that a member signed leaves one record that it can have added to what came.
- A member signs each partial sum that it passes on (`rounds.ring.ring_signatures`), and keeps what
  the sender of each sum that it used has signed (`rounds.inventory.SumStep`).
- The way back begins at the average's finisher. Each member on it names the sum, with the sender's
  signature, from which it made the one that it signed itself. The way ends with a member that began
  a sum (`rounds.ring.sum_way`).
- The auditor goes that way forward, with the parts. The first member whose part and the sum that
  came to it do not make what it signed has *replaced* a sum. Its part is the one under its root,
  and all sums before it were made by these rules, so nobody else can be blamed.
- A member that is there and does not show its part, or from what it made a sum that it signed, has
  *not opened* the chunk. Neither has one whose connection ends during each of several questions. Of
  one that stays away, was started again, or was out of the ring when it was committed, nothing can
  be told. Nor can it of one that is asked so late that it may have forgotten the round, because
  another member kept the auditor waiting.

The arithmetic of a sum (`rounds.ring.ring_parts`) is made of additions, multiplications, divisions
and roundings that IEEE 754 fixes, one element at a time. So the same parts make the same bytes on
all machines. The outer step needs the same of them: on a machine that computed otherwise it would
lead to another state.

A head follows from the averages. So the member that finishes the last one can try values until it
has the head that it wants. It knows no secret but its own and those of its accomplices, though:
with any head each honest member is as likely an auditor, of any chunk. That is why no head alone
may say who audits, or what. A member may choose its own secret as it likes, and try heads until it
is an auditor itself. That keeps nobody else from being one, and its verdicts are as those of any
other auditor.

A part is looked at as it is: an audit shows that a sum was added up from what its members signed
before, and not that this is good work (`policy.auditing.audits`).

What follows
------------
- The auditor bans a member that it found to have replaced a sum.
- An auditor says what it found in a signed verdict. No peer acts on the verdict of another one
  alone. A member that did not open a chunk gets a mark from the auditor, once another auditor has
  found something against it within `MEMORY_ROUNDS` as well. With two marks it sits out of the
  rings that this auditor organises (`policy.auditing.poor_work`).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from itertools import chain

from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.policy.auditing.audits import MEMORY_ROUNDS
from gossamer.protocol.policy.auditing.poor_work import MARKS_MAX
from gossamer.protocol.sync_modes import SYNC_MODES
from gossamer.protocol.wire.audit_messages import AuditSecret, SumVerdict
from gossamer.protocol.wire.envelopes import Sign, signing_bytes

HALVES_OF_AUDITORS = 3
"""Twice the auditors of a round on average. With one and a half of them a round of up to four
members has an honest auditor beside a liar as often as with a single one that all know: three times
in four. In a large ring it is 78 of 100. With one it would be 58 of 100 of four members, and each
further one costs as much traffic as the first. A round without an auditor is no weakness: nobody
knows of it before the averages are signed."""

_CHUNK, _AUDITOR = b"audited chunk", b"auditor of a chunk"
_SECRET, _COMMITMENT = b"audit secret", b"commitment to an audit secret"


def has_sum_audits(manifest: Manifest) -> bool:
    """Returns whether the sums of a run are audited: members trust each other, so payloads travel
    that a member can replace."""
    return manifest.trust == "members"


def has_roots(manifest: Manifest) -> bool:
    """Returns whether each `Ready` of a run has a root: over the author's work, or in an open run
    over its records. The work of shared steps is done after it."""
    return not SYNC_MODES[manifest.sync].shares_steps


class AuditSecrets:
    """The secrets of one member, each behind the commitment in one `Ready`."""

    def __init__(self, run_id: Digest, sign: Sign) -> None:
        """`sign`: makes the member's signature, always the same one of the same bytes."""
        self._run_id = run_id
        self._sign = sign

    def of(self, incarnation: int, sequence: int) -> Digest:
        """Returns the secret of the `Ready` with that number."""
        number = to_msgpack(AuditSecret(incarnation, sequence))
        return digest_of(_SECRET, self._sign(signing_bytes(self._run_id, number)))


def commitment_to(secret: bytes) -> Digest:
    """Returns what a `Ready` says of its secret."""
    return digest_of(_COMMITMENT, secret)


def is_auditor(head: Digest, secret: bytes, num_credited: int) -> bool:
    """Returns whether the member with this secret looks at the round that led to a head.

    Args:
        num_credited: members of which the round took tokens: it is one of them. One alone has
            nobody to look at.
    """
    if num_credited < 2:
        return False
    return _draw(_AUDITOR, head, secret) * 2 * num_credited < HALVES_OF_AUDITORS << 64


def audited_chunk(head: Digest, secret: bytes, num_chunks: int) -> int:
    """Returns the chunk that such a member looks at, of those of the round."""
    return _draw(_CHUNK, head, secret) % num_chunks


def _draw(purpose: bytes, head: Digest, secret: bytes) -> int:
    return int.from_bytes(digest_of(purpose, head, secret)[:8], "big")


class SumVerdicts:
    """The verdicts of the newest audits of sums, as one peer has heard them, its own among them."""

    def __init__(self, me: PeerId) -> None:
        self._me = me
        self._heard: OrderedDict[Digest, dict[PeerId, SumVerdict]] = OrderedDict()
        """By head and auditor: at most as many of a head as its round has members."""

    def heard(self, auditor: PeerId, verdict: SumVerdict) -> bool:
        """Takes the verdict of an auditor of its head. Returns whether it is new."""
        of_head = self._heard.setdefault(Digest(verdict.head), {})
        if auditor in of_head:
            return False
        of_head[auditor] = verdict
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
        pairs = Counter((auditor, PeerId(each.member)) for auditor, each in self._verdicts())
        return frozenset(
            (auditor, member)
            for (auditor, member), times in pairs.items()
            if times >= MARKS_MAX and len({*self._auditors_of(member)}) > 1
        )

    def _auditors_of(self, member: str) -> list[PeerId]:
        """The auditors of all that was found against a member."""
        return [auditor for auditor, each in self._verdicts() if each.member == member]

    def _verdicts(self) -> Iterator[tuple[PeerId, SumVerdict]]:
        return chain.from_iterable(of_head.items() for of_head in self._heard.values())
