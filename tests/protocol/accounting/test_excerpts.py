"""The sequences on which auditors measure a member's work."""

from __future__ import annotations

from gossamer.protocol.accounting.excerpts import SHARDS_MAX, declared_excerpts, heldout_excerpts
from gossamer.protocol.accounting.partitions import Partitions
from gossamer.protocol.ids import PeerId, digest_of
from gossamer.protocol.wire.audit_messages import SEQUENCES
from gossamer.protocol.wire.statements import Span
from tests.support.builders import HEAD, peer

LENGTH = 17


def partitions() -> Partitions:
    return Partitions([200, 100, 200, 300, 16, 200], 2)


def test_declared_sequences_lie_in_the_declared_spans() -> None:
    # Partition 0 has 300 tokens, so this span ends in its second epoch.
    spans = (Span(0, 100, 400), Span(1, 17, 17 + 170))
    found = declared_excerpts(HEAD, peer(0), spans, partitions(), LENGTH)
    allowed = {0: [(0, 100), (100, 200)], 1: [(0, 100)], 2: [(17, 187)]}
    assert 0 < len(found) <= SEQUENCES
    assert len(set(found)) == len(found)
    assert len({shard for shard, _ in found}) <= SHARDS_MAX
    for shard, start in found:
        assert any(low <= start and start + LENGTH <= high for low, high in allowed[shard])


def test_sequences_follow_from_head_and_auditor() -> None:
    spans = (Span(0, 0, 300), Span(1, 0, 500))

    def drawn(number: int, auditor: PeerId) -> object:
        return declared_excerpts(
            digest_of(b"head", bytes([number])), auditor, spans, partitions(), LENGTH
        )

    assert drawn(1, peer(0)) == drawn(1, peer(0))
    assert drawn(1, peer(0)) != drawn(1, peer(1))
    assert drawn(1, peer(0)) != drawn(2, peer(0))


def test_spans_of_data_that_is_not_there_are_no_data() -> None:
    spans = (Span(99, 0, 2**40),)
    assert declared_excerpts(HEAD, peer(0), spans, partitions(), LENGTH) == ()


def test_a_span_without_end_is_looked_at_for_a_while() -> None:
    found = declared_excerpts(HEAD, peer(0), (Span(0, 0, 2**48),), partitions(), LENGTH)
    assert 0 < len(found) <= SEQUENCES


def test_held_out_sequences() -> None:
    found = heldout_excerpts(HEAD, peer(0), [512, 16, 512], LENGTH)
    assert len(set(found)) == SEQUENCES
    assert all(shard in (0, 2) and start + LENGTH <= 512 for shard, start in found)


def test_most_sequences_are_of_the_longest_pieces() -> None:
    """A member could name one span that it never trained on, and many single sequences of which it
    knows that they are drawn."""
    data = Partitions([100 * LENGTH] * 64, 1)
    spans = (Span(0, 0, 100 * LENGTH), *(Span(number, 0, LENGTH) for number in range(1, 64)))
    drawn = [declared_excerpts(HEAD, peer(each), spans, data, LENGTH) for each in range(20)]
    long = sum(excerpt.shard == 0 for found in drawn for excerpt in found)
    assert long > 0.6 * sum(map(len, drawn))


def test_all_of_few_sequences_are_drawn() -> None:
    data = Partitions([100 * LENGTH] * 4, 1)
    spans = (*(Span(number, 0, LENGTH) for number in range(3)), Span(3, 0, 4 * LENGTH))
    found = declared_excerpts(HEAD, peer(0), spans, data, LENGTH)
    assert sorted(found) == [(0, 0), (1, 0), (2, 0), *((3, LENGTH * n) for n in range(4))]


def test_pieces_of_one_length_are_drawn_alike() -> None:
    data = Partitions([100 * LENGTH] * 4, 1)
    spans = tuple(Span(number, 0, 50 * LENGTH) for number in range(4))
    found = declared_excerpts(HEAD, peer(0), spans, data, LENGTH)
    assert sorted(shard for shard, _ in found) == sorted([0, 1, 2, 3] * (SEQUENCES // 4))
