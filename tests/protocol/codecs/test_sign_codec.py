from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.protocol.codecs.sign_codec import Shape, SignCodec, SignUpdate
from gossamer.protocol.errors import MalformedError


def random_update(shapes: list[Shape], k: int, seed: int) -> SignUpdate:
    rng = np.random.default_rng(seed)
    places: list[int] = []
    first = 0
    for num_tiles, coefficients in shapes:
        for _ in range(num_tiles):
            chosen = np.sort(rng.choice(coefficients, min(k, coefficients), replace=False))
            places += [first + int(place) for place in chosen]
            first += coefficients
    return SignUpdate(np.array(places), rng.random(len(places)) < 0.5)


@given(
    shapes=st.lists(
        st.tuples(
            st.integers(1, 5), st.sampled_from([1, 2, 3, 63, 64, 4096]) | st.integers(1, 4096)
        ),
        min_size=1,
        max_size=4,
    ),
    k=st.integers(1, 9),
    seed=st.integers(0, 2**32 - 1),
)
def test_signs_come_back(shapes: list[Shape], k: int, seed: int) -> None:
    codec, update = SignCodec(shapes, k), random_update(shapes, k, seed)
    data = codec.encode(update)
    assert len(data) == codec.encoded_bytes
    decoded = codec.decode(data)
    assert np.array_equal(decoded.places, update.places)
    assert np.array_equal(decoded.is_positive, update.is_positive)


def test_bytes_are_pinned() -> None:
    """Index 1 positive, 4095 negative: 12 bits and a sign each, lowest first. Then one of two."""
    update = SignUpdate(np.array([1, 4095]), np.array([True, False]))
    assert SignCodec([(1, 4096)], 2).encode(update).hex() == "01e0ff03"
    # A tile of one has no index: its sign is the next bit.
    update = SignUpdate(np.array([1, 4095, 4096]), np.array([True, False, False]))
    assert SignCodec([(1, 4096), (1, 1)], 2).encode(update).hex() == "01e0ff07"


def test_four_of_4096_cost_52_bits() -> None:
    assert SignCodec([(1000, 4096)], 4).encoded_bytes == 6500
    assert SignCodec([(64, 64)], 4).encoded_bytes == 64 * 4 * 7 // 8
    assert SignCodec([(1000, 4096), (64, 64)], 4).encoded_bytes == 6500 + 64 * 4 * 7 // 8


SHAPES: list[Shape] = [(3, 50)]
CODEC = SignCodec(SHAPES, 2)
YES = np.ones(6, bool)
DATA = CODEC.encode(SignUpdate(np.array([0, 49, 53, 54, 100, 101]), YES))


@pytest.mark.parametrize(
    "data",
    [
        DATA[:-1],
        DATA + b"\0",
        b"",
        bytes(len(DATA)),  # twice the index 0
        b"\xff" * len(DATA),  # bits behind the last entry
        DATA[:-1] + bytes([DATA[-1] | 0x80]),
        DATA[::-1],
    ],
)
def test_what_encode_does_not_write_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedError):
        CODEC.decode(data)


def test_a_flipped_bit_is_another_update_or_malformed() -> None:
    """No two texts of bits mean the same, over tensors with tiles of several sizes."""
    shapes = [(2, 50), (1, 1), (3, 4096), (1, 2), (1, 4095)]
    codec = SignCodec(shapes, 3)
    data = codec.encode(random_update(shapes, 3, seed=0))
    num_malformed = 0
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            update = codec.decode(flipped)
        except MalformedError:
            num_malformed += 1
        else:
            assert codec.encode(update) == flipped
    assert 0 < num_malformed < 8 * len(data)


@pytest.mark.parametrize(
    "places",
    [
        [0, 50, 53, 54, 100, 101],
        [-1, 3, 53, 54, 100, 101],
        [4, 4, 53, 54, 100, 101],
        [5, 4, 53, 54, 100, 101],
        [0, 49, 53, 54, 100, 150],
    ],
)
def test_places_that_are_none_are_not_encoded(places: list[int]) -> None:
    with pytest.raises(ValueError, match="places"):
        CODEC.encode(SignUpdate(np.array(places), YES))


def test_another_number_of_signs_is_not_encoded() -> None:
    with pytest.raises(ValueError, match="instead of 6"):
        CODEC.encode(SignUpdate(np.array([0, 1]), np.array([True, True])))
    with pytest.raises(ValueError, match="instead of 6"):
        CODEC.encode(SignUpdate(np.array([0, 49, 53, 54, 100, 101]), YES[:-1]))


@pytest.mark.parametrize(
    ("shapes", "k"), [([], 4), ([(0, 64)], 4), ([(1, 0)], 1), ([(1, 4097)], 4), ([(1, 64)], 0)]
)
def test_shapes_have_a_range(shapes: list[Shape], k: int) -> None:
    with pytest.raises(ValueError, match="of"):
        SignCodec(shapes, k)


@given(data=st.binary(min_size=6, max_size=6))
def test_any_bytes_are_signs_or_malformed(data: bytes) -> None:
    assert CODEC.encoded_bytes == 6
    try:
        update = CODEC.decode(data)
    except MalformedError:
        return
    assert CODEC.encode(update) == data
