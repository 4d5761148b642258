"""The discrete cosine transform of a model's tensors, chunk by chunk, on the trainer's device.

In fp32, for what one peer keeps to itself; `dct_exact` says how tensors are cut and has the inverse
that all peers agree on.
"""

from __future__ import annotations

import torch

from gossamer.protocol.manifest import ModelConfig
from gossamer.trainer.distro.dct_exact import Grid, basis, grids_of


class ModelDct:
    """The transform of all of a model's parameters. Vectors are (num_parameters,)."""

    def __init__(self, model: ModelConfig, device: torch.device | None = None) -> None:
        self.num_parameters = model.num_parameters
        self.grids = grids_of(model)
        sides = {side for grid in self.grids for side in (grid.rows, grid.columns)}
        self._bases = {
            side: torch.from_numpy(basis(side)).to(device, torch.float32) for side in sides
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
