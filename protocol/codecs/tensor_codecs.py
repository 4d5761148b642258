"""Codecs of the dense ring: how a chunk of fp32 values is written for the wire.

A codec is one class with a fixed `name` (the manifest's `codec`) and no state, so the bytes depend
on the values alone. Every codec keeps these rules:

- `decode` of the same bytes gives the same bits on any hardware: it uses nothing but exact
  conversions, and multiplications that IEEE 754 fixes and that never touch a subnormal number.
- Values are finite and at most `MAGNITUDE_MAX` on both sides. `encode` raises `ValueError` for
  others (our own values, or a sum that grew too large), `decode` raises `MalformedError`.

`int8` and `int4` are in `block_codecs.py`, and the wider codes of large rings in `wide_codecs.py`.
To add a codec: a class, and its place in `_ALL`.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gossamer.protocol.codecs.block_codecs import Int4Codec, Int8Codec
from gossamer.protocol.codecs.chunk_values import (
    Buffer,
    Float32Array,
    check_decoded,
    check_length,
    check_to_encode,
    check_vector,
    magnitude_of,
)
from gossamer.protocol.codecs.wide_codecs import WideningInt4Codec
from gossamer.protocol.errors import MalformedError, VersionError


class TensorCodec(Protocol):
    """One way to write a chunk."""

    name: str

    def of_sum(self, num_members: int) -> TensorCodec:
        """The codec of a partial sum of so many members, 1 or more. This codec itself is that of
        averages and of one member's part."""

    def encoded_bytes(self, num_elements: int) -> int:
        """Length of an encoded chunk of `num_elements` values."""

    def encode(self, values: Float32Array) -> Buffer:
        """Bytes of `values` (one dimension, at least one element).

        The result may share memory with `values`: send or copy it before they change.

        Raises:
            ValueError: not a vector of fp32, not finite, or above `MAGNITUDE_MAX`.
        """

    def decode(self, data: Buffer, num_elements: int) -> Float32Array:
        """The `num_elements` values in `data`. The result may share memory with `data` and be
        read-only.

        Raises:
            MalformedError: wrong length, a value that is not finite or above `MAGNITUDE_MAX`, or
                anything else that `encode` does not write.
        """

    def check(self, data: Buffer, num_elements: int) -> None:
        """Raises MalformedError exactly where `decode` does, and makes no values where it can."""


class Fp32Codec:
    """Little-endian fp32, exact. Four bytes an element; neither side copies."""

    name = "fp32"

    def of_sum(self, num_members: int) -> Fp32Codec:
        return self

    def encoded_bytes(self, num_elements: int) -> int:
        return 4 * num_elements

    def encode(self, values: Float32Array) -> Buffer:
        check_vector(values)
        check_to_encode(magnitude_of(values))
        return np.ascontiguousarray(values, dtype="<f4").view(np.uint8).data

    def decode(self, data: Buffer, num_elements: int) -> Float32Array:
        check_length(self.name, data, num_elements, self.encoded_bytes(num_elements))
        values = np.frombuffer(data, dtype="<f4").astype(np.float32, copy=False)
        check_decoded(values)
        return values

    def check(self, data: Buffer, num_elements: int) -> None:
        self.decode(data, num_elements)  # a view


