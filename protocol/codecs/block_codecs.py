"""The codecs `int8` and `int4`: small integers in blocks, each block with a scale of its own.

    2 bytes each   a scale for every BLOCK_ELEMENTS values, little-endian bfloat16 (the last block
                   may be shorter)
    ...            the codes: a byte a value, or two values a byte, the first one's in the low half

A code stands for an integer level from -127 to 127, and value = level * scale. A level has 7 bits
and a scale 8, so the product is exact in fp32, and the scale is kept within [2**-100, 2**94), so it
is never subnormal: decoding rounds nothing, on any hardware. A block of zeros has the scale 0.

The encoder takes for scale the bfloat16 nearest to (largest magnitude) / 127. That is at most
2**-8 off, so the largest value lies within 126.5 and 127.5 scales: it gets the level 127, nothing
overflows, and encoding what was decoded gives the same bytes again. So the last member of a ring,
who finishes a sum that it encoded itself, loses nothing a second time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from gossamer.protocol.codecs.bfloat16 import Uint16Array, from_bfloat16, to_bfloat16
from gossamer.protocol.codecs.chunk_values import (
    MAGNITUDE_MAX,
    Buffer,
    Float32Array,
    check_length,
    check_to_encode,
    check_vector,
    padded,
)
from gossamer.protocol.errors import MalformedError

Int8Array = npt.NDArray[np.int8]
Uint8Array = npt.NDArray[np.uint8]

BLOCK_ELEMENTS = 128
"""A scale costs 16 bits: an eighth of a bit a value. `int4` then has 4.125 bits, 3,879 times less
than fp32 at every step when H is 500. With 64 values its error on real pseudo-gradients falls by
4 %, and 4.25 bits are too many for 3,800."""

LEVEL_MAX = 127
_SCALE_BYTES = 2
_SCALE_MIN = np.float32(2.0**-100)
# The largest scale is that of a block with MAGNITUDE_MAX.
_SCALE_MIN_BITS, _SCALE_MAX_BITS = to_bfloat16(
    np.array([_SCALE_MIN, MAGNITUDE_MAX / LEVEL_MAX], np.float32)
).tolist()

# Blocks that are worked on at a time: 256 KiB of fp32 stay in the processor's cache.
_PIECE_BLOCKS = 512
_PIECE_ELEMENTS = _PIECE_BLOCKS * BLOCK_ELEMENTS


class BlockCodec(ABC):
    """The common part of all codecs of blocks; a subclass defines the codes. See `TensorCodec`."""

    name: str
    _scale_bits_checked: ClassVar[int]
    """The bits of a scale that have to be in range; the sign bit may be free."""

    @abstractmethod
    def _code_bytes(self, num_elements: int) -> int:
        """Length of the codes of so many values."""

    @abstractmethod
    def _extremes(self, blocks: Float32Array, scratch: Float32Array) -> Float32Array:
        """Returns for each block the value that gets the level 127; NaN if the block contains one.

        blocks: (blocks, BLOCK_ELEMENTS); scratch: the same, to be overwritten; returns (blocks,)
        """

    @abstractmethod
    def _codes_of(self, scaled: Float32Array) -> Uint8Array:
        """Codes of the levels that are nearest to these values, which may be overwritten.

        scaled: (blocks, BLOCK_ELEMENTS), in units of their block's scale, so at most 127.5.
        """

    @abstractmethod
    def _check_codes(self, codes: Uint8Array, num_elements: int) -> None:
        """Raises MalformedError for a code that there is not, in a chunk or a piece of one."""

    @abstractmethod
    def _levels_of(self, codes: Uint8Array, num_elements: int, out: Float32Array) -> None:
        """Writes the levels behind `codes` to the beginning of `out`.

        codes: checked. out: (whole blocks,), so there is room behind the last level.
        """

    def of_sum(self, num_members: int) -> BlockCodec:
        return self

    def encoded_bytes(self, num_elements: int) -> int:
        return _SCALE_BYTES * _num_blocks(num_elements) + self._code_bytes(num_elements)

    def encode(self, values: Float32Array) -> Buffer:
        check_vector(values)
        num_elements = len(values)
        num_blocks = _num_blocks(num_elements)
        data = bytearray(self.encoded_bytes(num_elements))
        scales = np.frombuffer(data, dtype="<u2", count=num_blocks)
        codes = np.frombuffer(data, dtype=np.uint8, offset=_SCALE_BYTES * num_blocks)
        scaled = np.empty((min(num_blocks, _PIECE_BLOCKS), BLOCK_ELEMENTS), np.float32)
        for start in range(0, num_elements, _PIECE_ELEMENTS):
            blocks = _blocks_of(values[start : start + _PIECE_ELEMENTS])
            part = scaled[: len(blocks)]
            extremes = self._extremes(blocks, part)
            check_to_encode(float(np.abs(extremes).max()))
            scale_bits = _scale_bits(extremes)
            first = start // BLOCK_ELEMENTS
            scales[first : first + len(blocks)] = scale_bits
            np.multiply(blocks, _inverses(scale_bits)[:, np.newaxis], out=part)
            stop = min(num_elements, start + _PIECE_ELEMENTS)
            written = slice(self._code_bytes(start), self._code_bytes(stop))
            codes[written] = self._codes_of(part)[: written.stop - written.start]
        return data

    def decode(self, data: Buffer, num_elements: int) -> Float32Array:
        check_length(self.name, data, num_elements, self.encoded_bytes(num_elements))
        num_blocks = _num_blocks(num_elements)
        scale_bits = np.frombuffer(data, dtype="<u2", count=num_blocks).astype(np.uint16)
        self._check_scales(scale_bits)
        codes = np.frombuffer(data, dtype=np.uint8, offset=_SCALE_BYTES * num_blocks)
        values = np.empty(num_elements, np.float32)
        scratch = np.zeros((min(num_blocks, _PIECE_BLOCKS), BLOCK_ELEMENTS), np.float32)
        for start in range(0, num_elements, _PIECE_ELEMENTS):
            stop = min(num_elements, start + _PIECE_ELEMENTS)
            levels = scratch[: _num_blocks(stop - start)]
            flat = levels.reshape(-1)
            part = codes[self._code_bytes(start) : self._code_bytes(stop)]
            self._check_codes(part, stop - start)
            self._levels_of(part, stop - start, flat)
            flat[stop - start :] = 0.0  # an earlier piece may have been there
            first = start // BLOCK_ELEMENTS
            bits = scale_bits[first : first + len(levels)]
            if not bits.all() and levels[bits == 0].any():
                raise MalformedError(f"a block of an {self.name} chunk is zero and has codes")
            np.multiply(levels, from_bfloat16(bits)[:, np.newaxis], out=levels)
            values[start:stop] = flat[: stop - start]
        return values

    def check(self, data: Buffer, num_elements: int) -> None:
        """See `TensorCodec.check`. Only what has a block of zeros is decoded for it."""
        check_length(self.name, data, num_elements, self.encoded_bytes(num_elements))
        num_blocks = _num_blocks(num_elements)
        scale_bits = np.frombuffer(data, dtype="<u2", count=num_blocks).astype(np.uint16)
        if not scale_bits.all():
            self.decode(data, num_elements)
            return
        self._check_scales(scale_bits)
        codes = np.frombuffer(data, dtype=np.uint8, offset=_SCALE_BYTES * num_blocks)
        self._check_codes(codes, num_elements)

    def _check_scales(self, bits: Uint16Array) -> None:
        magnitudes = bits & np.uint16(self._scale_bits_checked)
        is_valid = (magnitudes >= _SCALE_MIN_BITS) & (magnitudes <= _SCALE_MAX_BITS) | (bits == 0)
        if not is_valid.all():
            bad = from_bfloat16(bits[~is_valid][:1])[0]
            raise MalformedError(f"a scale of an {self.name} chunk is {bad}")


class Int8Codec(BlockCodec):
    """8.125 bits a value. A code is its level, in two's complement; -128 is none.

    With m the largest magnitude in a block the error of its values is at most
    max(m / 252, 2**-101).
    """

    name = "int8"
    _scale_bits_checked: ClassVar[int] = 0xFFFF

    def _code_bytes(self, num_elements: int) -> int:
        return num_elements

    def _extremes(self, blocks: Float32Array, scratch: Float32Array) -> Float32Array:
        # One pass along the blocks, which takes five times as long as the magnitudes of all values.
        magnitudes: Float32Array = np.abs(blocks, out=scratch).max(axis=1)
        return magnitudes

    def _codes_of(self, scaled: Float32Array) -> Uint8Array:
        return _rounded(scaled).view(np.uint8)

    def _check_codes(self, codes: Uint8Array, num_elements: int) -> None:
        if codes.view(np.int8).min() < -LEVEL_MAX:
            raise MalformedError("an int8 chunk with the code -128")

    def _levels_of(self, codes: Uint8Array, num_elements: int, out: Float32Array) -> None:
        out[:num_elements] = codes.view(np.int8)


class Int4Codec(BlockCodec):
    """4.125 bits a value. A code is one of sixteen levels, which lie closer together around 0.

    The levels are those with the least squared error (Lloyd and Max) for blocks of 128 values that
    are half of them Gaussian, half Laplacian, given that 0 and the largest value are exact; the
    scale's sign turns the block so that the largest value is on the side that reaches 127. The
    relative error on pseudo-gradients is 0.086, against 0.106 of the levels -7 to 7, 0.092 of NF4
    (arXiv 2305.14314) and 0.196 of the E3M0 of Streaming DiLoCo (arXiv 2501.18512).

    With m the largest magnitude in a block the error of its values is at most
    max(0.16 * m, 2**-95); a value of the other sign than m and near -m has the largest.
    """

    name = "int4"
    _scale_bits_checked: ClassVar[int] = 0x7FFF

    def _code_bytes(self, num_elements: int) -> int:
        return (num_elements + 1) // 2

    def _extremes(self, blocks: Float32Array, scratch: Float32Array) -> Float32Array:
        return signed_extremes(blocks)

    def _codes_of(self, scaled: Float32Array) -> Uint8Array:
        return np.take(_PAIR_OF_LEVELS, _rounded(scaled).view("<u2"))

    def _check_codes(self, codes: Uint8Array, num_elements: int) -> None:
        if num_elements % 2 and codes[-1] >> 4:
            raise MalformedError("an int4 chunk with more codes than values")

    def _levels_of(self, codes: Uint8Array, num_elements: int, out: Float32Array) -> None:
        pairs = out[: 2 * len(codes)].view(np.uint64)
        np.take(_LEVELS_OF_PAIR, codes, out=pairs, mode="clip")


INT4_LEVELS = (0, 10, 20, 32, 45, 60, 77, 97, 127, -108, -83, -64, -48, -34, -22, -10)
"""Levels that the codes 0 to 15 of `int4` stand for."""


def _pair_of_levels() -> Uint8Array:
    """Codes of every two levels from -128 to 127; the index is their bytes, the first one low."""
    grid = np.array(INT4_LEVELS, np.int16)
    levels = np.arange(256, dtype=np.uint8).view(np.int8).astype(np.int16)
    nearest = np.abs(levels[:, np.newaxis] - grid).argmin(axis=1).astype(np.uint8)
    pairs: Uint8Array = (nearest | nearest[:, np.newaxis] << 4).reshape(-1)
    return pairs


def _levels_of_pair() -> npt.NDArray[np.uint64]:
    """The two fp32 levels of every byte of codes, as one number each to copy."""
    grid = np.array(INT4_LEVELS, np.float32)
    codes = np.arange(256)
    return np.stack((grid[codes & 15], grid[codes >> 4]), axis=1).view(np.uint64).reshape(-1)


_PAIR_OF_LEVELS = _pair_of_levels()
_LEVELS_OF_PAIR = _levels_of_pair()


def _rounded(scaled: Float32Array) -> Int8Array:
    """The nearest whole levels, (elements,); `scaled` is overwritten."""
    np.rint(scaled, out=scaled)
    return scaled.astype(np.int8).reshape(-1)


def signed_extremes(blocks: Float32Array) -> Float32Array:
    """Returns the value of largest magnitude of each block, with its sign; NaN if the block has
    one. blocks: (blocks, BLOCK_ELEMENTS); returns (blocks,)"""
    high, low = blocks.max(axis=1), blocks.min(axis=1)
    # Where there is a NaN both are NaN, and so is the result.
    extremes: Float32Array = np.where(high >= -low, high, low)
    return extremes


def _num_blocks(num_elements: int) -> int:
    return -(-num_elements // BLOCK_ELEMENTS)


def _blocks_of(values: Float32Array) -> Float32Array:
    """`values` (elements,) as (blocks, BLOCK_ELEMENTS), the last one filled with zeros."""
    return padded(values, BLOCK_ELEMENTS).reshape(-1, BLOCK_ELEMENTS)


def _scale_bits(extremes: Float32Array) -> Uint16Array:
    """The bfloat16 scales of blocks with these extremes: nearest to a 127th, ties to even."""
    wanted = extremes / np.float32(LEVEL_MAX)
    magnitudes = np.maximum(np.abs(wanted), _SCALE_MIN)
    return to_bfloat16(np.where(extremes == 0, np.float32(0), np.copysign(magnitudes, wanted)))


def _inverses(scale_bits: Uint16Array) -> Float32Array:
    """One divided by the scales; 0 for the scale 0."""
    scales = from_bfloat16(scale_bits)
    inverses = np.zeros_like(scales)
    np.divide(np.float32(1), scales, out=inverses, where=scales != 0)
    return inverses
