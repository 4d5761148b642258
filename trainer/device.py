"""The choice of the processor that trains, and of the precision."""

from __future__ import annotations

import errno
import platform
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

# Tokens of one forward pass to begin with; halved whenever the memory does not suffice. On a CPU
# larger passes only fall out of the caches.
_CPU_TOKENS_MAX = 4 * 1024
_GPU_TOKENS_MAX = 64 * 1024


class DeviceError(ValueError):
    """A device that was asked for and is not there. The message says what is."""


@dataclass(frozen=True)
class Device:
    torch_device: torch.device
    name: str
    """Name of the processor or graphics card, for people."""
    bfloat16: bool
    """Matrix products in bf16 (autocast); weights, norms and the loss stay fp32."""

    @property
    def precision(self) -> str:
        return "bf16" if self.bfloat16 else "fp32"

    def autocast(self) -> AbstractContextManager[object]:
        if not self.bfloat16:
            return nullcontext()
        return torch.autocast(self.torch_device.type, dtype=torch.bfloat16)

    def micro_batch_of(self, num_sequences: int, context: int) -> int:
        """Sequences of one forward pass to try first."""
        tokens_max = _CPU_TOKENS_MAX if self.torch_device.type == "cpu" else _GPU_TOKENS_MAX
        return max(1, min(num_sequences, tokens_max // context))

    @property
    def memory_advice(self) -> str:
        """Returns the remedies for too little memory, for people."""
        if self.torch_device.type == "cpu":
            return "stop what else uses this machine's memory, or train on one with more"
        return "stop what else uses the device, take one with more memory, or use --device cpu"

    def release_memory(self) -> None:
        """Gives cached memory back after an allocation failed."""
        if self.torch_device.type == "cuda":
            torch.cuda.empty_cache()
        elif self.torch_device.type == "mps":
            torch.mps.empty_cache()


def choose_device(wanted: str) -> Device:
    """The device of a name; `auto` is the first CUDA (or ROCm) device, else MPS, else the CPU.

    Raises:
        DeviceError: unknown, or not on this machine.
    """
    has_cuda, has_mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if wanted == "auto":
        wanted = "cuda:0" if has_cuda else "mps" if has_mps else "cpu"
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise DeviceError(f"device {wanted!r} is unknown; use auto, cpu, cuda:N or mps") from error
    if device.type == "cuda":
        count = torch.cuda.device_count() if has_cuda else 0
        index = device.index or 0
        if index >= count:
            raise DeviceError(
                f"device {wanted!r}: this torch sees {count} CUDA devices; try auto or cpu"
            )
        # fp32 products that autocast leaves alone may use the tensor cores.
        torch.set_float32_matmul_precision("high")
        device = torch.device("cuda", index)
        return Device(
            device, torch.cuda.get_device_name(device), torch.cuda.is_bf16_supported(False)
        )
    if device.type == "mps":
        if not has_mps:
            raise DeviceError(f"device {wanted!r} is not on this machine; try auto or cpu")
        return Device(torch.device("mps", 0), f"Apple {platform.machine()} GPU", False)
    if device.type == "cpu":
        return Device(torch.device("cpu"), _cpu_name(), False)
    raise DeviceError(f"device {wanted!r} is not supported; use auto, cpu, cuda:N or mps")


def is_out_of_memory(error: BaseException) -> bool:
    """True if torch, numpy or Python failed to allocate memory, on the device or on the host."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    # torch's allocator for the CPU has no exception of its own.
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def _cpu_name() -> str:
    try:
        for line in (
            Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        ):
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
