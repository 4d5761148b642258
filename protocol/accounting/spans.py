"""Arithmetic on spans of data: as few as possible, what is left of some without others, and how
many tokens they have."""

from __future__ import annotations

from collections.abc import Iterable

from gossamer.protocol import limits
from gossamer.protocol.wire.statements import Span


def merged(spans: Iterable[Span]) -> list[Span]:
    """The same tokens in as few spans as possible, sorted, at most `SPANS_MAX` of them."""
    result: list[Span] = []
    for span in sorted(set(spans), key=lambda span: (span.partition, span.start, span.stop)):
        last = result[-1] if result else None
        if last is not None and last.partition == span.partition and span.start <= last.stop:
            result[-1] = Span(span.partition, last.start, max(last.stop, span.stop))
        else:
            result.append(span)
    return result[-limits.SPANS_MAX :]


def without(spans: Iterable[Span], taken: Iterable[Span]) -> list[Span]:
    """Returns the remaining spans after `taken` is cut out of them."""
    left = list(spans)
    for cut in taken:
        pieces: list[Span] = []
        for span in left:
            if span.partition != cut.partition or cut.stop <= span.start or span.stop <= cut.start:
                pieces.append(span)
                continue
            if span.start < cut.start:
                pieces.append(Span(span.partition, span.start, cut.start))
            if cut.stop < span.stop:
                pieces.append(Span(span.partition, cut.stop, span.stop))
        left = pieces
    return left


def num_tokens(spans: Iterable[Span]) -> int:
    """Returns the sum of the tokens of spans."""
    return sum(span.stop - span.start for span in spans)
