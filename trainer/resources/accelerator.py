"""The machine's accelerator: the one door to CUDA, ROCm, Apple's MPS and Intel's XPU.

`torch.accelerator` says which kind this torch has, and how many devices. ROCm calls itself `cuda`.
What it does not tell (names, free memory, precision) is asked of the kind's own module.
`docs/guides/devices.md` says which of it was run on such devices, and which was only read.
"""

from __future__ import annotations

import platform
from typing import Literal

import torch

Precision = Literal["fp32", "bf16", "fp16"]

KINDS = ("cuda", "mps", "xpu")
"""Torch's names of the kinds that train."""

# NVIDIA's cards from Volta on multiply fp16 in tensor cores. Earlier ones are no faster with it
# than with fp32.
_FP16_CAPABILITY_MIN = 7

_TRITON_CAPABILITY_MIN = 7


def kind() -> str:
    """The kind of `KINDS` that this torch finds; empty without one."""
    if not torch.accelerator.is_available():
        return ""
    found = torch.accelerator.current_accelerator()
    return found.type if found is not None and found.type in KINDS else ""


def num_devices() -> int:
    """Devices of that kind; 0 without one."""
    return torch.accelerator.device_count() if kind() else 0


def make_current(device: torch.device) -> None:
    """Makes a device the one on which the calling thread works where it names none: its kernels,
    streams and events. Without it that is the first one."""
    if device.type != "cpu":
        torch.accelerator.set_device_index(device.index or 0)


def name_of(device: torch.device) -> str:
    """The card's name, for people."""
    if device.type == "mps":
        return f"Apple {platform.machine()} GPU"
    return str(torch.get_device_module(device).get_device_name(device))


def precision_of(device: torch.device) -> Precision:
    """The type of matrix products that is fastest there."""
    if device.type == "mps":
        return "fp32"
    if device.type == "xpu":
        # torch's function asks the current device, and counts bf16 that is emulated.
        has_bf16 = torch.xpu.get_device_properties(device).has_bfloat16_conversions
        return "bf16" if has_bf16 else "fp16"
    # torch's function asks the current device, which need not be this one.
    with torch.cuda.device(device):
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bf16"
    major, _ = torch.cuda.get_device_capability(device)
    return "fp16" if major >= _FP16_CAPABILITY_MIN else "fp32"


def free_bytes(device: torch.device) -> int:
    """Memory that this process may still take there, with what it has cached."""
    if device.type == "mps":
        most = torch.mps.recommended_max_memory()
        return max(0, int(most) - int(torch.mps.current_allocated_memory()))
    module = torch.get_device_module(device)
    cached = module.memory_reserved(device) - module.memory_allocated(device)
    return int(module.mem_get_info(device)[0]) + int(cached)


def unreserved_bytes(device: torch.device) -> int:
    """Memory of a card that no process has taken."""
    return int(torch.get_device_module(device).mem_get_info(device)[0])


def has_triton(device: torch.device) -> bool:
    """Whether a CUDA or ROCm card is one that Triton, the language of torch's kernels, is for."""
    return bool(torch.cuda.get_device_capability(device)[0] >= _TRITON_CAPABILITY_MIN)


def total_bytes(device: torch.device) -> int:
    """The card's memory."""
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory())
    return int(torch.get_device_module(device).get_device_properties(device).total_memory)


def largest() -> int:
    """The number of the device with the most memory, of several the first one; 0 without one."""
    count = num_devices()
    if count < 2:
        return 0
    return max(range(count), key=lambda n: total_bytes(torch.device(kind(), n)))


def allocated_bytes(device: torch.device) -> int:
    """Memory of this process's tensors on a card with memory of its own."""
    return int(torch.get_device_module(device).memory_allocated(device))


def limit_memory(device: torch.device, share: float) -> None:
    """Lets this process take no more than a share of the memory of a card that has its own. Torch
    can do that to Intel's cards from version 2.10 on; before, only passes are chosen by it."""
    module = torch.get_device_module(device)
    if hasattr(module, "set_per_process_memory_fraction"):
        module.set_per_process_memory_fraction(share, device)


def has_own_memory(device: torch.device) -> bool:
    """Whether the device is a card, and does not share the host's memory."""
    return device.type in ("cuda", "xpu")


def release_memory(device: torch.device) -> None:
    """Gives cached memory back; a CPU has none."""
    if device.type in KINDS:
        torch.get_device_module(device).empty_cache()
