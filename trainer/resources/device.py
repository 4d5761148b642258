"""The choice of the processor that trains, and of the precision."""

from __future__ import annotations

import errno
import functools
import platform
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from gossamer.trainer.ipc.control_groups import group_memory
from gossamer.trainer.resources import accelerator
from gossamer.trainer.resources.accelerator import Precision
from gossamer.trainer.resources.device_names import (
    ALL,
    DEVICES_MAX,
    WORDS,
    may_be_several,
    parts_of,
    problem_of,
)
from gossamer.trainer.resources.memory_estimate import GPU_FEW_TOKENS, GPU_TOKENS_MAX
from gossamer.trainer.resources.owner_limits import OwnerLimits, content_of, number_behind

# Tokens of one pass at most. On a CPU larger ones only fall out of the caches.
_CPU_TOKENS_MAX = 4 * 1024
# Tokens of one pass to begin with where the free memory of a GPU is not known.
_GPU_TOKENS_FIRST = 64 * 1024

# Width of a model from which on a CPU with instructions for bf16 is faster with them: passes were
# 1.4 times as fast at 160, and 0.8 at 96 (tests/benchmarks/step_time.py).
CPU_BF16_WIDTH_MIN = 160

# Linux's names of the instructions that multiply bf16.
_BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})

# torch's flash attention is for Ampere and later.
_FLASH_CAPABILITY_MIN = 8

# Part of a host's free memory that a pass may be planned for. The system ends the process when
# there is none left, and the owner's programs need some of it.
_HOST_SHARE = 0.7

# Words of errors that say that memory ran out and have no class of their own: torch's allocator for
# the CPU, Apple's GPUs (also "Invalid buffer size" for one that is larger than any may be), the
# driver of CUDA and ROCm, and the libraries, which allocate workspaces of their own.
_OUT_OF_MEMORY_WORDS = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "invalid buffer size",
    "erroroutofmemory",
    "out_of_device_memory",
    "out_of_host_memory",
    "status_alloc_failed",
    "device_allocation_failed",
    "host_allocation_failed",
    "rocblas_status_memory_error",
    # The handle's workspace is the first thing that it allocates.
    "cublas_status_not_initialized when calling `cublascreate",
    "hipblas_status_not_initialized when calling `hipblascreate",
)


OWNER_LIMITS = OwnerLimits()
"""The limits of this process, whatever device it chooses."""


class DeviceError(ValueError):
    """A device that was asked for and is not there. The message says what is."""


