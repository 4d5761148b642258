"""What a commit record's header says of data, checked against what its members offered."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from gossamer.protocol import limits
from gossamer.protocol.errors import ForgedError
from gossamer.protocol.rounds.commit_proof import check_roster
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.state.chain import Header
from gossamer.protocol.wire.statements import Span
from tests.support.builders import header_of, peers, ring_of


def record(consumed: Sequence[Span], *offered: Sequence[Span]) -> tuple[Header, Ring]:
    """A header that consumes some spans, and the ring of members that each offered others."""
    spans = {peer: tuple(each) for peer, each in zip(peers(len(offered)), offered, strict=True)}
    ring = ring_of(list(spans), spans=spans)
    return header_of(ring, spans=tuple(consumed)), ring


@pytest.mark.parametrize(
    "consumed",
    [
        Span(0, 0, 10),  # as offered
        Span(0, 3, 4),
        Span(0, 12, 40),  # of the longest of three that begin before
        Span(0, 39, 40),
        Span(1, 5, 6),
    ],
    ids=repr,
)
def test_a_header_consumes_what_one_span_of_a_member_has(consumed: Span) -> None:
    offered = [Span(0, 0, 10), Span(0, 10, 40)], [Span(1, 5, 6), Span(0, 11, 12)]
    check_roster(*record([consumed], *offered))


@pytest.mark.parametrize(
    "consumed",
    [
        Span(0, 5, 15),  # of two spans together
        Span(0, 0, 41),
        Span(1, 4, 6),
        Span(1, 5, 7),
        Span(2, 0, 1),
    ],
    ids=repr,
)
def test_a_header_consumes_nothing_else(consumed: Span) -> None:
    offered = [Span(0, 0, 10), Span(0, 10, 40)], [Span(1, 5, 6), Span(0, 11, 12)]
    with pytest.raises(ForgedError, match="no member trained on"):
        check_roster(*record([Span(0, 0, 1), consumed], *offered))


def test_a_record_with_very_many_spans_takes_little_time() -> None:
    """Each of 64 members may offer 256 spans, and the header may consume as many. Each with each is
    268 million comparisons, for which the event loop stood still."""
    offered = [
        [Span(number, 2 * place, 2 * place + 1) for place in range(limits.SPANS_MAX)]
        for number in range(64)
    ]
    made = record([span for each in offered for span in each], *offered)
    began = time.process_time()
    check_roster(*made)
    assert time.process_time() - began < 2.0
