"""Codecs of the dense ring: how a chunk of fp32 values is written for the wire.

A codec is one class with a fixed `name` (the manifest's `codec`) and no state, so the bytes depend
on the values alone. Every codec keeps these rules:

- `decode` of the same bytes gives the same bits on any hardware: it uses nothing but exact
  conversions, and multiplications that IEEE 754 fixes and that never touch a subnormal number.
- Values are finite and at most `MAGNITUDE_MAX` on both sides. `encode` raises `ValueError` for
  others (our own values, or a sum that grew too large), `decode` raises `MalformedError`.

To add a codec: a class, and a line in `_CODECS`.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from gossamer.protocol.errors import MalformedError, VersionError

Float32Array = npt.NDArray[np.float32]
Buffer = bytes | bytearray | memoryview

# Far above any pseudo-gradient, weighted by tokens or not, and far below the end of fp32 (2**128):
# the sum of a whole ring's decoded chunks cannot become infinite.
MAGNITUDE_MAX = 2.0**100


class TensorCodec(Protocol):
    """One way to write a chunk."""

    name: ClassVar[str]

    def encoded_bytes(self, num_elements: int) -> int:
        """Length of an encoded chunk of `num_elements` values."""

    def encode(self, values: Float32Array) -> Buffer:
        """Bytes of `values` (one dimension, at least one element).

        The result may share memory with `values`: send or copy it before they change.

        Raises:
            ValueError: not a vector of fp32, not finite, or above `MAGNITUDE_MAX`.
        """

    def decode(
        self, data: Buffer, num_elements: int, out: Float32Array | None = None
    ) -> Float32Array:
        """The `num_elements` values in `data`, written to `out` if given.

        Without `out` the result may share memory with `data` and be read-only.

        Raises:
            MalformedError: wrong length, a value that is not finite or above `MAGNITUDE_MAX`, or
                anything else that `encode` does not write. `out` then holds no useful values.
        """


class Fp32Codec:
    """Little-endian fp32, exact. Four bytes an element; neither side copies."""

    name: ClassVar[str] = "fp32"

    def encoded_bytes(self, num_elements: int) -> int:
        return 4 * num_elements

    def encode(self, values: Float32Array) -> Buffer:
        _check_vector(values)
        _magnitude_to_encode(values)
        return np.ascontiguousarray(values, dtype="<f4").view(np.uint8).data

    def decode(
        self, data: Buffer, num_elements: int, out: Float32Array | None = None
    ) -> Float32Array:
        _check_length(self, data, num_elements)
        values = np.frombuffer(data, dtype="<f4").astype(np.float32, copy=False)
        _check_decoded(values)
        if out is None:
            return values
        np.copyto(out, values)
        return out


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

    name: ClassVar[str] = "fp16"

    def encoded_bytes(self, num_elements: int) -> int:
        return _SCALE_BYTES + 2 * num_elements

    def encode(self, values: Float32Array) -> Buffer:
        _check_vector(values)
        magnitude = _magnitude_to_encode(values)
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

    def decode(
        self, data: Buffer, num_elements: int, out: Float32Array | None = None
    ) -> Float32Array:
        _check_length(self, data, num_elements)
        scale = np.frombuffer(data, dtype="<f4", count=1)[0]
        if not _SCALE_MIN <= scale <= _SCALE_MAX or np.frexp(scale)[0] != 0.5:
            raise MalformedError(f"the scale of an fp16 chunk is {scale}, not a power of two")
        halves = np.frombuffer(data, dtype="<f2", offset=_SCALE_BYTES)
        values = np.empty(num_elements, np.float32) if out is None else out
        np.multiply(halves, np.float32(scale), out=values, dtype=np.float32)
        _check_decoded(values)
        return values


_SCALE_BYTES = 4
_HALF_EXPONENT = 15
_SCALE_EXPONENT_MIN = -100
_SCALE_MIN = 2.0**_SCALE_EXPONENT_MIN
# frexp(MAGNITUDE_MAX) has the exponent 101.
_SCALE_MAX = 2.0 ** (101 - _HALF_EXPONENT)
_PIECE_ELEMENTS = 16 * 1024

_CODECS: dict[str, TensorCodec] = {each.name: each for each in (Fp32Codec(), Fp16Codec())}


def codec(name: str) -> TensorCodec:
    """The codec of that name.

    Raises:
        VersionError: this version does not know it.
    """
    found = _CODECS.get(name)
    if found is None:
        raise VersionError(f"unknown codec {name!r}; this version knows {', '.join(_CODECS)}")
    return found


def codec_names() -> tuple[str, ...]:
    """The names that `codec` knows."""
    return tuple(_CODECS)


def _magnitude(values: Float32Array) -> float:
    """Largest absolute value; NaN if there is one. Two reductions and no temporary array."""
    return max(float(values.max()), -float(values.min()))


def _check_vector(values: Float32Array) -> None:
    if values.dtype != np.float32 or values.ndim != 1 or not len(values):
        raise ValueError(f"a chunk is a vector of float32, not {values.dtype} {values.shape}")


def _magnitude_to_encode(values: Float32Array) -> float:
    magnitude = _magnitude(values)
    if not magnitude <= MAGNITUDE_MAX:
        raise ValueError(f"a chunk holds {magnitude}: not finite or above {MAGNITUDE_MAX:g}")
    return magnitude


def _check_length(codec: TensorCodec, data: Buffer, num_elements: int) -> None:
    num_bytes = memoryview(data).nbytes
    if num_elements < 1:
        raise ValueError(f"a chunk has at least one element, not {num_elements}")
    if num_bytes != codec.encoded_bytes(num_elements):
        raise MalformedError(f"{codec.name} chunk of {num_elements} elements in {num_bytes} bytes")


def _check_decoded(values: Float32Array) -> None:
    magnitude = _magnitude(values)
    if not magnitude <= MAGNITUDE_MAX:
        raise MalformedError(f"a chunk holds {magnitude}: not finite or above {MAGNITUDE_MAX:g}")
