"""Pairs of peers spread over the relays in proportion to their lines."""

from __future__ import annotations

import itertools
from collections import Counter

from msgspec.structs import replace

from gossamer.protocol.ids import PeerId
from gossamer.protocol.policy.relay_choice import RELAY_RATE_MIN, relay_order
from gossamer.protocol.wire.statements import Announce, Reach
from tests.support.builders import announce, peers

FIRST, SECOND, THIRD, *OTHERS = peers(60)


def relay(rate: float, reach: Reach = "open") -> Announce:
    """The announcement of a peer with a line of so many bytes a second."""
    example = announce()
    capacity = replace(example.capacity, bandwidth_bytes_per_second=rate)
    return replace(example, capacity=capacity, reach=reach)


def firsts(relays: dict[PeerId, Announce]) -> Counter[PeerId]:
    """How many pairs ask each relay first."""
    pairs = itertools.combinations(OTHERS, 2)
    return Counter(relay_order(one, other, relays)[0] for one, other in pairs)


def test_both_ends_ask_in_one_order() -> None:
    relays = {each: relay(1e6) for each in (FIRST, SECOND, THIRD)}
    for one, other in itertools.combinations(OTHERS[:10], 2):
        order = relay_order(one, other, relays)
        assert order == relay_order(other, one, relays)
        assert sorted(order) == sorted(relays)


def test_a_line_three_times_as_fast_has_three_times_as_many_pairs() -> None:
    counts = firsts({FIRST: relay(3e6), SECOND: relay(1e6)})
    assert 0.7 < counts[FIRST] / counts.total() < 0.8


def test_a_line_that_was_not_measured_has_some() -> None:
    counts = firsts({FIRST: relay(0.0), SECOND: relay(RELAY_RATE_MIN)})
    assert 0.45 < counts[FIRST] / counts.total() < 0.55


def test_those_that_everybody_reaches_come_first() -> None:
    counts = firsts({FIRST: relay(1e9, "crossable"), SECOND: relay(1e5)})
    assert counts == {SECOND: counts.total()}
