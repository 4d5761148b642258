"""The chunks that a new successor is sent, and those that it is not sent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import Digest
from gossamer.protocol.rounds.inventory import (
    Held,
    Inventory,
    decode_inventory,
    encode_inventory,
    is_better,
)

LOW, HIGH = Digest(b"\x01" * 32), Digest(b"\x02" * 32)


def wants(held: Held, mask: int, digest: Digest | None = None) -> bool:
    return Inventory((held,)).wants(0, mask, digest)


def test_a_partial_sum_is_of_use_if_it_holds_a_member_that_the_copy_lacks() -> None:
    assert wants(Held(), 0b001)
    assert wants(Held(copy_mask=0b110), 0b011)
    assert not wants(Held(copy_mask=0b111), 0b011)


def test_a_partial_sum_is_of_no_use_to_a_member_with_the_average() -> None:
    assert not wants(Held(average=(0b001, LOW)), 0b111)


def test_an_average_is_of_use_if_it_is_better() -> None:
    assert wants(Held(copy_mask=0b111), 0b001, HIGH)
    assert wants(Held(average=(0b011, HIGH)), 0b111, HIGH)
    assert wants(Held(average=(0b111, HIGH)), 0b111, LOW)
    assert not wants(Held(average=(0b111, LOW)), 0b111, LOW)
    assert not wants(Held(average=(0b111, LOW)), 0b011, LOW)


@given(
    num_members=st.integers(1, 256),
    records=st.lists(
        st.tuples(st.integers(0), st.integers(0), st.binary(min_size=32, max_size=32)), max_size=5
    ),
)
def test_it_comes_back_from_the_wire(
    num_members: int, records: list[tuple[int, int, bytes]]
) -> None:
    full = (1 << num_members) - 1
    inventory = Inventory(
        tuple(
            Held(copy & full, (average & full, Digest(digest)) if average & full else None)
            for copy, average, digest in records
        )
    )
    encoded = encode_inventory(inventory, num_members)
    assert decode_inventory(encoded, len(records), num_members) == inventory


@given(st.binary(max_size=200), st.integers(0, 4), st.integers(1, 20))
def test_nonsense_is_malformed_or_an_inventory(
    data: bytes, num_chunks: int, num_members: int
) -> None:
    try:
        decoded = decode_inventory(data, num_chunks, num_members)
    except MalformedError:
        return
    assert len(decoded.chunks) == num_chunks


def test_a_member_that_the_ring_lacks_is_malformed() -> None:
    encoded = bytearray(encode_inventory(Inventory((Held(0b111),)), 3))
    encoded[0] = 0b1000
    with pytest.raises(MalformedError):
        decode_inventory(encoded, 1, 3)


def test_more_contributors_win_and_then_the_lower_digest() -> None:
    assert is_better(0b111, HIGH, 0b011, LOW)
    assert is_better(0b011, LOW, 0b110, HIGH)
    assert not is_better(0b011, LOW, 0b011, LOW)
