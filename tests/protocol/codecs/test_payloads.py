"""The payloads of a chunk, in either kind of ring, and the average that every peer derives from
them."""

from __future__ import annotations

import numpy as np
import pytest

from gossamer.protocol import limits
from gossamer.protocol.codecs.contributions import add_record
from gossamer.protocol.codecs.payloads import (
    SPARSE,
    Payloads,
    SetPayloads,
    SumPayloads,
    payloads_named,
)
from gossamer.protocol.codecs.record_payloads import RecordPayloads
from gossamer.protocol.codecs.sign_codec import SignCodec, SignUpdate
from gossamer.protocol.codecs.sparse_codec import SparseCodec
from gossamer.protocol.codecs.step_codec import StepCodec
from gossamer.protocol.codecs.step_payloads import SignPayloads
from gossamer.protocol.codecs.tensor_codecs import codec
from gossamer.protocol.errors import MalformedError, RemoteProtocolError, VersionError

NUM_ELEMENTS = 5000
CODER = SparseCodec(64)
PAYLOADS = SetPayloads(CODER)
VECTORS = [
    np.random.default_rng(seed).standard_normal(NUM_ELEMENTS).astype(np.float32)
    for seed in range(3)
]
TOKENS = (100, 300, 200)


def set_of(positions: list[int]) -> bytes:
    payload = b""
    for position in positions:
        payload = add_record(payload, position, CODER.encode(VECTORS[position]))
    return payload


def mask_of(positions: list[int]) -> int:
    return sum(1 << position for position in positions)


@pytest.mark.parametrize("name", ["fp32", "fp16", "int8", "int4", SPARSE])
def test_lengths_are_what_is_sent(name: str) -> None:
    payloads = payloads_named(name)
    assert payloads.name == name
    part = payloads.part_bytes(NUM_ELEMENTS)
    is_set = isinstance(payloads, SetPayloads)
    length = 2 * part if is_set else part
    for is_average in (False, True):
        assert payloads.is_length(length, NUM_ELEMENTS, 0b101, is_average=is_average)
        assert not payloads.is_length(length - 1, NUM_ELEMENTS, 0b101, is_average=is_average)
    if is_set:
        assert part == len(set_of([0]))


@pytest.mark.parametrize(
    "payloads",
    [
        *(payloads_named(name) for name in ("fp32", "fp16", "int8", "int4", SPARSE)),
        SetPayloads(CODER, codec("int4"), 2),
        RecordPayloads("int8", codec("int8")),
        SignPayloads(StepCodec([SignCodec([(2, 64), (1, 3)], 2)])),
        SignPayloads(StepCodec([SignCodec([(2, 64), (1, 3)], 2)]), are_signed=True),
    ],
    ids=lambda payloads: payloads.name,
)
@pytest.mark.parametrize("num_members", [1, 2, 3, 7])
def test_no_average_is_longer_than_the_longest(payloads: Payloads, num_members: int) -> None:
    longest = payloads.average_bytes_max(NUM_ELEMENTS, num_members)
    masks = [(1 << members) - 1 for members in range(1, num_members + 1)]

    def may_be(num_bytes: int) -> bool:
        return any(
            payloads.is_length(num_bytes, NUM_ELEMENTS, mask, is_average=True) for mask in masks
        )

    assert may_be(longest)
    assert not any(map(may_be, range(longest + 1, 4 * longest)))


def test_an_unknown_name() -> None:
    with pytest.raises(VersionError):
        payloads_named("int3")


@pytest.mark.parametrize("num_members", [2, 3, 8])
def test_the_mean_of_a_ring_is_what_its_links_carry(num_members: int) -> None:
    hops = [*range(1, num_members), *[num_members] * (num_members - 1)]
    exact = sum(hops) * PAYLOADS.part_bytes(NUM_ELEMENTS) / len(hops)
    assert PAYLOADS.mean_bytes(NUM_ELEMENTS, num_members) == int(exact)


