"""The choice of the processor that trains, and of the precision."""

from __future__ import annotations

import errno
import functools
import platform
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from gossamer.trainer.resources.memory_estimate import GPU_FEW_TOKENS, GPU_TOKENS_MAX
from gossamer.trainer.resources.owner_limits import OwnerLimits

# Tokens of one pass at most. On a CPU larger ones only fall out of the caches.
_CPU_TOKENS_MAX = 4 * 1024
# Tokens of one pass to begin with where the free memory of a GPU is not known.
_GPU_TOKENS_FIRST = 64 * 1024

# NVIDIA's cards from Volta on multiply fp16 in tensor cores. Earlier ones are no faster with it
# than with fp32.
_FP16_CAPABILITY_MIN = 7

# Width of a model from which on a CPU with instructions for bf16 is faster with them. Passes were
# 1.4 times as fast at 160, 1.9 at 256 and 2.1 at 384, but 0.8 at 96 and, by the length of the
# sequences, 1.1 to 1.6 at 128 (tests/benchmarks/step_time.py).
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


Precision = Literal["fp32", "bf16", "fp16"]

_DTYPES: dict[Precision, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


@dataclass(frozen=True)
class Device:
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
        return OWNER_LIMITS.free_bytes(self.torch_device, self._free_bytes())

    def _free_bytes(self) -> int | None:
        device = self.torch_device
        if device.type == "cuda":
            cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
            return int(torch.cuda.mem_get_info(device)[0]) + cached
        if device.type == "mps":
            most = torch.mps.recommended_max_memory()
            return max(0, int(most) - int(torch.mps.current_allocated_memory()))
        free = free_host_bytes()
        return None if free is None else int(_HOST_SHARE * free)

    @property
    def memory_advice(self) -> str:
        """Returns the remedies for too little memory, for people."""
        if self.torch_device.type == "cpu":
            return (
                "stop what else uses this machine's memory, keep moments in less (--moments 8bit), "
                "or train on one with more"
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
        """Gives cached memory back after an allocation failed."""
        if self.torch_device.type == "cuda":
            torch.cuda.empty_cache()
        elif self.torch_device.type == "mps":
            torch.mps.empty_cache()


def choose_device(wanted: str, width: int = 0) -> Device:
    """The device of a name; `auto` is the first CUDA (or ROCm) device, else MPS, else the CPU.

    Args:
        width: of the model that is to be trained. A CPU takes bf16 for a wide one, if it is faster
            with it. 0 for other work, which a CPU does in fp32.

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
        # No product that is called fp32 is in TF32, which has ten bits of its inputs. The products
        # of the layers are in half precision where a card has TF32.
        torch.set_float32_matmul_precision("highest")
        device = torch.device("cuda", index)
        return Device(device, torch.cuda.get_device_name(device), _cuda_precision(device))
    if device.type == "mps":
        if not has_mps:
            raise DeviceError(f"device {wanted!r} is not on this machine; try auto or cpu")
        return Device(torch.device("mps", 0), f"Apple {platform.machine()} GPU", "fp32")
    if device.type == "cpu":
        is_wide = width >= CPU_BF16_WIDTH_MIN and cpu_has_bf16()
        return Device(torch.device("cpu"), _cpu_name(), "bf16" if is_wide else "fp32")
    raise DeviceError(f"device {wanted!r} is not supported; use auto, cpu, cuda:N or mps")


def _cuda_precision(device: torch.device) -> Precision:
    # torch's function asks the current device, which need not be this one.
    with torch.cuda.device(device):
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bf16"
    major, _ = torch.cuda.get_device_capability(device)
    return "fp16" if major >= _FP16_CAPABILITY_MIN else "fp32"


def has_grouped_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether torch has a kernel there for grouped queries that builds no matrix of tokens by
    tokens. On a GPU that is flash attention alone, which wants half precision and an Ampere card.
    """
    if device.type == "cuda":
        is_half = dtype in (torch.bfloat16, torch.float16)
        return is_half and torch.cuda.get_device_capability(device)[0] >= _FLASH_CAPABILITY_MIN
    return device.type != "mps"


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
    """Memory that programs may still take, of the machine or of the container if that is less.

    None where the system has no such file (not Linux).
    """
    free = _kilobytes(root / "proc/meminfo", "MemAvailable:")
    if free is None:
        return None
    group = root / "sys/fs/cgroup"
    limit, used = _number(group / "memory.max"), _number(group / "memory.current")
    if limit is not None and used is not None:
        # Pages of files count as used, and are given up when memory is wanted.
        pages = _field(group / "memory.stat", "inactive_file") or 0
        free = min(free, max(0, limit - used + pages))
    return free


def _kilobytes(path: Path, name: str) -> int | None:
    value = _field(path, name)
    return None if value is None else 1024 * value


def _field(path: Path, name: str) -> int | None:
    """The number behind a name at the beginning of a line."""
    for line in _read(path).splitlines():
        key, *values = line.split()[:2] or [""]
        if key == name and values and values[0].isdigit():
            return int(values[0])
    return None


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


@functools.cache
def cpu_has_bf16(root: Path = Path("/")) -> bool:
    """Whether the processor multiplies bf16 by instructions of its own. torch emulates it on
    others, which is slower than fp32. Only x86 was measured."""
    for line in _read(root / "proc/cpuinfo").splitlines():
        key, _, flags = line.partition(":")
        if key.strip() == "flags":
            return not _BF16_FLAGS.isdisjoint(flags.split())
    return False


def _cpu_name() -> str:
    for line in _read(Path("/proc/cpuinfo")).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return value.strip()
    return platform.processor() or platform.machine()
