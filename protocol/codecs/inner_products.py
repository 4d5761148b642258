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
    lanes, products, factors = np.zeros(LANES), np.empty(LANES), np.empty(LANES)
    for start in range(0, len(a), LANES):
        row = a[start : start + LANES]
        of_row = products[: len(row)]
        np.copyto(of_row, row)
        factor = of_row
        if a is not b:
            factor = factors[: len(row)]
            np.copyto(factor, b[start : start + LANES])
        np.multiply(of_row, factor, out=of_row)
        sums = lanes[: len(row)]
        np.add(sums, of_row, out=sums)
    return math.fsum(lanes.tolist())


def norm_of(vector: FloatArray) -> float:
    """The Euclidean norm of a vector, (num_elements,)."""
    return math.sqrt(inner_product(vector, vector))
