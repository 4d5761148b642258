"""DeMo and DisTrO: peers share every step, and of it only the strongest frequencies.

A peer's part (DeMo, arXiv 2411.19870, algorithm 1; DisTrO's preliminary report), per step:

    m = beta * m + gradient
    q = the k largest coefficients, by magnitude, of each tile of DCT(m)
    m -= IDCT(q)                      once the swarm has taken them
    send the places of q and their signs

`shared_step` has the step that all peers take with them. With *lookahead* (as DisTrO was deployed)
the gradient is taken where the own momentum would lead, at `theta - last_rate * sign(m)`, instead
of at theta.

The peer subtracts the values that it found there, not the signs that it sent, as in DeMo. A part
that comes too late is not taken, and stays in its sender's momentum. No other peer needs the
momentum's bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch

from gossamer.protocol.codecs.chunk_values import WORK_MAGNITUDE_MAX
from gossamer.protocol.codecs.sign_codec import SignUpdate
from gossamer.protocol.state.exact_transform import Grid
from gossamer.trainer.distro.dct import ModelDct


class _Strongest(NamedTuple):
    """The coefficients that are offered of a tensor."""

    grid: Grid
    indices: torch.Tensor
    """(num_tiles, k) within the tiles, ascending."""
    values: torch.Tensor
    """(num_tiles, k)"""


class Momentum:
    """One peer's decoupled momentum. Vectors are (num_parameters,) on one device."""

    def __init__(
        self,
        dct: ModelDct,
        device: torch.device | None = None,
        *,
        top_k: int,
        decay: float,
    ) -> None:
        self._dct, self._top_k, self._decay = dct, top_k, decay
        self.values = torch.zeros(dct.num_parameters, device=device)
        self._offered: list[_Strongest] = []
        """The newest offer: one element for each tensor, or none if nothing is offered."""

    @property
    def is_usable(self) -> bool:
        """Returns whether all values are numbers of at most `WORK_MAGNITUDE_MAX`."""
        low, high = torch.aminmax(self.values)
        return max(-float(low), float(high)) <= WORK_MAGNITUDE_MAX  # NaN: both are

    @torch.no_grad()
    def add(self, gradients: Iterable[torch.Tensor]) -> None:
        """Adds one more gradient, given tensor by tensor in flat order."""
        self.values.mul_(self._decay)
        for grid, gradient in zip(self._dct.grids, gradients, strict=True):
            self.values[grid.tensor.range].add_(gradient.view(-1))

    @torch.no_grad()
    def offer(self) -> SignUpdate:
        """Returns the strongest coefficients of now. They stay in the momentum until `taken`."""
        self._offered = []
        places = []
        for grid in self._dct.grids:
            tiles = self._dct.forward(grid, self.values[grid.tensor.range])
            top = tiles.abs().topk(min(self._top_k, grid.tile_elements), dim=1).indices
            indices = top.sort(dim=1).values
            self._offered.append(_Strongest(grid, indices, tiles.gather(1, indices)))
            first = torch.arange(grid.num_tiles, device=top.device) * grid.tile_elements
            places.append((grid.tensor.start + first[:, None] + indices).view(-1))
        values = torch.cat([strongest.values.view(-1) for strongest in self._offered])
        return SignUpdate(torch.cat(places).cpu().numpy(), (values >= 0).cpu().numpy())

    @torch.no_grad()
    def taken(self) -> None:
        """Subtracts the last offer from the momentum, because the swarm took it."""
        for grid, indices, values in self._offered:
            part = self.values[grid.tensor.range]
            kept = part.new_zeros(grid.num_tiles, grid.tile_elements)
            part.sub_(self._dct.inverse(grid, kept.scatter_(1, indices, values)))
        self._offered = []

    @torch.no_grad()
    def restore(self, values: torch.Tensor) -> None:
        """Replaces the momentum by `values`, (num_parameters,), and forgets the offer."""
        self.values.copy_(values)
        self._offered = []

    @torch.no_grad()
    def clear(self) -> None:
        """Sets the momentum to zero and forgets the offer."""
        self.values.zero_()
        self._offered = []

    @torch.no_grad()
    def look_ahead(self, parameters: torch.Tensor, last_rate: float) -> None:
        """Moves `parameters` to where to take the next gradient."""
        parameters.sub_(self.values.sign(), alpha=last_rate)
