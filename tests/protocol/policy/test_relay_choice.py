"""Pairs of peers spread over the relays in proportion to their lines."""

from __future__ import annotations

import itertools
from collections import Counter

from msgspec.structs import replace

from gossamer.protocol.ids import PeerId
from gossamer.protocol.policy.relay_choice import (
    FAILURES_MAX,
    FAILURES_SECONDS,
    RELAY_RATE_MIN,
    USEFUL_SECONDS,
    RelayMemory,
    relay_order,
)
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


PEER, RELAYS = OTHERS[0], [FIRST, SECOND, THIRD]


def test_a_relay_that_failed_is_asked_after_the_others_for_that_peer() -> None:
    memory = RelayMemory()
    assert memory.in_order(0.0, PEER, RELAYS) == RELAYS
    memory.failed(0.0, PEER, FIRST)
    assert memory.in_order(1.0, PEER, RELAYS) == [SECOND, THIRD, FIRST]
    assert memory.in_order(1.0, OTHERS[1], RELAYS) == RELAYS
    for relay in (SECOND, SECOND, THIRD):
        memory.failed(1.0, PEER, relay)
    assert memory.in_order(2.0, PEER, RELAYS) == [FIRST, THIRD, SECOND]
    assert memory.in_order(1.0 + FAILURES_SECONDS, PEER, RELAYS) == RELAYS


def test_a_circuit_that_soon_ends_is_a_failure_and_one_that_was_of_use_is_none() -> None:
    memory = RelayMemory()
    memory.stands(0.0, PEER, FIRST)
    memory.stands(10.0, PEER, FIRST)  # the same one is seen again
    assert memory.standing() == [PEER]
    memory.ended(USEFUL_SECONDS - 1.0, PEER)
    assert memory.in_order(USEFUL_SECONDS, PEER, RELAYS)[-1] == FIRST
    memory.stands(1000.0, PEER, FIRST)
    memory.ended(1000.0 + USEFUL_SECONDS, PEER)
    assert memory.in_order(1001.0 + USEFUL_SECONDS, PEER, RELAYS) == RELAYS
    assert memory.standing() == []


def test_a_relay_that_led_to_a_connection_of_their_own_was_of_use() -> None:
    memory = RelayMemory()
    memory.failed(0.0, PEER, FIRST)
    memory.stands(1.0, PEER, FIRST)
    memory.crossed(PEER)
    assert memory.in_order(2.0, PEER, RELAYS) == RELAYS
    assert memory.standing() == []


def test_what_is_remembered_has_a_bound() -> None:
    memory = RelayMemory()
    for number in range(FAILURES_MAX + 10):
        memory.failed(0.0, PeerId(str(number)), FIRST)
    assert memory.in_order(1.0, PeerId("9"), [FIRST, SECOND]) == [FIRST, SECOND]
    assert memory.in_order(1.0, PeerId("10"), [FIRST, SECOND]) == [SECOND, FIRST]
