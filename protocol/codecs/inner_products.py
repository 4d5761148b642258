"""Inner products and norms that have the same bits on every machine."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

LANES = 4096
"""Running sums of an inner product: element i goes to lane i mod `LANES`."""

FloatArray = npt.NDArray[np.float32] | npt.NDArray[np.float64]


def inner_product(a: FloatArray, b: FloatArray) -> float:
    """The sum of products of two vectors, (num_elements,) each.

    A product of two fp32 is exact in float64, and one of float64 is rounded by itself. The lanes
    are added up one row after the other, each addition rounded by itself, and the sum of the lanes
    is rounded once.
    """
    lanes = np.zeros(LANES)
    for start in range(0, len(a), LANES):
        left = a[start : start + LANES].astype(np.float64)
        left *= b[start : start + LANES]
        lanes[: len(left)] += left
    return math.fsum(lanes)


def norm_of(vector: FloatArray) -> float:
    """The Euclidean norm of a vector, (num_elements,)."""
    return math.sqrt(inner_product(vector, vector))
