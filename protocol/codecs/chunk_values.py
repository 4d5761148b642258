"""Rules for the values of a chunk that hold for every codec, and the checks of them."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from gossamer.protocol.errors import MalformedError

_Values = TypeVar("_Values", bound=np.generic)

Float32Array = npt.NDArray[np.float32]
Buffer = bytes | bytearray | memoryview

# Far above any pseudo-gradient, weighted by tokens or not, and far below the end of fp32 (2**128):
# the sum of a whole ring's decoded chunks cannot become infinite.
MAGNITUDE_MAX = 2.0**100

WORK_MAGNITUDE_MAX = 2.0**64
"""Upper bound on the magnitude of a value of a peer's own work. No healthy trainer comes near it.
It is less than half a unit in the last place of `MAGNITUDE_MAX` (2**75), so such a part takes no
sum out of range that could be decoded: a sum that cannot be encoded was spoilt before."""


def magnitude_of(values: Float32Array) -> float:
    """Largest absolute value; NaN if there is one. Two reductions and no temporary array."""
    return max(float(values.max()), -float(values.min()))


def is_usable(work: Float32Array) -> bool:
    """Returns whether all values of a peer's own work are numbers of at most
    `WORK_MAGNITUDE_MAX`."""
    return not work.size or magnitude_of(work) <= WORK_MAGNITUDE_MAX  # NaN fails


def usable(work: Float32Array) -> Float32Array:
    """A part of a peer's own work, checked once more before it goes out.

    Raises:
        ValueError: a value is out of range.
    """
    if not is_usable(work):
        raise ValueError(f"own work has a value of {magnitude_of(work)}")
    return work


def check_vector(values: Float32Array) -> None:
    """Raises ValueError unless `values` is a vector of fp32 with at least one element."""
    if values.dtype != np.float32 or values.ndim != 1 or not len(values):
        raise ValueError(f"a chunk is a vector of float32, not {values.dtype} {values.shape}")


def check_to_encode(magnitude: float) -> None:
    """Raises ValueError unless values of this magnitude may be encoded."""
    if not magnitude <= MAGNITUDE_MAX:
        raise ValueError(f"a chunk holds {magnitude}: not finite or above {MAGNITUDE_MAX:g}")


def check_decoded(values: Float32Array) -> None:
    """Raises MalformedError unless all of `values` are in range."""
    magnitude = magnitude_of(values)
    if not magnitude <= MAGNITUDE_MAX:
        raise MalformedError(f"a chunk holds {magnitude}: not finite or above {MAGNITUDE_MAX:g}")


def check_length(name: str, data: Buffer, num_elements: int, expected_bytes: int) -> None:
    """Raises MalformedError unless `data` is as long as a chunk of so many elements has to be."""
    if num_elements < 1:
        raise ValueError(f"a chunk has at least one element, not {num_elements}")
    num_bytes = memoryview(data).nbytes
    if num_bytes != expected_bytes:
        raise MalformedError(f"{name} chunk of {num_elements} elements in {num_bytes} bytes")


def padded(values: npt.NDArray[_Values], multiple: int) -> npt.NDArray[_Values]:
    """`values` (one dimension) with zeros up to a multiple of so many elements.

    `np.pad` does the same, and spends far longer on its options than on a short vector.
    """
    num_missing = -len(values) % multiple
    if not num_missing:
        return values
    return np.concatenate((values, np.zeros(num_missing, values.dtype)))