class Fp16Codec:
    """A scale and halves: value = half * scale.

        4 bytes       scale, little-endian fp32: a power of two
        2 bytes each  IEEE 754 binary16, little-endian, rounded to nearest even

    The scale brings the chunk's largest magnitude into [2**14, 2**15), one factor of two below the
    largest half, so small pseudo-gradients keep a half's full precision over 28 powers of two below
    their maximum. With m the chunk's largest magnitude the error of a value x is at most

        max(2**-11 * abs(x),  2**-39 * m,  2**-125).

    The scale is kept within [2**-100, 2**86]: any half times such a scale is a normal fp32 number,
    so decoding is exact, also on hardware that flushes subnormal numbers to zero.
    """

    name = "fp16"

    def of_sum(self, num_members: int) -> Fp16Codec:
        return self

    def encoded_bytes(self, num_elements: int) -> int:
        return _SCALE_BYTES + 2 * num_elements

    def encode(self, values: Float32Array) -> Buffer:
        check_vector(values)
        magnitude = magnitude_of(values)
        check_to_encode(magnitude)
        exponent = int(np.frexp(magnitude)[1]) - _HALF_EXPONENT if magnitude else 0
        exponent = max(exponent, _SCALE_EXPONENT_MIN)
        data = bytearray(self.encoded_bytes(len(values)))
        np.frombuffer(data, dtype="<f4", count=1)[0] = np.float32(2.0**exponent)
        halves = np.frombuffer(data, dtype="<f2", offset=_SCALE_BYTES)
        inverse = np.float32(2.0**-exponent)
        # Piecewise, so that the scaled values stay in the processor's cache.
        for start in range(0, len(values), _PIECE_ELEMENTS):
            piece = slice(start, start + _PIECE_ELEMENTS)
            halves[piece] = values[piece] * inverse
        return data

    def decode(self, data: Buffer, num_elements: int) -> Float32Array:
        scale, halves = self._parts(data, num_elements)
        values = _scaled(halves, scale)
        check_decoded(values)
        return values

    def check(self, data: Buffer, num_elements: int) -> None:
        """See `TensorCodec.check`. Without their signs, halves are in the order of their bits,
        with the infinite one and NaN behind all others: the last one shows for all."""
        scale, halves = self._parts(data, num_elements)
        largest = (halves.view("<u2") & np.uint16(0x7FFF)).max(keepdims=True).view(np.float16)
        check_decoded(_scaled(largest, scale))

    def _parts(self, data: Buffer, num_elements: int) -> tuple[np.float32, NDArray[np.float16]]:
        """The scale and the halves, (num_elements,). Raises MalformedError."""
        check_length(self.name, data, num_elements, self.encoded_bytes(num_elements))
        scale = np.frombuffer(data, dtype="<f4", count=1)[0]
        if not _SCALE_MIN <= scale <= _SCALE_MAX or np.frexp(scale)[0] != 0.5:
            raise MalformedError(f"the scale of an fp16 chunk is {scale}, not a power of two")
        return np.float32(scale), np.frombuffer(data, dtype="<f2", offset=_SCALE_BYTES)


def _scaled(halves: NDArray[np.float16], scale: np.float32) -> Float32Array:
    """The values of halves. NaN stays NaN, for the caller to refuse."""
    # Of a signalling NaN, which only damage or malice writes, numpy warns otherwise.
    with np.errstate(invalid="ignore"):
        return np.multiply(halves, scale, dtype=np.float32)


_SCALE_BYTES = 4
_HALF_EXPONENT = 15
_SCALE_EXPONENT_MIN = -100
_SCALE_MIN = 2.0**_SCALE_EXPONENT_MIN
# frexp(MAGNITUDE_MAX) has the exponent 101.
_SCALE_MAX = 2.0 ** (101 - _HALF_EXPONENT)
_PIECE_ELEMENTS = 16 * 1024

_ALL: tuple[TensorCodec, ...] = (Fp32Codec(), Fp16Codec(), Int8Codec(), Int4Codec())
_CODECS = {each.name: each for each in _ALL}
_WIDENING: dict[str, TensorCodec] = {"int4": WideningInt4Codec()}


def codec(name: str, *, is_widening: bool = False) -> TensorCodec:
    """The codec of that name.

    Args:
        is_widening: whether sums of many members have wider codes, where the codec has such.

    Raises:
        VersionError: this version does not know it.
    """
    found = _WIDENING.get(name) if is_widening else None
    found = found or _CODECS.get(name)
    if found is None:
        raise VersionError(f"unknown codec {name!r}; this version knows {', '.join(_CODECS)}")
    return found


def codec_names() -> tuple[str, ...]:
    """The names that `codec` knows."""
    return tuple(_CODECS)
