"""The search for who read what in a real swarm, without a swarm."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from gossamer.protocol.wire.statements import Span
from tests.e2e.rounds.replays import Reading, replayed

PEERS = ("a", "b")


def spans_of(number: int) -> list[Span]:
    """Two spans of a round, one for each peer."""
    return [Span(partition=2 * number + i, start=0, stop=10) for i in range(2)]


ROUNDS = [(spans_of(number), PEERS) for number in range(4)]


def shard_of_a(reading: Reading) -> int:
    (span,) = reading["a"]
    return span.partition % 2


def test_a_reading_that_leads_no_further_is_taken_back() -> None:
    """The first two rounds do not tell who read what, and the third one does."""
    truth = [1, 0, 1, 1]

    def leads_there(read: Sequence[Reading]) -> bool:
        return len(read) <= 2 or [shard_of_a(each) for each in read] == truth[: len(read)]

    assert [shard_of_a(each) for each in replayed(ROUNDS, leads_there)] == truth


def test_the_longest_way_is_told_where_none_leads_to_the_end() -> None:
    def leads_there(read: Sequence[Reading]) -> bool:
        shards = [shard_of_a(each) for each in read]
        return len(read) < 4 and all(before != after for before, after in pairwise(shards))

    assert len(replayed(ROUNDS, leads_there)) == 3
    assert replayed(ROUNDS, lambda _read: False) == []
