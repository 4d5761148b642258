"""The outer step's bits."""

from __future__ import annotations

import struct
from itertools import pairwise

import blake3
import numpy as np
import pytest

from gossamer.protocol.codecs.chunk_values import MAGNITUDE_MAX
from gossamer.protocol.state.outer_step import PARAMETER_MAX, nesterov

LENGTH = 70_001  # more than two passes, and no whole one at the end


def vectors() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns (parameters, momentum, gradient), made from integers so that they are the same
    everywhere."""
    n = np.arange(LENGTH, dtype=np.int64)
    parameters = ((n * 2654435761 % 1000003) - 500001).astype(np.float32) / np.float32(3e5)
    momentum = ((n * 40503 % 99991) - 50000).astype(np.float32) / np.float32(7e6)
    gradient = ((n * 69069 % 65537) - 32768).astype(np.float32) / np.float32(3e6)
    gradient[:3] = [1e-41, -0.0, 1e30]  # subnormal, signed zero, large
    return parameters, momentum, gradient


def fp32(value: float) -> float:
    """Rounded once. A double holds sum and product of two fp32 so exactly that this is their fp32
    result."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def test_every_operation_is_rounded_by_itself() -> None:
    parameters, momentum, gradient = vectors()
    out_parameters, out_momentum = np.empty_like(parameters), np.empty_like(parameters)
    nesterov(parameters, momentum, gradient, 0.7, 0.9, out_parameters, out_momentum)
    rate, mu = fp32(0.7), fp32(0.9)
    for i in [*range(200), LENGTH - 1]:
        t, m, g = (float(vector[i]) for vector in (parameters, momentum, gradient))
        m = fp32(fp32(mu * m) + g)
        t = fp32(t - fp32(rate * fp32(g + fp32(mu * m))))
        assert (float(out_parameters[i]), float(out_momentum[i])) == (t, m)


def test_golden_bits() -> None:
    parameters, momentum, gradient = vectors()
    for rate, mu in [(0.7, 0.9), (1.0, 0.0), (0.4, 0.5)]:
        nesterov(parameters, momentum, gradient, rate, mu, parameters, momentum)
    assert blake3.blake3(parameters.tobytes()).hexdigest()[:16] == "fc0647058cba0cf4"
    assert blake3.blake3(momentum.tobytes()).hexdigest()[:16] == "edef579f7dd9b46f"


def test_in_place_and_in_pieces_is_the_same() -> None:
    parameters, momentum, gradient = vectors()
    out_parameters, out_momentum = np.empty_like(parameters), np.empty_like(parameters)
    nesterov(parameters, momentum, gradient, 0.7, 0.9, out_parameters, out_momentum)
    for start, stop in pairwise([0, 1, 1024, 50_000, LENGTH]):
        part = slice(start, stop)
        nesterov(
            parameters[part],
            momentum[part],
            gradient[part],
            0.7,
            0.9,
            parameters[part],
            momentum[part],
        )
    assert parameters.tobytes() == out_parameters.tobytes()
    assert momentum.tobytes() == out_momentum.tobytes()


def test_warm_up_is_plain_averaging() -> None:
    parameters, momentum, gradient = vectors()
    expected = parameters - gradient
    nesterov(parameters, momentum, gradient, 1.0, 0.0, parameters, momentum)
    assert (parameters == expected).all()
    assert (momentum == gradient).all()


def test_no_parameter_leaves_its_bound() -> None:
    """With the longest averages, and the largest rates of a manifest, for ever."""
    parameters, momentum, gradient = vectors()
    gradient[2], gradient[3] = MAGNITUDE_MAX, -MAGNITUDE_MAX
    for _ in range(5_000):
        nesterov(parameters, momentum, gradient, 10.0, 0.9999, parameters, momentum)
    assert parameters[2] == -PARAMETER_MAX
    assert parameters[3] == PARAMETER_MAX
    assert np.isfinite(parameters).all()
    assert np.isfinite(momentum).all()
    # The way back is open.
    for _ in range(5):
        nesterov(parameters, momentum, -gradient, 10.0, 0.0, parameters, momentum)
    assert -PARAMETER_MAX < parameters[2] < parameters[3] < PARAMETER_MAX


def test_refuses_other_types_and_lengths() -> None:
    parameters, momentum, gradient = vectors()
    with pytest.raises(ValueError, match="flat fp32"):
        nesterov(parameters, momentum, gradient.astype(np.float64), 0.7, 0.9, parameters, momentum)
    with pytest.raises(ValueError, match="flat fp32"):
        nesterov(parameters, momentum, gradient[:-1], 0.7, 0.9, parameters, momentum)
