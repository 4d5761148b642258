"""The header that follows from a ring and its finals: the same for everybody who computes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gossamer.protocol import limits
from gossamer.protocol.chain import (
    ChunkFinal,
    Header,
    Member,
    UpdateIndex,
    mask_bytes,
    spans_taken,
    tokens_taken,
)
from gossamer.protocol.ids import Digest
from gossamer.protocol.ledger import Ledger, apply_spans, newly_consumed
from gossamer.protocol.messages import Span
from gossamer.protocol.ring import Final
from gossamer.protocol.roster import Ring


@dataclass(frozen=True)
class Parent:
    """The committed state that a round starts from."""

    head: Digest
    round: int
    tokens_total: int
    ledger: Ledger


@dataclass(frozen=True)
class Proposal:
    """A header with what its digests stand for."""

    header: Header
    update: UpdateIndex
    ledger: Ledger


def credited_tokens(ring: Ring, finals: Sequence[Final]) -> list[int]:
    """What the round's header will say of each member, by ring position."""
    counts = [sum(final.mask >> i & 1 for final in finals) for i in range(len(ring.members))]
    return [
        tokens_taken(ready.tokens, count, len(finals))
        for ready, count in zip(ring.ready, counts, strict=True)
    ]


def propose(
    run_id: Digest,
    parent: Parent,
    ring: Ring,
    finals: Sequence[Final],
    state_digest: Digest,
) -> Proposal:
    """The header of the round that took these finals and reached this state."""
    num_members, num_chunks = len(ring.members), len(finals)
    counts = [sum(final.mask >> i & 1 for final in finals) for i in range(num_members)]
    members = tuple(map(Member, ring.members, credited_tokens(ring, finals)))
    spans: set[Span] = set()
    for ready, count in zip(ring.ready, counts, strict=True):
        if spans_taken(count, num_chunks):
            spans.update(ready.spans)
    consumed = newly_consumed(parent.ledger, spans)
    ledger = apply_spans(parent.ledger, consumed)
    update = UpdateIndex(
        ring.roster.codec,
        tuple(ChunkFinal(f.digest, mask_bytes(f.mask, num_members)) for f in finals),
    )
    header = Header(
        limits.PROTOCOL_VERSION,
        run_id,
        parent.round + 1,
        parent.head,
        ring.ring_id,
        members,
        parent.tokens_total + sum(member.tokens for member in members),
        update.digest,
        state_digest,
        ledger.digest,
        consumed,
    )
    return Proposal(header, update, ledger)
