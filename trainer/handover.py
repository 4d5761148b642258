"""The vectors that a trainer shares with the daemon, and the model on the device.

    base    (num_parameters,), where a round begins; the daemon writes it
    work    (num_parameters,), while a round runs what its work is measured against; afterwards the
            work: that, less the local parameters
    local   (num_parameters,), the model's parameters, on the device

Both vectors are fp32 in memory of the host.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gossamer.trainer import overlap
from gossamer.trainer.ipc.messages import Ranges
from gossamer.trainer.resources.transfer import Transfer


class HandOver:
    """Moves values between them. Not for use from several threads."""

    def __init__(self, base: NDArray[np.float32], work: NDArray[np.float32], local: Tensor) -> None:
        """
        Raises:
            ValueError: `base` or `work` of another length or type than `local`.
        """
        for vector in (base, work):
            if vector.shape != local.shape or vector.dtype != np.float32:
                raise ValueError(f"base and pseudo_gradient must be {local.numel()} fp32 values")
        self._base, self._work, self._local = base, work, local
        self._transfer = Transfer(local.device)

    def load_base(self) -> None:
        """The local parameters become `base`."""
        self._transfer.load(self._local, self._base)

    def begin_at_base(self) -> None:
        """A round begins at `base`. It is read once: the daemon may be writing the next state."""
        torch.from_numpy(self._work).copy_(torch.from_numpy(self._base))
        self._transfer.load(self._local, self._work)

    def begin_at_local(self) -> None:
        """A round begins at the local parameters as they are."""
        work = torch.from_numpy(self._work)
        self._transfer.receive(self._local, lambda place, local: work[place].copy_(local))

    def collect(self) -> None:
        """The round ends: `work` is now what it was measured against, less the local parameters."""
        work = torch.from_numpy(self._work)
        self._transfer.receive(self._local, lambda place, local: work[place].sub_(local))

    def rebase(self, ranges: Ranges, stays_behind: float, *, in_round: bool) -> None:
        """Takes over a new `base` in these ranges, see `overlap`.

        Args:
            stays_behind: the part of the way to it that the local parameters do not go.
        """
        for part in (slice(start, stop) for start, stop in ranges):
            local, base, work = self._local[part], self._base[part], self._work[part]
            if in_round:
                overlap.rebase(self._transfer, local, work, base, stays_behind)
                np.copyto(work, base)
            else:
                overlap.restart(self._transfer, local, work, base, stays_behind)
