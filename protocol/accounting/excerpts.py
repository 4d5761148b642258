"""The sequences on which an auditor measures a member's work (`policy.auditing.audits`).

They follow from the head and the auditor, and come from few shards, since an auditor may have to
fetch them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from gossamer.protocol.accounting.partitions import Partitions
from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.wire.audit_messages import SEQUENCES
from gossamer.protocol.wire.statements import Span

SHARDS_MAX = 4
"""Shards from which the sequences come."""

_LOOKED_AT_MAX = 4096
"""Shards of a member's spans that are looked at: a round of the largest preset needs as many."""

_DRAW = b"sequence"


class Excerpt(NamedTuple):
    """One sequence: so many tokens of a shard from `start` on."""

    shard: int
    start: int


def declared_excerpts(
    head: Digest, auditor: PeerId, spans: Sequence[Span], partitions: Partitions, length: int
) -> tuple[Excerpt, ...]:
    """The sequences of a member's declared data that an auditor measures, `SEQUENCES` or fewer.

    Args:
        head: it asks for the audit.
        spans: of the member's `Ready`.
        length: tokens of a sequence: the context and one.
    """
    pieces = [
        (shard, start, (stop - start) // length)
        for shard, start, stop in _shards_of(spans, partitions)
        if stop - start >= length
    ]
    return _drawn(head, auditor, b"declared", pieces, length)


def heldout_excerpts(
    head: Digest, auditor: PeerId, shard_tokens: Sequence[int], length: int
) -> tuple[Excerpt, ...]:
    """The sequences of the held-out shards that an auditor measures.

    Args:
        shard_tokens: tokens of each held-out shard.
        length: tokens of a sequence: the context and one.
    """
    pieces = [(shard, 0, num // length) for shard, num in enumerate(shard_tokens) if num >= length]
    return _drawn(head, auditor, b"heldout", pieces, length)


def _shards_of(spans: Sequence[Span], partitions: Partitions) -> Iterator[tuple[int, int, int]]:
    """(shard, start, stop) of the pieces of spans, as far as this corpus has such data."""
    looked_at = 0
    for span in spans:
        if span.partition >= len(partitions):
            continue
        position, size = span.start, partitions.tokens[span.partition]
        while position < span.stop and looked_at < _LOOKED_AT_MAX:
            offset = position % size
            shard = partitions.shard_at(span.partition, offset)
            start = offset - partitions.offset_of(shard)
            stop = min(partitions.shard_tokens(shard), start + span.stop - position)
            yield shard, start, stop
            position += stop - start
            looked_at += 1


def _drawn(
    head: Digest,
    auditor: PeerId,
    purpose: bytes,
    pieces: Sequence[tuple[int, int, int]],
    length: int,
) -> tuple[Excerpt, ...]:
    """Draws sequences of pieces (shard, start, number of sequences), of few shards.

    Each sequence has about the same chance. If each piece had, a member would work on a few short
    ones alone, and name a long one beside them.
    """

    def rank(*numbers: int) -> int:
        what = b".".join(str(number).encode() for number in numbers)
        return int.from_bytes(digest_of(_DRAW, head, auditor.encode(), purpose, what)[:8], "big")

    weights = _weights_of([count for *_, count in pieces], rank)
    found: list[Excerpt] = []
    left = sum(weights.values())
    # The shortest come first: what one lacks is drawn of the others.
    for place in sorted(weights, key=lambda place: (pieces[place][2], place)):
        shard, start, count = pieces[place]
        wanted = min(count, -(-(SEQUENCES - len(found)) * weights[place] // left))
        left -= weights[place]
        # A shard may have a million sequences: the drawn ones lie evenly from a drawn one on.
        first = rank(shard, start, 0)
        found += [
            Excerpt(shard, start + (first + number * count // wanted) % count * length)
            for number in range(wanted)
        ]
    return tuple(found)


def _weights_of(counts: Sequence[int], rank: Callable[[int], int]) -> Mapping[int, int]:
    """The pieces of which sequences are drawn, `SHARDS_MAX` at most, each with its weight."""
    if len(counts) <= SHARDS_MAX:
        return dict(enumerate(counts))
    ends = list(accumulate(counts))
    weights = Counter[int]()
    for draw in range(SEQUENCES):
        place = bisect_right(ends, rank(draw) % ends[-1])
        if place in weights or len(weights) < SHARDS_MAX:
            weights[place] += 1
    return weights
