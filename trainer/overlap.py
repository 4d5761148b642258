"""Training that goes on while the swarm averages: what becomes of the local parameters.

Two ways to take a state that arrives `tau` inner steps after the work for it was handed over:

- *Rebase* (whole vectors). The local progress since the snapshot is kept on top of the new state:

      theta_local' = theta_new + (theta_local - theta_snapshot)

  This is the delayed application of the outer step in Eager updates (arXiv 2502.12996, section 3)
  with the peer's own newer steps on top, as in DESIGN.md's "overlap". What is handed over next is
  `theta_new - theta_local'` at the end of the round: the steps since the snapshot, none twice.

- *Mix* (one fragment of the parameters at a time, `protocol.fragments`). Streaming DiLoCo (arXiv
  2501.18512, algorithm 2 and section 3.3): local and outer parameters are mixed,

      theta_local' = share * theta_local + (1 - share) * theta_outer

  and the next pseudo-gradient of the fragment is `theta_outer - theta_local` when its turn comes:
  what is left between the two after mixing, and the steps of all rounds until then.

Local parameters are one peer's own: nobody else has to get the same bits. All vectors are
(num_elements,) fp32; `local` may be on a device, the others are on the host.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

MIXING_SHARE = 0.5
"""Of the local parameters; Streaming DiLoCo's alpha."""


@torch.no_grad()
def rebase(
    local: torch.Tensor, snapshot: NDArray[np.float32], new_base: NDArray[np.float32]
) -> None:
    """`local` becomes `new_base + (local - snapshot)`, in place."""
    moved = torch.from_numpy(new_base - snapshot)
    local.add_(moved.to(local.device))


@torch.no_grad()
def take_work(local: torch.Tensor, pseudo_gradient: NDArray[np.float32]) -> None:
    """`local`, a state, takes the step that `pseudo_gradient` is the work of, in place."""
    local.sub_(torch.from_numpy(pseudo_gradient).to(local.device))


@torch.no_grad()
def mix(local: torch.Tensor, outer: NDArray[np.float32], share: float) -> None:
    """`local` becomes `share * local + (1 - share) * outer`, in place.

    Raises:
        ValueError: `share` is not within 0 to 1.
    """
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"a mixing share of {share}; allowed: 0 to 1")
    local.lerp_(torch.from_numpy(outer).to(local.device), 1.0 - share)
