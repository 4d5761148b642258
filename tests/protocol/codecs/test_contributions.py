from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.protocol.codecs.chunk_values import Float32Array
from gossamer.protocol.codecs.contributions import (
    RECORD_PREFIX_BYTES,
    add_record,
    clip_factors,
    reduce,
    split,
)
from gossamer.protocol.codecs.sparse_codec import SparseCodec
from gossamer.protocol.errors import MalformedError, OversizedError

CODEC = SparseCodec(512)
SIZE = 500

BLOCKS = st.dictionaries(st.integers(0, 255), st.binary(max_size=40), min_size=1, max_size=12)


def payload_of(blocks: dict[int, bytes]) -> bytes:
    payload = None
    for position, block in blocks.items():
        payload = add_record(payload, position, block)
    assert payload is not None
    return payload


def mask_of(blocks: dict[int, bytes]) -> int:
    return sum(1 << position for position in blocks)


def noise(seed: int) -> Float32Array:
    return np.random.default_rng(seed).standard_normal(SIZE).astype(np.float32)


def reduced(vectors: dict[int, Float32Array | None], weights: dict[int, int]) -> Float32Array:
    blocks = {p: b"" if v is None else CODEC.encode(v) for p, v in vectors.items()}
    records = split(payload_of(blocks), mask_of(blocks), CODEC.encoded_bytes(SIZE))
    return reduce(records, weights, SIZE, CODEC)


@given(blocks=BLOCKS, data=st.data())
def test_records_come_back_in_ring_order_for_any_order_of_adding(
    blocks: dict[int, bytes], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(sorted(blocks)))
    payload = payload_of({position: blocks[position] for position in order})
    assert len(payload) == sum(RECORD_PREFIX_BYTES + len(block) for block in blocks.values())
    records = split(payload, mask_of(blocks), 40)
    assert [(r.position, bytes(r.block)) for r in records] == sorted(blocks.items())


def test_bytes_are_pinned() -> None:
    payload = add_record(add_record(None, 3, b"later"), 1, b"")
    assert payload.hex() == "0100000000" + "0300000005" + b"later".hex()


def test_no_member_is_in_it_twice() -> None:
    payload = add_record(None, 3, b"x")
    with pytest.raises(MalformedError, match="second record of member 3"):
        add_record(payload, 3, b"y")


@pytest.mark.parametrize("position", [-1, 256])
def test_positions_have_a_range(position: int) -> None:
    with pytest.raises(ValueError, match="ring position"):
        add_record(None, position, b"")


def test_what_does_not_fit_a_frame_is_not_made() -> None:
    with pytest.raises(ValueError, match="do not fit a frame"):
        add_record(add_record(None, 0, bytes(1 << 21)), 1, bytes(1 << 21))


TWO = payload_of({1: b"ab", 4: b"cd"})


@pytest.mark.parametrize(
    ("payload", "mask"),
    [
        (TWO, 0b110010),
        (TWO, 0b00010),
        (TWO, 0),
        (b"", 0b1),
        (TWO[:-1], 0b10010),
        (TWO + b"\0", 0b10010),
        (TWO[:3], 0b10010),
        (TWO[7:] + TWO[:7], 0b10010),
        (TWO[:7] * 2, 0b00010),
        (TWO[:1] + b"\xff\xff\xff\xff" + TWO[5:], 0b10010),
    ],
)
def test_anything_but_one_record_a_member_is_malformed(payload: bytes, mask: int) -> None:
    with pytest.raises(MalformedError):
        split(payload, mask, 2)


def test_a_block_that_is_too_long_is_refused() -> None:
    with pytest.raises(OversizedError):
        split(TWO, 0b10010, 1)


@given(payload=st.binary(max_size=60), mask=st.integers(0, 1 << 8))
def test_any_bytes_are_records_or_malformed(payload: bytes, mask: int) -> None:
    try:
        records = split(payload, mask, 60)
    except MalformedError:
        return
    again = {record.position: bytes(record.block) for record in records}
    assert sum(RECORD_PREFIX_BYTES + len(block) for block in again.values()) == len(payload)
    assert mask_of(again) == mask
    assert not again or payload_of(again) == payload


def test_the_average_is_that_of_plain_arithmetic() -> None:
    """Operation by operation in fp32, in ascending position, with exact norms."""
    vectors = {0: noise(0), 3: noise(1) * np.float32(100), 7: noise(2), 9: noise(3)}
    weights = {0: 5, 3: 1, 7: 2, 9: 7, 11: 1000}
    decoded = {p: CODEC.decode(CODEC.encode(v), SIZE) for p, v in vectors.items()}
    norms = {p: sum(Fraction(float(x)) ** 2 for x in d.values) for p, d in decoded.items()}
    median = sorted(norms.values())[1]
    expected = [np.float32(0.0)] * SIZE
    for position in sorted(vectors):
        clip = math.sqrt(float(median) / float(norms[position]))
        share = np.float32(weights[position] / 15 * min(1.0, clip))
        sparse = decoded[position]
        for place, value in zip(sparse.places.tolist(), sparse.values, strict=True):
            expected[place] = np.float32(expected[place] + np.float32(value * share))
    found = reduced(dict(vectors), weights)
    assert found.tobytes() == np.array(expected, np.float32).tobytes()


def test_a_member_that_abstains_has_no_weight() -> None:
    weights = {0: 1, 1: 99, 2: 1}
    with_it = reduced({0: noise(0), 1: None, 2: noise(2)}, weights)
    assert with_it.tobytes() == reduced({0: noise(0), 2: noise(2)}, weights).tobytes()


def test_if_all_abstain_the_average_is_zero() -> None:
    assert not reduced({0: None, 5: None}, {0: 1, 5: 1}).any()


def test_one_huge_contribution_weighs_no_more_than_the_median() -> None:
    weights = dict.fromkeys(range(3), 1)
    honest = reduced({0: noise(0), 1: noise(1), 2: noise(2)}, weights)
    spoilt = reduced({0: noise(0), 1: noise(1) * np.float32(1e6), 2: noise(2)}, weights)
    assert np.linalg.norm(spoilt - honest) < 0.2 * np.linalg.norm(honest)


def test_a_share_too_small_for_exact_arithmetic_counts_as_none() -> None:
    places = np.flatnonzero(CODEC.decode(CODEC.encode(noise(1)), SIZE).dense(SIZE))
    weights = {0: 2**50, 1: 1}
    assert not reduced({0: np.ones(SIZE, np.float32), 1: noise(1)}, weights)[places[-1]]


def test_clipping() -> None:
    assert clip_factors([]) == []
    assert clip_factors([4.0]) == [1.0]
    assert clip_factors([4.0, 1.0]) == [0.5, 1.0]
    assert clip_factors([9.0, 1.0, 4.0]) == [2 / 3, 1.0, 1.0]
    assert clip_factors([0.0, 4.0, 0.0]) == [1.0, 1.0, 1.0]
    assert clip_factors([0.0]) == [1.0]


def test_a_bad_block_is_its_decoders_to_refuse() -> None:
    payload = add_record(None, 0, b"nonsense")
    with pytest.raises(MalformedError):
        reduce(split(payload, 1, 8), {0: 1}, SIZE, CODEC)
