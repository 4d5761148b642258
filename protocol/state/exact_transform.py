"""The cut of a model's tensors into tiles for the discrete cosine transform, and its exact inverse.

A *tile* is what DeMo (arXiv 2411.19870) calls a chunk. A matrix is cut into tiles of
`rows x columns`, each the largest divisor of its dimension up to `TILE_SIDE_MAX`, and a vector into
tiles of one row. Coefficients lie tile after tile, tensor after tensor in flat order, so there are
as many as parameters. The transform is the orthonormal DCT-II over both sides:
`coefficients = B_rows @ tile @ B_columns.T`.

All peers must compute the same bits, so the inverse is exact integer arithmetic. The basis is a
table of integers (`BASIS_SCALE` times the real one, rounded), and the coefficients are integers of
at most `COEFFICIENT_MAX`. With at most 64 x 64 of them in a tile every product and every
intermediate sum, in any order, is an integer of at most 2**52. A float64 holds those exactly. So
any library may compute the matrix product, with fused multiply-adds and in any order: no operation
rounds.

The forward transform, which each peer takes of its own momentum, is in `trainer.distro.dct`. This
module works without torch, which the daemon may not import.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from gossamer.protocol.limits import TILE_SIDE_MAX
from gossamer.protocol.model_config import ModelConfig
from gossamer.protocol.state.parameter_layout import Tensor, layout_of

BASIS_SCALE = 2**14
"""Entries of the real basis are at most 1; rounding them to 2**-14 turns a sign only where the sum
is next to nothing."""

COEFFICIENT_MAX = 2**12

_PIECES_OF_CHUNK = 8
"""A chunk of a step is at most about an eighth longer than the mean."""


@dataclass(frozen=True)
class Grid:
    """The cut of one tensor into tiles."""

    tensor: Tensor
    rows: int
    columns: int
    """Number of columns of a tile. `rows` is the number of its rows."""

    @property
    def tile_elements(self) -> int:
        return self.rows * self.columns

    @property
    def num_tiles(self) -> int:
        return self.tensor.num_elements // self.tile_elements


def grids_of(model: ModelConfig) -> tuple[Grid, ...]:
    """The grids of all tensors, in flat order."""
    return tuple(_grid_of(tensor) for tensor in layout_of(model))


def pieces_of(grids: Sequence[Grid], elements_max: int) -> tuple[Grid, ...]:
    """The same tiles in grids of some rows of tiles each, in flat order.

    A piece has at most so many elements, or is one row of tiles, or a whole vector.
    """
    pieces = []
    for grid in grids:
        tensor = grid.tensor
        if not tensor.is_matrix:
            pieces.append(grid)
            continue
        num_rows, width = tensor.shape
        rows = grid.rows * max(1, elements_max // (grid.rows * width))
        for first in range(0, num_rows, rows):
            shape = (min(rows, num_rows - first), width)
            part = replace(tensor, start=tensor.start + first * width, shape=shape)
            pieces.append(replace(grid, tensor=part))
    return tuple(pieces)


def chunks_of_step(grids: Sequence[Grid], num_chunks: int) -> tuple[tuple[Grid, ...], ...]:
    """The same tiles, dealt to the chunks of a shared step in flat order.

    Matrices are cut into pieces of some rows of tiles (`pieces_of`), of at most an eighth of a
    chunk each. A piece belongs to chunk floor(first * num_chunks / num_parameters), where `first`
    is the place of its first element in the flat vector. So the chunks have about as many elements
    each.

    Args:
        grids: of all parameters.

    Raises:
        ValueError: a chunk would be empty.
    """
    total = sum(grid.tensor.num_elements for grid in grids)
    chunks: list[list[Grid]] = [[] for _ in range(num_chunks)]
    for piece in pieces_of(grids, max(1, total // (_PIECES_OF_CHUNK * num_chunks))):
        chunks[piece.tensor.start * num_chunks // total].append(piece)
    if not all(chunks):
        raise ValueError(f"{num_chunks} chunks of a step of {total} elements: one would be empty")
    return tuple(map(tuple, chunks))


def inverse_exact(grid: Grid, coefficients: NDArray[np.int64]) -> NDArray[np.float64]:
    """The tensor of these coefficients in the rounded basis, times `BASIS_SCALE ** 2`: integers.

    The argument and the result have the shape (num_elements,).

    Raises:
        ValueError: a coefficient above `COEFFICIENT_MAX`.
    """
    if max(coefficients.max(initial=0), -coefficients.min(initial=0)) > COEFFICIENT_MAX:
        raise ValueError(f"a coefficient is above {COEFFICIENT_MAX}: sums would be rounded")
    tiles = coefficients.reshape(-1, grid.rows, grid.columns).astype(np.float64)
    values = integer_basis(grid.rows).T @ tiles @ integer_basis(grid.columns)
    width = grid.tensor.shape[-1]
    blocks = values.reshape(-1, width // grid.columns, grid.rows, grid.columns)
    return blocks.transpose(0, 2, 1, 3).reshape(-1)


@cache
def integer_basis(side: int) -> NDArray[np.float64]:
    """The basis times `BASIS_SCALE`, rounded to integers: (side, side).

    The cosines may differ by a unit in the last place between machines; no entry is so near to
    the middle between two integers that this could show (tested for every side).
    """
    return np.rint(BASIS_SCALE * basis(side))


def basis(side: int) -> NDArray[np.float64]:
    """The basis of the orthonormal DCT-II: (frequency, place)."""
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
    return next(side for side in range(min(size, TILE_SIDE_MAX), 0, -1) if size % side == 0)
