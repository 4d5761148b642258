"""bfloat16, the upper half of fp32: 8 bits of precision over the whole range of fp32."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float32Array = npt.NDArray[np.float32]
Uint16Array = npt.NDArray[np.uint16]


def to_bfloat16(values: Float32Array) -> Uint16Array:
    """Bits of the nearest bfloat16, ties to even. `values` are finite."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bfloat16(bits: Uint16Array) -> Float32Array:
    """The same values in fp32, exactly."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