_DTYPES: dict[Precision, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


@dataclass(frozen=True)
class Device:
    """A device and the types that it computes with.

    It has more than 15 public methods: each is something in which devices differ.
    """

    torch_device: torch.device
    name: str
    """Name of the processor or graphics card, for people."""
    precision: Precision
    """Type of the matrix products (autocast); weights, norms and the loss stay fp32."""

    @property
    def is_half(self) -> bool:
        """Whether matrix products are in half precision."""
        return self.precision != "fp32"

    @property
    def needs_loss_scale(self) -> bool:
        """Whether gradients would leave the range of the type of the products."""
        return self.precision == "fp16"

    @property
    def product_dtype(self) -> torch.dtype:
        """Type of the matrix products."""
        return _DTYPES[self.precision]

    @property
    def residual_dtype(self) -> torch.dtype:
        """Type of the sums between the layers (the residual stream). Norms and rotary positions are
        computed in fp32 all the same."""
        is_coarse = self.precision == "bf16" and self.torch_device.type != "cpu"
        return torch.bfloat16 if is_coarse else torch.float32

    @property
    def coarse_dtype(self) -> torch.dtype:
        """Type for products whose rounding errors do no harm: the fastest one."""
        if self.torch_device.type == "cpu" and cpu_has_bf16():
            return torch.bfloat16
        return self.product_dtype

    def autocast(self) -> AbstractContextManager[object]:
        if not self.is_half:
            return nullcontext()
        # Without its cache, because a pass uses each weight once: the copies would all live to the
        # end of the forward pass, also where checkpointing makes them anew.
        kind = self.torch_device.type
        return torch.autocast(kind, dtype=self.product_dtype, cache_enabled=False)

    def micro_batch_of(self, num_sequences: int, context: int) -> int:
        """Sequences of one forward pass to try first, where it is not known what fits."""
        tokens_max = _CPU_TOKENS_MAX if self.torch_device.type == "cpu" else _GPU_TOKENS_FIRST
        return max(1, min(num_sequences, tokens_max // context))

    def micro_batch_max(self, num_sequences: int, context: int) -> int:
        """Most sequences of one forward pass, however much memory there is."""
        tokens_max = _CPU_TOKENS_MAX if self.torch_device.type == "cpu" else GPU_TOKENS_MAX
        return max(1, min(num_sequences, tokens_max // context))

    def micro_batch_min(self, num_sequences: int, context: int) -> int:
        """Sequences of one forward pass below which checkpointing is better, if more then fit."""
        few = 1 if self.torch_device.type == "cpu" else GPU_FEW_TOKENS
        return min(num_sequences, -(-few // context))

    def free_bytes(self) -> int | None:
        """Memory that this process may still take on the device; None if that is not known."""
        if self.torch_device.type in accelerator.KINDS:
            free: int | None = accelerator.free_bytes(self.torch_device)
        elif (free := free_host_bytes()) is not None:
            free = int(_HOST_SHARE * free)
        return OWNER_LIMITS.free_bytes(self.torch_device, free)

    def free_bytes_of_others(self) -> int | None:
        """Memory that another process of this owner's may still take on a card; None on others."""
        if not accelerator.has_own_memory(self.torch_device):
            return None
        free = accelerator.unreserved_bytes(self.torch_device)
        return OWNER_LIMITS.free_bytes(self.torch_device, free)

    @property
    def is_compiled_for(self) -> bool:
        """Whether torch's compiler writes kernels for it that are known to be worth the wait."""
        return self.torch_device.type == "cuda" and accelerator.has_triton(self.torch_device)

    @property
    def memory_advice(self) -> str:
        """Returns the remedies for too little memory, for people."""
        if self.torch_device.type == "cpu":
            return (
                "stop what else uses this machine's memory, keep moments in less (--moments 8bit), "
                "take a run with a smaller model, or train on one with more"
            )
        return (
            "stop what else uses the device, keep moments in less (--moments 8bit), take one with "
            "more memory, or use --device cpu"
        )

    def copy_of(self, vector: torch.Tensor) -> torch.Tensor:
        """A copy of a vector, on the host if the device has no room for it twice."""
        try:
            return vector.detach().clone()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        self.release_memory()
        return vector.detach().to("cpu", copy=True)

    def take_peak_bytes(self) -> int:
        """Returns the most memory that tensors took on a card since the last call; 0 on another
        device."""
        if self.torch_device.type != "cuda":
            return 0
        most = int(torch.cuda.max_memory_allocated(self.torch_device))
        torch.cuda.reset_peak_memory_stats(self.torch_device)
        return most

    def release_memory(self) -> None:
        """After an allocation failed."""
        accelerator.release_memory(self.torch_device)


def take_device(wanted: str, width: int = 0) -> Device:
    """The device of a name, on which this thread works from now on. See `choose_device`."""
    device = choose_device(wanted, width)
    accelerator.make_current(device.torch_device)
    return device


def choose_device(wanted: str, width: int = 0) -> Device:
    """The device of a name; `auto` is the accelerator with the most memory, else the CPU.

    Args:
        width: of the model that is to be trained, by which a CPU takes bf16; 0 for other work.

    Raises:
        DeviceError: unknown, or not on this machine.
    """
    kind, count = accelerator.kind(), accelerator.num_devices()
    if wanted == "auto":
        wanted = f"{kind}:{accelerator.largest()}" if kind else "cpu"
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise DeviceError(f"device {wanted!r} is unknown; use {WORDS}") from error
    if device.type == "cpu":
        name = _cpu_info("model name") or platform.processor() or platform.machine()
        is_wide = width >= CPU_BF16_WIDTH_MIN and cpu_has_bf16()
        return Device(torch.device("cpu"), name, "bf16" if is_wide else "fp32")
    if device.type not in accelerator.KINDS:
        raise DeviceError(f"device {wanted!r} is not supported; use {WORDS}")
    index = device.index or 0
    there = count if device.type == kind else 0
    if index >= there:
        raise DeviceError(
            f"device {wanted!r}: this torch sees {there} {device.type} devices; try auto or cpu"
        )
    # No product that is called fp32 is in TF32, which has ten bits of its inputs. The products of
    # the layers are in half precision where a card has TF32.
    torch.set_float32_matmul_precision("highest")
    device = torch.device(device.type, index)
    return Device(device, accelerator.name_of(device), accelerator.precision_of(device))


def choose_devices(wanted: str, width: int = 0) -> tuple[Device, ...]:
    """The devices that train together; `all` are all accelerators, else the CPU. The first one
    holds the optimiser: of `all` it is the one with the most memory.

    Args:
        width: see `choose_device`.

    Raises:
        DeviceError: unknown, not on this machine, or not to be used together.
    """
    if not may_be_several(wanted):
        return (choose_device(wanted, width),)
    kind = accelerator.kind()
    if wanted == ALL:
        names = [f"{kind}:{n}" for n in range(accelerator.num_devices())] if kind else ["cpu"]
        devices = [choose_device(name, width) for name in names[:DEVICES_MAX]]
        if kind:
            devices.sort(key=lambda each: -accelerator.total_bytes(each.torch_device))
        return tuple(devices)
    if problem := problem_of(wanted):
        raise DeviceError(problem)
    return tuple(choose_device(name, width) for name in parts_of(wanted))


def grouped_dtypes_of(device: torch.device) -> tuple[torch.dtype, ...]:
    """The types for which torch has a kernel for grouped queries there that builds no matrix of
    tokens by tokens. On a GPU that is flash attention alone, which wants half precision and an
    Ampere card."""
    half = (torch.bfloat16, torch.float16)
    if device.type == "cuda":
        is_new = torch.cuda.get_device_capability(device)[0] >= _FLASH_CAPABILITY_MIN
        return half if is_new else ()
    return () if device.type == "mps" else (*half, torch.float32)


def is_out_of_memory(error: BaseException) -> bool:
    """True if torch, numpy or Python failed to allocate memory, on the device or on the host."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    text = str(error).lower()
    return any(words in text for words in _OUT_OF_MEMORY_WORDS)


def free_host_bytes(root: Path = Path("/")) -> int | None:
    """Memory that programs may still take, of the machine or of the container or job if that is
    less.

    None where the system has no such file (not Linux).
    """
    kilobytes = number_behind("MemAvailable:", root / "proc/meminfo")
    if kilobytes is None:
        return None
    group = group_memory(root)
    return 1024 * kilobytes if group is None else min(1024 * kilobytes, group.free)


@functools.cache
def cpu_has_bf16(root: Path = Path("/")) -> bool:
    """Whether the processor multiplies bf16 by instructions of its own. torch emulates it on
    others, which is slower than fp32. Only x86 was measured."""
    return not _BF16_FLAGS.isdisjoint(_cpu_info("flags", root).split())


def _cpu_info(name: str, root: Path = Path("/")) -> str:
    """What Linux says of the first core; empty if it does not."""
    for line in content_of(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""
