"""The owner's limits of the trainer's process: threads, host memory, and memory of the card.

They may change while the process trains. A step that does not fit any more fails as if the machine
had no more memory, and the next one is taken in smaller passes.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import torch

from gossamer.trainer.ipc.messages import Limits
from gossamer.trainer.resources import accelerator

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

_STATUS = Path("/proc/self/status")


class OwnerLimits:
    """The limits of this process."""

    def __init__(self) -> None:
        self._threads = torch.get_num_threads()
        """Torch's own choice."""
        self._gpu_bytes = 0
        self._is_host_limited = False

    def apply(self, limits: Limits, device: torch.device) -> None:
        """Makes limits hold from now on.

        Args:
            device: the one that trains.
        """
        torch.set_num_threads(limits.threads or self._threads)
        if accelerator.has_own_memory(device):
            total = accelerator.total_bytes(device)
            self._gpu_bytes = min(total, limits.gpu_memory_bytes or total)
            accelerator.limit_memory(device, self._gpu_bytes / total)
        self._limit_host(limits.memory_bytes)

    def share_of(self, limits: Limits, num_processes: int, device: torch.device) -> Limits:
        """The limits of each of the processes that train together, of which this is one.

        Each device has a process. On a CPU they share its threads, also where nothing is limited.
        """
        threads = limits.threads or (self._threads if device.type == "cpu" else 0)
        return msgspec.structs.replace(
            limits,
            threads=max(1, threads // num_processes) if threads else 0,
            memory_bytes=limits.memory_bytes // num_processes,
        )

    def free_bytes(self, device: torch.device, free: int | None) -> int | None:
        """Returns the memory that this process may still take on the device.

        Args:
            free: the memory that the device has left; None if that is not known.
        """
        left = None
        if accelerator.has_own_memory(device) and self._gpu_bytes:
            left = self._gpu_bytes - accelerator.allocated_bytes(device)
        elif device.type == "cpu" and self._is_host_limited and resource is not None:
            soft, _ = resource.getrlimit(resource.RLIMIT_DATA)
            left = soft - _own_bytes("VmData:")
        if left is None:
            return free
        return max(0, left if free is None else min(left, free))

    def _limit_host(self, memory_bytes: int) -> None:
        """Lets the kernel refuse memory beyond a limit. Pages that are shared with the daemon, and
        those of program files, do not count."""
        if resource is None or not _STATUS.exists():
            return
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        self._is_host_limited = bool(memory_bytes)
        if not memory_bytes:
            resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
            return
        # What is reserved and not used, such as the stacks of threads, takes no memory.
        reserved = max(0, _own_bytes("VmData:") - _own_bytes("RssAnon:"))
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes + reserved, hard))


def _own_bytes(name: str) -> int:
    return 1024 * (number_behind(name, _STATUS) or 0)


def number_behind(name: str, path: Path) -> int | None:
    """Returns the number behind a name at the beginning of a line of a system's file."""
    for line in content_of(path).splitlines():
        key, *values = line.split()[:2] or [""]
        if key == name and values and values[0].isdigit():
            return int(values[0])
    return None


def content_of(path: Path) -> str:
    """Returns the text of a system's file; nothing where there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
