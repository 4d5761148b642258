"""Codes of five, six and seven bits, for the partial sums of large rings.

Every member of a ring rounds the sum that it passes on. With e the relative error of one encoding,
the sum of k members is rounded by e * sqrt(k) in units of one member's work. With codes of one
width the squares of these errors grow with the square of the ring's size: with `int4` the error of
one average is 0.19 of its length at 8 members, 0.58 at 64 and 2.2 at 256. A bit halves e, so one
bit more for each factor of four in the number of members keeps e * sqrt(k) where it is at
`MEMBERS_OF_FOUR_BITS` members. An average is rounded once, and stays at four bits.

    2 bytes each   a scale for every BLOCK_ELEMENTS values, as of `int4`
    ...            the codes, b bits each: they fill bytes from the lowest bit on, and the unused
                   bits of the last byte are 0

With m = 2**(b - 1) the codes 0 to m stand for the levels

    level(i) = 127 * (9 * i * m**2 + 7 * i**3) / (16 * m**3), rounded to the nearest integer,

and code c from m + 1 on stands for -level(2 * m - c). So there are 2 * m levels, 0 and 127 among
them, and they lie closer together around 0, as those of `int4` do. On normally distributed values
their relative error is 0.046, 0.023 and 0.012. The best levels (Lloyd and Max) are not 2 % better,
and would need tables.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from gossamer.protocol.codecs.block_codecs import (
    LEVEL_MAX,
    BlockCodec,
    Int4Codec,
    Uint8Array,
    signed_extremes,
)
from gossamer.protocol.codecs.chunk_values import Float32Array, padded
from gossamer.protocol.errors import MalformedError

MEMBERS_OF_FOUR_BITS = 8
"""Most members of a sum with codes of four bits. A ring of so many sends the bytes that it sends
without wider codes, and its average is as exact."""

_GROWTH = 4
"""Factor in the number of members for which a sum gets a bit: the rounding error of a sum grows
with the square root of that number, and a bit halves it."""

_GROUP = 8
"""Codes that together fill whole bytes, whatever their width."""


class WideCodec(BlockCodec):
    """Codes of 5, 6 or 7 bits, and an eighth of a bit a value more for the scales. It is no codec
    of a manifest.

    With m the largest magnitude in a block the error of its values is at most max(e * m, 2**-95),
    where e is 0.115, 0.06 or 0.036. A value of the other sign than m and near -m has the largest
    error.
    """

    _scale_bits_checked: ClassVar[int] = 0x7FFF

    def __init__(self, bits: int) -> None:
        self.name, self.bits = f"int{bits}", bits
        levels = np.array(levels_of(bits))
        # Two neighbouring levels are whole numbers, so the same level is nearest to all values
        # between two multiples of one half. The index is the lower one's double, modulo 512.
        # Rounding to whole levels first would move values that lie between two levels always to the
        # same side, and such errors add up in a ring.
        halves = np.arange(512)
        middles = (np.where(halves < 256, halves, halves - 512) + 0.5) / 2
        nearest = np.abs(middles[:, np.newaxis] - levels).argmin(axis=1)
        self._codes_of_halves = nearest.astype(np.uint16)
        pairs = np.arange(1 << 2 * self.bits)
        table = levels.astype(np.float32)
        both = (table[pairs & (1 << self.bits) - 1], table[pairs >> self.bits])
        # The two fp32 levels of every two codes, as one number to copy.
        self._levels_of_pair = np.stack(both, axis=1).view(np.uint64).reshape(-1)

    def _code_bytes(self, num_elements: int) -> int:
        return (self.bits * num_elements + 7) // 8

    def _extremes(self, blocks: Float32Array, scratch: Float32Array) -> Float32Array:
        return signed_extremes(blocks)

    def _codes_of(self, scaled: Float32Array) -> Uint8Array:
        scaled *= np.float32(2)
        np.floor(scaled, out=scaled)
        halves = scaled.astype(np.int16).reshape(-1) & np.int16(511)
        codes = np.take(self._codes_of_halves, halves).reshape(-1, _GROUP)
        groups = np.zeros(len(codes), np.uint64)
        for place in range(0, _GROUP, 2):
            pairs = codes[:, place] | codes[:, place + 1] << np.uint16(self.bits)
            groups |= pairs.astype(np.uint64) << np.uint64(self.bits * place)
        return groups.astype("<u8").view(np.uint8).reshape(-1, 8)[:, : self.bits].reshape(-1)

    def _check_codes(self, codes: Uint8Array, num_elements: int) -> None:
        unused = 8 * len(codes) - self.bits * num_elements
        if unused and codes[-1] >> (8 - unused):
            raise MalformedError(f"an {self.name} chunk with more codes than values")

    def _levels_of(self, codes: Uint8Array, num_elements: int, out: Float32Array) -> None:
        rows = padded(codes, self.bits).reshape(-1, self.bits)
        groups = np.zeros((len(rows), 8), np.uint8)
        groups[:, : self.bits] = rows
        whole = groups.view("<u8").reshape(-1)
        pairs = np.empty((len(rows), _GROUP // 2), np.uint16)
        mask = np.uint64((1 << 2 * self.bits) - 1)
        for place in range(_GROUP // 2):
            pairs[:, place] = whole >> np.uint64(2 * self.bits * place) & mask
        # `out` has whole blocks, and so has room for the zeros of the last group.
        levels = out[: _GROUP * len(rows)].view(np.uint64)
        np.take(self._levels_of_pair, pairs.reshape(-1), out=levels, mode="clip")


def levels_of(bits: int) -> tuple[int, ...]:
    """Levels that the codes of so many bits stand for, by code."""
    m = 1 << bits - 1
    divisor = 16 * m**3
    upper = [
        (2 * LEVEL_MAX * (9 * i * m**2 + 7 * i**3) + divisor) // (2 * divisor) for i in range(m + 1)
    ]
    return (*upper, *(-level for level in upper[m - 1 : 0 : -1]))


_WIDE = (WideCodec(5), WideCodec(6), WideCodec(7))


class WideningInt4Codec(Int4Codec):
    """`int4` whose partial sums have the wider codes of this module."""

    def __init__(self, members_of_four_bits: int = MEMBERS_OF_FOUR_BITS) -> None:
        """`members_of_four_bits`: another number than the protocol's is for tests."""
        self._members_of_four_bits = members_of_four_bits

    def of_sum(self, num_members: int) -> BlockCodec:
        most = self._members_of_four_bits
        if num_members <= most:
            return self
        for wide in _WIDE:
            most *= _GROWTH
            if num_members <= most:
                return wide
        # A ring has at most 256 members, and the last codes are for up to 512.
        return _WIDE[-1]
