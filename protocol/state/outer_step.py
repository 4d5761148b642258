"""The outer step: Nesterov momentum on the averaged pseudo-gradient (DiLoCo, arXiv 2311.08105,
algorithm 1),

    momentum' = mu * momentum + g
    parameters' = parameters - lr * (g + mu * momentum')

With mu = 0 it is plain averaging, and SparseLoCo's step (arXiv 2508.15706, algorithm 1).

The arithmetic is fp32. Every operation is rounded by itself, in exactly this order, without fused
multiply-adds. So every peer gets the same bits, on any processor. The step equals torch.optim.SGD
with nesterov=True, dampening=0 and a momentum that starts at 0, as long as no parameter leaves
`PARAMETER_MAX`: there it stays.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

PARAMETER_MAX = 2.0**120
"""Largest magnitude of a parameter. No model has such values; averages without a bound on liars can
bring them about. An average has magnitudes up to 2^100, so the momentum stays below 2^114 and a
step below 2^118, with all rates that a manifest may have. So no state ever has a value that is not
finite, from which no later round could lead back."""

# Elements per pass: the pieces of all vectors stay in the second-level cache.
_BLOCK_ELEMENTS = 32 * 1024


def nesterov(
    parameters: NDArray[np.float32],
    momentum: NDArray[np.float32],
    gradient: NDArray[np.float32],
    learning_rate: float,
    mu: float,
    out_parameters: NDArray[np.float32],
    out_momentum: NDArray[np.float32],
) -> None:
    """One outer step of a chunk. All vectors are (num_elements,), and elements are independent.

    `out_parameters` may be `parameters` and `out_momentum` may be `momentum`; no other overlap.
    The step needs 256 KiB beside its arguments and releases the GIL, so it can run in a thread.

    Raises:
        ValueError: vectors of different shapes or of another type than fp32.
    """
    _check(parameters, momentum, gradient, out_parameters, out_momentum)
    rate, decay, limit = np.float32(learning_rate), np.float32(mu), np.float32(PARAMETER_MAX)
    scratch = np.empty(min(_BLOCK_ELEMENTS, len(parameters)), dtype=np.float32)
    # A gradient from the network is checked where it arrives, and a warning from a thread has no
    # reader.
    with np.errstate(all="ignore"):
        for start in range(0, len(parameters), _BLOCK_ELEMENTS):
            part = slice(start, start + _BLOCK_ELEMENTS)
            g, m = gradient[part], out_momentum[part]
            step = scratch[: len(g)]
            np.multiply(momentum[part], decay, out=m)
            np.add(m, g, out=m)
            np.multiply(m, decay, out=step)
            np.add(g, step, out=step)
            np.multiply(step, rate, out=step)
            np.subtract(parameters[part], step, out=step)
            np.clip(step, -limit, limit, out=out_parameters[part])


def _check(*vectors: NDArray[np.float32]) -> None:
    if any(
        vector.shape != vectors[0].shape or vector.dtype != np.float32 or vector.ndim != 1
        for vector in vectors
    ):
        raise ValueError("the outer step needs flat fp32 vectors of one length")
