"""Training that goes on while the swarm averages: what becomes of the local parameters.

A state arrives `tau` inner steps after the work for it was handed over: all parameters of it, or
one fragment (`protocol.state.sync_sets`). The local progress since that snapshot is kept on top:

    local_parameters' = new_parameters + (local_parameters - snapshot_parameters)

This is the delayed application of the outer step in Eager updates (arXiv 2502.12996, section 3)
with the peer's own newer steps on top. The work that is handed over next is
`new_parameters - local_parameters'` at the end of the round: the steps since the snapshot, none
twice.

Streaming DiLoCo (arXiv 2501.18512, algorithm 2 and section 3.3) mixes instead, with an alpha of
0.5: `alpha * local_parameters + (1 - alpha) * new_parameters`. That throws a part of the newer
steps away and keeps a part of what the swarm has just averaged out, which is handed over once more.
With `mixing`, its alpha, the local parameters stay behind by that part of the way to the new state,
and keep all of their newer steps:

    local_parameters' = local_parameters + (1 - alpha) * (new_parameters - snapshot_parameters)

0, which is the line at the top, is the best, but for states in one piece that come a whole round
late (docs/benchmarks/losses.md).

No other peer has to get the same bits. All vectors are (num_elements,) fp32; `local` may be on a
device, the others are on the host.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from gossamer.trainer.resources.transfer import Transfer


def rebase(
    transfer: Transfer,
    local: torch.Tensor,
    snapshot: NDArray[np.float32],
    new_base: NDArray[np.float32],
    mixing: float = 0.0,
) -> None:
    """`local` becomes `local + (1 - mixing) * (new_base - snapshot)`, in place."""
    before, after = torch.from_numpy(snapshot), torch.from_numpy(new_base)
    transfer.send(
        local,
        lambda place, buffer: torch.sub(after[place], before[place], out=buffer),
        lambda part, moved: part.add_(moved, alpha=1.0 - mixing),
    )


def restart(
    transfer: Transfer,
    local: torch.Tensor,
    pseudo_gradient: NDArray[np.float32],
    base: NDArray[np.float32],
    mixing: float = 0.0,
) -> None:
    """`local` becomes `base` with the step on top that `pseudo_gradient` is the work of.

    With `mixing` that work first grows by what `local` stays behind, in place.
    """
    work, state = torch.from_numpy(pseudo_gradient), torch.from_numpy(base)

    def stay_behind(place: slice, local_part: torch.Tensor) -> None:
        # In one write: a worker that is killed here leaves in every element the work of before or
        # of after, and nothing else.
        part = work[place]
        part.copy_(part + mixing * (state[place] - (part + local_part)))

    if mixing:
        transfer.receive(local, stay_behind)
    transfer.send(
        local,
        lambda place, buffer: torch.sub(state[place], work[place], out=buffer),
        torch.Tensor.copy_,
    )
