"""The processes of one trainer, connected by `torch.distributed` on this machine.

Gloo, NCCL, RCCL and XCCL connect their processes by TCP, here through the loopback interface alone.
They find each other by a file. All connections are made by `connect`, so that a process can give up
the network behind it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gossamer.trainer.inner_step.gradients import TrainerError
from gossamer.trainer.resources import accelerator

BACKENDS = {"cpu": "gloo", "cuda": "nccl", "xpu": "xccl"}
"""By torch's kind of device; ROCm's library answers to the name of NVIDIA's."""

COLLECTIVE_SECONDS_MAX = 120.0
"""All processes enter a collective together, and then move the model once. A minute is long."""

_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"

_ENVIRONMENT = {
    "GLOO_SOCKET_IFNAME": _LOOPBACK,
    "NCCL_SOCKET_IFNAME": _LOOPBACK,
    # No other machine is meant.
    "NCCL_IB_DISABLE": "1",
    # Otherwise connections would be made at the first use of each algorithm.
    "NCCL_RUNTIME_CONNECT": "0",
    "TORCH_GLOO_LAZY_INIT": "0",
}


class Group:
    """One process's place among those of a trainer. Rank 0 holds the parameters."""

    def __init__(self, device: torch.device, rank: int, num_ranks: int, store_path: str) -> None:
        """Connects with the others, which have to do it as well.

        Args:
            store_path: a file that only these processes use, and that is not there yet.

        Raises:
            TrainerError: this torch cannot, or the others did not come.
        """
        backend = BACKENDS.get(device.type, "")
        if not dist.is_available() or not backend or not dist.is_backend_available(backend):
            raise TrainerError(
                f"this torch cannot connect several devices of the kind {device.type} "
                f"({backend or 'no library'}): give --device only one of them"
            )
        # Here: a torch without it has no such module, and trains on one device.
        from torch._C._distributed_c10d import FileStore

        os.environ.update(_ENVIRONMENT)
        accelerator.make_current(device)
        with self._told():
            dist.init_process_group(
                backend,
                store=FileStore(store_path, num_ranks),
                rank=rank,
                world_size=num_ranks,
                timeout=timedelta(seconds=COLLECTIVE_SECONDS_MAX),
            )
            # The first collectives of a card make its connections.
            one = torch.ones(1, device=device)
            dist.broadcast(one, 0)
            dist.reduce(one, 0)
            one.item()

    def share(self, vector: Tensor) -> None:
        """Rank 0's values of a vector come to all, bit by bit.

        Raises:
            TrainerError: another process is gone, or did not come in time.
        """
        with self._told():
            dist.broadcast(vector, 0)

    def add_up(self, parameters: Sequence[nn.Parameter]) -> None:
        """The gradients in `.grad` of rank 0 become the sums of those of all; the others' are of no
        use afterwards. Sums are taken in the same order each time.

        Raises:
            TrainerError: another process is gone, or did not come in time.
        """
        gradients = [parameter.grad for parameter in parameters]
        found = [each for each in gradients if each is not None]
        assert len(found) == len(gradients)
        # Vectors are small and many: they go together.
        small = [each for each in found if each.ndim == 1]
        large = [each for each in found if each.ndim > 1]
        with self._told():
            together = [torch.cat(small)] if small else []
            works = [dist.reduce(each, 0, async_op=True) for each in [*large, *together]]
            for work in works:
                assert work is not None
                work.wait()
        for whole in together:
            parts = torch.split(whole, [len(each) for each in small])
            torch._foreach_copy_(small, parts)

    def leave(self) -> None:
        """Closes the connections."""
        if dist.is_initialized():
            dist.destroy_process_group()

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            what = str(error).partition("\n")[0]
            raise TrainerError(f"the devices of this trainer lost each other: {what}") from error
