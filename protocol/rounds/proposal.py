"""The header that follows from a ring and its averages: every peer computes the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gossamer.protocol import limits
from gossamer.protocol.accounting.ledger import Ledger, apply_spans, newly_consumed
from gossamer.protocol.ids import Digest
from gossamer.protocol.rounds.ring import Average
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.state.chain import (
    ChunkAverage,
    Header,
    Member,
    UpdateIndex,
    mask_bytes,
    spans_taken,
    tokens_taken,
)
from gossamer.protocol.wire.statements import Span


@dataclass(frozen=True)
class Parent:
    """The committed state that a round starts from."""

    head: Digest
    round: int
    tokens_total: int
    ledger: Ledger


@dataclass(frozen=True)
class Proposal:
    """A header, with the objects behind its digests."""

    header: Header
    update: UpdateIndex
    ledger: Ledger


def members_of(ring: Ring, contributors: Sequence[int]) -> tuple[Member, ...]:
    """The entries of the members in the round's header, by ring position.

    Args:
        contributors: of each chunk the mask of the members that have a part in it.
    """
    counts = _counts(ring, contributors)
    return tuple(
        Member(peer, tokens_taken(ready.tokens, count, len(contributors)), ready.norm)
        for peer, ready, count in zip(ring.members, ring.ready, counts, strict=True)
    )


def _counts(ring: Ring, contributors: Sequence[int]) -> list[int]:
    """Chunks that each member has a part in, by ring position."""
    return [sum(mask >> i & 1 for mask in contributors) for i in range(len(ring.members))]


def propose(
    run_id: Digest,
    parent: Parent,
    ring: Ring,
    averages: Sequence[Average],
    contributors: Sequence[int],
    state_digest: Digest,
) -> Proposal:
    """The header of the round that took these averages and reached this state.

    Args:
        contributors: of each average the mask of the members that have a part in it.
    """
    num_members, num_chunks = len(ring.members), len(averages)
    members = members_of(ring, contributors)
    spans: set[Span] = set()
    for ready, count in zip(ring.ready, _counts(ring, contributors), strict=True):
        if spans_taken(count, num_chunks):
            spans.update(ready.spans)
    consumed = newly_consumed(parent.ledger, spans)
    ledger = apply_spans(parent.ledger, consumed)
    update = UpdateIndex(
        ring.roster.codec,
        tuple(
            ChunkAverage(average.digest, mask_bytes(mask, num_members))
            for average, mask in zip(averages, contributors, strict=True)
        ),
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
