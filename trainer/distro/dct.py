"""The discrete cosine transform of a model's tensors, tile by tile, on the trainer's device.

In fp32, for what one peer keeps to itself; `exact_transform` says how tensors are cut and has the
inverse that all peers agree on.
"""

from __future__ import annotations

import torch

from gossamer.protocol.model_config import ModelConfig
from gossamer.protocol.state.exact_transform import Grid, basis, grids_of


class ModelDct:
    """The transform of a model's parameters, tensor by tensor: of all at once it would need several
    times the model's memory."""

    def __init__(self, model: ModelConfig, device: torch.device | None = None) -> None:
        self.num_parameters = model.num_parameters
        self.grids = grids_of(model)
        sides = {side for grid in self.grids for side in (grid.rows, grid.columns)}
        self._bases = {
            side: torch.from_numpy(basis(side)).to(device, torch.float32) for side in sides
        }

    def forward(self, grid: Grid, values: torch.Tensor) -> torch.Tensor:
        """(num_elements,) of a tensor -> (num_tiles, tile_elements): its coefficients."""
        rows, columns = self._bases[grid.rows], self._bases[grid.columns]
        tiles = rows @ _to_tiles(values, grid) @ columns.T
        return tiles.view(grid.num_tiles, grid.tile_elements)

    def inverse(self, grid: Grid, coefficients: torch.Tensor) -> torch.Tensor:
        """(num_tiles, tile_elements) -> (num_elements,): the tensor with these coefficients, in
        fp32, rounded as the device likes."""
        rows, columns = self._bases[grid.rows], self._bases[grid.columns]
        tiles = coefficients.view(-1, grid.rows, grid.columns)
        return _from_tiles(rows.T @ tiles @ columns, grid).view(-1)


def _to_tiles(values: torch.Tensor, grid: Grid) -> torch.Tensor:
    """(num_elements,) -> (num_tiles, rows, columns)"""
    width = grid.tensor.shape[-1]
    blocks = values.view(-1, grid.rows, width // grid.columns, grid.columns)
    return blocks.transpose(1, 2).reshape(-1, grid.rows, grid.columns)


def _from_tiles(tiles: torch.Tensor, grid: Grid) -> torch.Tensor:
    """(num_tiles, rows, columns) -> (num_elements / width, width)"""
    width = grid.tensor.shape[-1]
    blocks = tiles.view(-1, width // grid.columns, grid.rows, grid.columns)
    return blocks.transpose(1, 2).reshape(-1, width)
