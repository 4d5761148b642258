from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.protocol.errors import MalformedError
from gossamer.protocol.sign_codec import SignCodec, Signs


@st.composite
def codecs_and_signs(draw: st.DrawFn) -> tuple[SignCodec, Signs]:
    coefficients = draw(st.sampled_from([2, 3, 63, 64, 4096]) | st.integers(2, 4096))
    codec = SignCodec(
        draw(st.integers(1, 5)), coefficients, draw(st.integers(1, min(coefficients, 9)))
    )
    return codec, random_signs(codec, draw(st.integers(0, 2**32 - 1)))


def random_signs(codec: SignCodec, seed: int) -> Signs:
    rng = np.random.default_rng(seed)
    indices = [
        np.sort(rng.choice(codec.chunk_coefficients, codec.k, replace=False))
        for _ in range(codec.num_chunks)
    ]
    return Signs(np.array(indices), rng.random((codec.num_chunks, codec.k)) < 0.5)


@given(case=codecs_and_signs())
def test_signs_come_back(case: tuple[SignCodec, Signs]) -> None:
    codec, signs = case
    data = codec.encode(signs)
    assert len(data) == codec.encoded_bytes
    decoded = codec.decode(data)
    assert np.array_equal(decoded.indices, signs.indices)
    assert np.array_equal(decoded.is_negative, signs.is_negative)


def test_bytes_are_pinned() -> None:
    """Index 1 positive, 4095 negative: 12 bits and a sign each, lowest first."""
    signs = Signs(np.array([[1, 4095]]), np.array([[False, True]]))
    assert SignCodec(1, 4096, 2).encode(signs).hex() == "01e0ff03"


def test_four_of_4096_cost_52_bits() -> None:
    assert SignCodec(1000, 4096, 4).encoded_bytes == 6500
    assert SignCodec(64, 64, 4).encoded_bytes == 64 * 4 * 7 // 8


CODEC = SignCodec(3, 50, 2)
DATA = CODEC.encode(Signs(np.array([[0, 49], [3, 4], [0, 1]]), np.zeros((3, 2), bool)))


@pytest.mark.parametrize(
    "data",
    [
        DATA[:-1],
        DATA + b"\0",
        b"",
        bytes(len(DATA)),  # twice the index 0
        b"\xff" * len(DATA),  # bits behind the last entry
        DATA[:-1] + bytes([DATA[-1] | 0x80]),
        CODEC.encode(Signs(np.array([[0, 49], [3, 4], [0, 1]]), np.zeros((3, 2), bool)))[::-1],
    ],
)
def test_what_encode_does_not_write_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedError):
        CODEC.decode(data)


@pytest.mark.parametrize("indices", [[[0, 50]] * 3, [[-1, 3]] * 3, [[4, 4]] * 3, [[5, 4]] * 3])
def test_indices_that_are_none_are_not_encoded(indices: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="indices"):
        CODEC.encode(Signs(np.array(indices), np.zeros((3, 2), bool)))


def test_signs_of_another_shape_are_not_encoded() -> None:
    with pytest.raises(ValueError, match="shape"):
        CODEC.encode(Signs(np.array([[0, 1]]), np.zeros((1, 2), bool)))


@pytest.mark.parametrize("shape", [(0, 64, 4), (1, 1, 1), (1, 4097, 4), (1, 64, 0), (1, 64, 65)])
def test_shapes_have_a_range(shape: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="of"):
        SignCodec(*shape)


@given(data=st.binary(min_size=6, max_size=6))
def test_any_bytes_are_signs_or_malformed(data: bytes) -> None:
    assert CODEC.encoded_bytes == 6
    try:
        signs = CODEC.decode(data)
    except MalformedError:
        return
    assert CODEC.encode(signs) == data


def test_the_mean_is_over_those_who_sent_the_coefficient() -> None:
    codec = SignCodec(2, 4, 2)
    indices = [[[0, 1], [2, 3]], [[0, 2], [2, 3]], [[0, 3], [0, 3]]]
    negative = [[[0, 1], [0, 1]], [[1, 0], [1, 1]], [[0, 0], [0, 1]]]
    contributions = [
        Signs(np.array(i), np.array(n, bool)) for i, n in zip(indices, negative, strict=True)
    ]
    third = np.float32(1) / np.float32(3)
    expected = [[third, -1.0, 1.0, 1.0], [1.0, 0.0, 0.0, -1.0]]
    means = codec.reduce(contributions)
    assert means.dtype == np.float32
    assert means.tolist() == expected
    assert codec.reduce(contributions[::-1]).tobytes() == means.tobytes()


def test_without_contributions_everything_is_zero() -> None:
    assert not SignCodec(2, 4, 1).reduce([]).any()
