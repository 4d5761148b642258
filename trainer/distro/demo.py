"""DeMo and DisTrO: peers share every step, and of it only the strongest frequencies.

A peer's part (DeMo, arXiv 2411.19870, algorithm 1; DisTrO's preliminary report), per step:

    m = beta * m + gradient
    q = the k largest coefficients, by magnitude, of each chunk of DCT(m)
    m -= IDCT(q)                      once the swarm has taken them
    send the places of q and their signs

What all peers do with them is in `shared_step`. With *lookahead* (as DisTrO was deployed) the
gradient is taken where the own momentum would lead, at `theta - last_rate * sign(m)`, instead of at
theta.

What is taken out of the momentum is what the peer found there, not the sign that it sent, as in
DeMo. A part that comes too late is not taken, and stays in its sender's momentum. The momentum is
one peer's own: nobody else needs its bits. It is kept over restarts (`shared_round`).
"""

from __future__ import annotations

import numpy as np
import torch

from gossamer.protocol.codecs.sign_codec import SignUpdate
from gossamer.trainer.distro.dct import ModelDct


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
        self._offered: torch.Tensor | None = None

    @torch.no_grad()
    def add(self, gradient: torch.Tensor) -> None:
        """One more gradient, (num_parameters,)."""
        self.values.mul_(self._decay).add_(gradient)

    @torch.no_grad()
    def offer(self) -> SignUpdate:
        """The strongest coefficients as they are now; they stay in until `taken`."""
        coefficients = self._dct.forward(self.values)
        kept = torch.zeros_like(coefficients)
        is_kept = torch.zeros_like(coefficients, dtype=torch.bool)
        for grid in self._dct.grids:
            part = grid.tensor.range
            chunks = coefficients[part].view(-1, grid.chunk_elements)
            top = chunks.abs().topk(min(self._top_k, grid.chunk_elements), dim=1).indices
            kept[part].view(-1, grid.chunk_elements).scatter_(1, top, chunks.gather(1, top))
            is_kept[part].view(-1, grid.chunk_elements).scatter_(1, top, True)
        self._offered = kept
        places = np.flatnonzero(is_kept.cpu().numpy())
        return SignUpdate(places, kept.cpu().numpy()[places] >= 0)

    @torch.no_grad()
    def taken(self) -> None:
        """The swarm took what was offered last: it leaves the momentum."""
        if self._offered is not None:
            self.values.sub_(self._dct.inverse(self._offered))
            self._offered = None

    @torch.no_grad()
    def restore(self, values: torch.Tensor) -> None:
        """Goes on from `values`, (num_parameters,); nothing is offered."""
        self.values.copy_(values)
        self._offered = None

    @torch.no_grad()
    def clear(self) -> None:
        """Begins anew."""
        self.values.zero_()
        self._offered = None

    @torch.no_grad()
    def lookahead(self, theta: torch.Tensor, last_rate: float) -> torch.Tensor:
        """Where to take the next gradient."""
        return theta - last_rate * self.values.sign()