@pytest.mark.parametrize("num_members", [1, 2, 8, 9, 32, 33, 128, 129, 256])
def test_a_widening_sum_is_as_long_as_its_members_are_many(num_members: int) -> None:
    payloads = payloads_named("int4", is_widening=True)
    assert isinstance(payloads, SumPayloads)
    bits = next(bits for bits, most in ((4, 8), (5, 32), (6, 128), (7, 512)) if num_members <= most)
    mask = (1 << num_members) - 1
    expected = 2 * 40 + NUM_ELEMENTS * bits // 8
    sizes = range(4 * NUM_ELEMENTS)
    for is_average, size in ((False, expected), (True, 2 * 40 + NUM_ELEMENTS // 2)):
        lengths = [
            n for n in sizes if payloads.is_length(n, NUM_ELEMENTS, mask, is_average=is_average)
        ]
        assert lengths == [size]
        coder = payloads.coder if is_average else payloads.coder.of_sum(num_members)
        payload = coder.encode(VECTORS[0])
        payloads.check(payload, NUM_ELEMENTS, mask, is_average=is_average)
        if num_members > 8:
            with pytest.raises(MalformedError):
                payloads.check(payload, NUM_ELEMENTS, mask, is_average=not is_average)


@pytest.mark.parametrize("num_members", [1, 2, 8, 9, 16, 64, 256])
def test_the_mean_of_a_widening_ring_is_what_its_links_carry(num_members: int) -> None:
    payloads = payloads_named("int4", is_widening=True)
    assert isinstance(payloads, SumPayloads)
    links = [payloads.part_bytes(NUM_ELEMENTS)] * max(1, num_members - 1)
    links += [payloads.coder.of_sum(n).encoded_bytes(NUM_ELEMENTS) for n in range(1, num_members)]
    assert abs(payloads.mean_bytes(NUM_ELEMENTS, num_members) - sum(links) / len(links)) < 1


CHUNK_ELEMENTS = 262_144


def with_sums(
    top_k: int = 64, chunk_elements: int = CHUNK_ELEMENTS, *, is_packing: bool = False
) -> SetPayloads:
    payloads = payloads_named(SPARSE, top_k, sparse_sums_of=chunk_elements, is_packing=is_packing)
    assert isinstance(payloads, SetPayloads)
    return payloads


@pytest.mark.parametrize(
    ("top_k", "members", "packed_members"),
    [
        (1, 256, 256),
        (64, 26, 25),
        (128, 12, 14),
        (384, 4, 6),
        (1024, 1, 2),
        (2048, 0, 2),
        (4096, 0, 1),
    ],
)
def test_a_set_has_as_many_members_as_are_shorter_than_sums(
    top_k: int, members: int, packed_members: int
) -> None:
    assert with_sums(top_k).set_members_max == members
    assert with_sums(top_k, is_packing=True).set_members_max == packed_members
    for elements in (limits.CHUNK_ELEMENTS_MIN, 65_536, limits.CHUNK_ELEMENTS_MAX):
        for payloads in (with_sums(top_k, elements), with_sums(top_k, elements, is_packing=True)):
            assert payloads.members_max(elements) == limits.RING_MEMBERS_MAX
            longest = payloads.set_members_max * payloads.part_bytes(elements)
            assert longest <= limits.BLOCK_BYTES_MAX


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("top_k", [1, 16, 64, 200, 1024, 4096])
@pytest.mark.parametrize("elements", [1024, 65_536, CHUNK_ELEMENTS])
def test_sparse_sends_no_more_than_int4_in_any_ring(
    top_k: int, elements: int, is_packed: bool
) -> None:
    sparse = with_sums(top_k, elements, is_packing=is_packed)
    sets = payloads_named(SPARSE, top_k, is_packing=is_packed)
    dense = payloads_named("int4", is_widening=True)
    for num_members in range(2, limits.RING_MEMBERS_MAX + 1):
        sent = sparse.mean_bytes(elements, num_members, is_packed=is_packed)
        of_int4 = dense.mean_bytes(elements, num_members, is_packed=is_packed)
        of_sets = sets.mean_bytes(elements, num_members, is_packed=is_packed)
        assert sent <= of_int4
        if num_members <= sparse.set_members_max:
            assert sent == of_sets
        elif is_packed:
            assert sent <= of_sets
        else:
            assert of_int4 <= of_sets


@pytest.mark.parametrize("num_members", [1, 2, 25, 26, 27, 64, 256])
def test_a_sparse_payload_has_one_length_for_each_number_of_members(num_members: int) -> None:
    payloads = with_sums()
    assert payloads.sums is not None
    mask = (1 << num_members) - 1
    for is_average in (False, True):
        if num_members > 26:
            coder = payloads.sums if is_average else payloads.sums.of_sum(num_members)
            expected = coder.encoded_bytes(CHUNK_ELEMENTS)
        else:
            expected = num_members * payloads.part_bytes(CHUNK_ELEMENTS)
        for length in (expected - 1, expected, expected + 1):
            found = payloads.is_length(length, CHUNK_ELEMENTS, mask, is_average=is_average)
            assert found == (length == expected)


@pytest.mark.parametrize("num_members", [2, 26, 27, 40, 256])
@pytest.mark.parametrize("top_k", [64, 4096])
def test_the_mean_of_a_ring_whose_sets_become_sums_is_what_its_links_carry(
    num_members: int, top_k: int
) -> None:
    payloads = with_sums(top_k)

    def length_of(members: int, *, is_average: bool) -> int:
        mask, sizes = (1 << members) - 1, range(1, 2 * NUM_ELEMENTS)
        (length,) = [
            n for n in sizes if payloads.is_length(n, NUM_ELEMENTS, mask, is_average=is_average)
        ]
        return length

    links = [length_of(n, is_average=False) for n in range(1, num_members)]
    links += [length_of(num_members, is_average=True)] * (num_members - 1)
    assert abs(payloads.mean_bytes(NUM_ELEMENTS, num_members) - sum(links) / len(links)) < 1


def test_a_sum_is_refused_where_a_set_belongs_and_the_other_way_round() -> None:
    payloads = with_sums()
    assert payloads.sums is not None
    most = payloads.set_members_max
    few, many = (1 << most) - 1, (1 << most + 1) - 1
    list_of_many = b""
    for position in range(most + 1):
        list_of_many = add_record(list_of_many, position, CODER.encode(VECTORS[position % 3]))
    for is_average in (False, True):
        coder = payloads.sums if is_average else payloads.sums.of_sum(most + 1)
        total = bytes(coder.encode(VECTORS[0]))
        payloads.check(total, NUM_ELEMENTS, many, is_average=is_average)
        for payload, mask in ((total, few), (list_of_many, many), (total[:-1], many)):
            with pytest.raises(RemoteProtocolError):
                payloads.check(payload, NUM_ELEMENTS, mask, is_average=is_average)


@pytest.mark.parametrize("positions", [[0], [1, 2], [0, 1, 2]])
def test_the_average_is_weighted_with_tokens(positions: list[int]) -> None:
    average = PAYLOADS.average(set_of(positions), NUM_ELEMENTS, mask_of(positions), TOKENS)
    total = sum(TOKENS[p] for p in positions)
    parts = {p: CODER.decode(CODER.encode(VECTORS[p]), NUM_ELEMENTS) for p in positions}
    norms = sorted(part.squared_norm for part in parts.values())
    median = norms[(len(norms) - 1) // 2]
    expected = sum(
        TOKENS[p] / total * min(1.0, (median / part.squared_norm) ** 0.5) * part.dense(NUM_ELEMENTS)
        for p, part in parts.items()
    )
    np.testing.assert_allclose(average, expected, rtol=1e-5, atol=1e-7)
    # Every peer gets the same bits, in whatever order the records came together.
    again = PAYLOADS.average(set_of(positions[::-1]), NUM_ELEMENTS, mask_of(positions), TOKENS)
    assert (average == again).all()


@pytest.mark.parametrize(
    ("payload", "mask"),
    [
        (set_of([0, 1]), 0b111),
        (set_of([0, 1]), 0b001),
        (set_of([0, 1])[:-1], 0b011),
        (set_of([0]) + b"\x00", 0b001),
        (add_record(None, 0, bytes(CODER.encoded_bytes(NUM_ELEMENTS))), 0b001),
        (add_record(None, 0, b"short"), 0b001),
        (add_record(None, 0, bytes(10**5)), 0b001),
    ],
    ids=["one missing", "one too many", "cut off", "more", "no places", "short", "long"],
)
def test_what_is_no_set_of_these_members(payload: bytes, mask: int) -> None:
    with pytest.raises(RemoteProtocolError):
        PAYLOADS.check(payload, NUM_ELEMENTS, mask)
    with pytest.raises(RemoteProtocolError):
        PAYLOADS.average(payload, NUM_ELEMENTS, mask, TOKENS)


SIGNS = SignPayloads(StepCodec([SignCodec([(2, 64), (1, 3)], 2)]))
UPDATES = [
    SignUpdate(np.array([place, 60, 64, 65 + place, 128, 130]), np.arange(6) % 3 == place)
    for place in range(3)
]


def step_of(parts: dict[int, SignUpdate | None]) -> bytes:
    """A step in which some have parts and others abstain."""
    payload = b""
    for position, update in parts.items():
        block = b"" if update is None else SIGNS.coder.encode(update)
        payload = add_record(payload, position, block)
    return payload


def test_a_step_is_what_its_members_have() -> None:
    payload = step_of({0: UPDATES[0], 3: None, 2: UPDATES[2]})
    SIGNS.check(payload, 1, 0b1101)
    assert SIGNS.is_length(len(payload), 1, 0b1101, is_average=True)
    assert not SIGNS.is_length(len(payload) + 1, 1, 0b1101, is_average=True)
    assert SIGNS.contributors(payload, 0b1101) == 0b0101
    found = SIGNS.updates(payload)
    assert {position: update.places.tolist() for position, update in found.items()} == {
        position: UPDATES[position].places.tolist() for position in (0, 2)
    }
    assert len(step_of({0: UPDATES[0]})) == SIGNS.part_bytes(1)


def test_a_step_in_which_no_member_has_a_part() -> None:
    payload = step_of({0: None, 1: None})
    SIGNS.check(payload, 1, 0b11)
    assert SIGNS.is_length(len(payload), 1, 0b11, is_average=True)
    assert SIGNS.contributors(payload, 0b11) == 0
    assert SIGNS.updates(payload) == {}


@pytest.mark.parametrize(
    ("payload", "mask"),
    [
        (step_of({0: UPDATES[0]}), 0b11),
        (step_of({0: UPDATES[0], 1: None}), 0b01),
        (step_of({0: UPDATES[0]})[:-1], 0b01),
        (add_record(None, 0, b"\xff" * SIGNS.coder.encoded_bytes), 0b01),
    ],
    ids=["one missing", "one too many", "cut off", "no places"],
)
def test_what_is_no_step_of_these_members(payload: bytes, mask: int) -> None:
    with pytest.raises(RemoteProtocolError):
        SIGNS.check(payload, 1, mask)


def test_a_ring_has_no_more_members_than_a_block_has_room_for() -> None:
    assert payloads_named("fp32").members_max(2**20) == limits.RING_MEMBERS_MAX
    assert SIGNS.members_max(1) == limits.RING_MEMBERS_MAX
    large = SetPayloads(SparseCodec(64))
    members = large.members_max(2**20)
    assert members < limits.RING_MEMBERS_MAX
    assert members * large.part_bytes(2**20) <= limits.BLOCK_BYTES_MAX
    assert (members + 1) * large.part_bytes(2**20) > limits.BLOCK_BYTES_MAX


def test_a_contribution_of_a_peer_that_is_not_in_the_ring() -> None:
    payload = add_record(None, 7, CODER.encode(VECTORS[0]))
    with pytest.raises(MalformedError, match="not in the ring"):
        PAYLOADS.average(payload, NUM_ELEMENTS, 1 << 7, TOKENS)
