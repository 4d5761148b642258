"""The transform of DeMo, and its exact inverse."""

from __future__ import annotations

from fractions import Fraction

import blake3
import msgspec
import numpy as np
import pytest
import torch

from gossamer.protocol.limits import TILE_SIDE_MAX
from gossamer.protocol.model_config import ModelConfig
from gossamer.protocol.state.exact_transform import (
    BASIS_SCALE,
    COEFFICIENT_MAX,
    basis,
    grids_of,
    integer_basis,
    inverse_exact,
)
from gossamer.trainer.distro.dct import ModelDct


@pytest.fixture
def uneven(model_config: ModelConfig) -> ModelConfig:
    """Sides of 48 (of 96), 64 (of 128), 1 (of 67) and others."""
    return msgspec.structs.replace(model_config, width=96, hidden_width=67, vocabulary=128)


def test_tiles_have_the_largest_sides_that_divide(uneven: ModelConfig) -> None:
    sides = {grid.tensor.name: (grid.rows, grid.columns) for grid in ModelDct(uneven).grids}
    assert sides["embed_tokens.weight"] == (64, 48)
    assert sides["layers.0.mlp.gate_proj.weight"] == (1, 48)
    assert sides["layers.0.mlp.down_proj.weight"] == (48, 1)
    assert sides["norm.weight"] == (1, 48)


@pytest.mark.parametrize("side", range(1, TILE_SIDE_MAX + 1))
def test_no_entry_of_the_table_hangs_on_the_machines_cosine(side: int) -> None:
    real = basis(side)
    np.testing.assert_allclose(real @ real.T, np.eye(side), atol=1e-12)
    fractions = np.abs(BASIS_SCALE * real) % 1
    assert np.abs(fractions - 0.5).min() > 1e-4


def test_golden_table() -> None:
    tables = [integer_basis(side).astype("<i4").tobytes() for side in range(1, TILE_SIDE_MAX + 1)]
    assert blake3.blake3(b"".join(tables)).hexdigest()[:16] == "2b7956778095b31b"


def test_there_and_back(uneven: ModelConfig) -> None:
    dct = ModelDct(uneven)
    vector = torch.randn(uneven.num_parameters, generator=torch.Generator().manual_seed(1))
    for grid in dct.grids:
        values = vector[grid.tensor.range]
        coefficients = dct.forward(grid, values)
        assert coefficients.shape == (grid.num_tiles, grid.tile_elements)
        assert coefficients.norm().item() == pytest.approx(values.norm().item(), rel=1e-5)
        torch.testing.assert_close(dct.inverse(grid, coefficients), values, atol=1e-5, rtol=0)


def test_a_smooth_tile_has_low_frequencies(uneven: ModelConfig) -> None:
    dct = ModelDct(uneven)
    grid = dct.grids[0]
    coefficients = dct.forward(grid, torch.ones(grid.tensor.num_elements))
    assert coefficients[:, 0].min().item() == pytest.approx((64 * 48) ** 0.5, rel=1e-5)
    assert coefficients[:, 1:].abs().max().item() < 1e-4


def test_the_exact_inverse_is_exact_and_near_the_other(uneven: ModelConfig) -> None:
    dct = ModelDct(uneven)
    random = np.random.default_rng(1)
    coefficients = random.integers(-COEFFICIENT_MAX, COEFFICIENT_MAX + 1, uneven.num_parameters)
    for grid in dct.grids:
        values = inverse_exact(grid, of_grid := coefficients[grid.tensor.range])
        assert (values == np.rint(values)).all()
        real = dct.inverse(grid, torch.from_numpy(of_grid).float()).numpy()
        np.testing.assert_allclose(values / BASIS_SCALE**2, real, atol=0.02 * np.abs(real).max())
    # One element by hand, in Python's own integers.
    grid = dct.grids[0]
    rows, columns = integer_basis(grid.rows), integer_basis(grid.columns)
    values = inverse_exact(grid, coefficients[grid.tensor.range])
    tile = coefficients[: grid.tile_elements].reshape(grid.rows, grid.columns)
    by_hand = sum(
        int(rows[u, 5]) * int(tile[u, v]) * int(columns[v, 7])
        for u in range(grid.rows)
        for v in range(grid.columns)
    )
    assert Fraction(float(values[5 * uneven.width + 7])) == by_hand


def test_the_largest_sums_are_exact(model_config: ModelConfig) -> None:
    """All coefficients as large as may be, with the signs that add up."""
    wide = msgspec.structs.replace(model_config, width=64, vocabulary=64)
    grid = grids_of(wide)[0]
    signs = np.sign(integer_basis(64)[:, :1] * integer_basis(64)[:, :1].T)
    coefficients = (COEFFICIENT_MAX * signs).astype(np.int64).ravel()
    column = [int(entry) for entry in integer_basis(64)[:, 0]]
    by_hand = COEFFICIENT_MAX * sum(abs(a) for a in column) ** 2
    assert float(inverse_exact(grid, coefficients)[0]) == by_hand
    coefficients[0] = COEFFICIENT_MAX + 1
    with pytest.raises(ValueError, match="rounded"):
        inverse_exact(grid, coefficients)
