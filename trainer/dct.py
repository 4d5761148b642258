"""The discrete cosine transform of a model's tensors, chunk by chunk (DeMo, arXiv 2411.19870).

A matrix is cut into chunks of `rows x columns`, each the largest divisor of its dimension up to
`CHUNK_SIDE_MAX`; a vector into chunks of one row. Coefficients lie chunk after chunk, tensor after
tensor in flat order, so there are as many as parameters. The transform is the orthonormal DCT-II
over both sides: `coefficients = B_rows @ chunk @ B_columns.T`.

Two inverses: `inverse` in fp32 for what one peer keeps to itself, and `inverse_exact` for what all
peers must agree on, bit for bit. The latter is exact integer arithmetic: the basis is a table of
integers (`BASIS_SCALE` times the real one, rounded), the coefficients are integers of at most
`COEFFICIENT_MAX`, and with at most 64 x 64 of them in a chunk every product and every partial sum,
in whatever order, is an integer of at most 2**52. A float64 holds those exactly. So the matrix
product may be done by any library, with fused multiply-adds and in any order: nothing is rounded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from gossamer.protocol.manifest import ModelConfig
from gossamer.trainer.flat import Tensor, layout_of

CHUNK_SIDE_MAX = 64
"""DeMo's s: 4096 coefficients, whose index has 12 bits."""

BASIS_SCALE = 2**14
"""Entries of the real basis are at most 1; rounding them to 2**-14 turns a sign only where the sum
is next to nothing."""

COEFFICIENT_MAX = 2**12


@dataclass(frozen=True)
class Grid:
    """One tensor's chunks."""

    tensor: Tensor
    rows: int
    columns: int
    """Of a chunk."""

    @property
    def chunk_elements(self) -> int:
        return self.rows * self.columns

    @property
    def num_chunks(self) -> int:
        return self.tensor.num_elements // self.chunk_elements


class ModelDct:
    """The transform of all of a model's parameters. Vectors are (num_parameters,)."""

    def __init__(self, model: ModelConfig, device: torch.device | None = None) -> None:
        self.num_parameters = model.num_parameters
        self.grids = tuple(_grid_of(tensor) for tensor in layout_of(model))
        sides = {side for grid in self.grids for side in (grid.rows, grid.columns)}
        self._bases = {
            side: torch.from_numpy(_basis(side)).to(device, torch.float32) for side in sides
        }

    def forward(self, vector: torch.Tensor) -> torch.Tensor:
        """Coefficients of a vector, in chunk order."""
        parts = []
        for grid in self.grids:
            chunks = _to_chunks(vector[grid.tensor.range], grid)
            rows, columns = self._bases[grid.rows], self._bases[grid.columns]
            parts.append((rows @ chunks @ columns.T).reshape(-1))
        return torch.cat(parts)

    def inverse(self, coefficients: torch.Tensor) -> torch.Tensor:
        """The vector with these coefficients, in fp32, rounded as the device likes."""
        parts = []
        for grid in self.grids:
            chunks = coefficients[grid.tensor.range].view(-1, grid.rows, grid.columns)
            rows, columns = self._bases[grid.rows], self._bases[grid.columns]
            parts.append(_from_chunks(rows.T @ chunks @ columns, grid).reshape(-1))
        return torch.cat(parts)

    def inverse_exact(self, coefficients: NDArray[np.int64]) -> NDArray[np.float64]:
        """`BASIS_SCALE ** 2` times the vector of these coefficients in the rounded basis: integers.

        Raises:
            ValueError: a coefficient above `COEFFICIENT_MAX`.
        """
        if np.abs(coefficients).max(initial=0) > COEFFICIENT_MAX:
            raise ValueError(f"a coefficient is above {COEFFICIENT_MAX}: sums would be rounded")
        out = np.empty(self.num_parameters, np.float64)
        for grid in self.grids:
            chunks = coefficients[grid.tensor.range].reshape(-1, grid.rows, grid.columns)
            values = integer_basis(grid.rows).T @ chunks.astype(np.float64)
            values = values @ integer_basis(grid.columns)
            out[grid.tensor.range] = (
                _from_chunks(torch.from_numpy(values), grid).reshape(-1).numpy()
            )
        return out


@cache
def integer_basis(side: int) -> NDArray[np.float64]:
    """(side, side): `BASIS_SCALE` times the basis, rounded to integers.

    The cosines may differ by a unit in the last place between machines; no entry is so near to
    the middle between two integers that this could show (tested for every side).
    """
    return np.rint(BASIS_SCALE * _basis(side))


def _basis(side: int) -> NDArray[np.float64]:
    """(frequency, place) of the orthonormal DCT-II."""
    rows = [
        [
            math.sqrt((1 if frequency == 0 else 2) / side)
            * math.cos(math.pi * (2 * place + 1) * frequency / (2 * side))
            for place in range(side)
        ]
        for frequency in range(side)
    ]
    return np.array(rows)


def _grid_of(tensor: Tensor) -> Grid:
    *rows, columns = tensor.shape
    return Grid(tensor, _side_of(rows[0]) if rows else 1, _side_of(columns))


def _side_of(size: int) -> int:
    return next(side for side in range(min(size, CHUNK_SIDE_MAX), 0, -1) if size % side == 0)


def _to_chunks(values: torch.Tensor, grid: Grid) -> torch.Tensor:
    """(num_elements,) -> (num_chunks, rows, columns)"""
    width = grid.tensor.shape[-1]
    blocks = values.view(-1, grid.rows, width // grid.columns, grid.columns)
    return blocks.transpose(1, 2).reshape(-1, grid.rows, grid.columns)


def _from_chunks(chunks: torch.Tensor, grid: Grid) -> torch.Tensor:
    """(num_chunks, rows, columns) -> (num_elements / width, width)"""
    width = grid.tensor.shape[-1]
    blocks = chunks.view(-1, width // grid.columns, grid.rows, grid.columns)
    return blocks.transpose(1, 2).reshape(-1, width)
