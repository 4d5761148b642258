"""Checks of torch: whether it can be imported, which devices it has, and what confines its process.

torch is tried in another process (`torch_probe`).
"""

from __future__ import annotations

from collections.abc import Iterator

from gossamer.node.base.terminal.units import format_cores
from gossamer.node.commands.machine.state_checks import Check
from gossamer.node.machine.capacity import measure_capacity
from gossamer.node.machine.torch_probe import (
    TORCH_PROBE,
    TorchReport,
    ask_torch,
    device_problem,
    used_names,
)
from gossamer.node.telemetry.gpus import Gpu, Gpus
from gossamer.trainer.compiling.tools import missing_tools
from gossamer.trainer.ipc.choices import CompileChoice
from gossamer.trainer.resources.device_names import ALL, names_together


def check_torch(
    device: str,
    probe: str = TORCH_PROBE,
    *,
    confined: bool = True,
    compiling: CompileChoice = "auto",
) -> Iterator[Check]:
    """Checks whether torch can be imported and has the device of the settings, what the trainer's
    process can be kept from, and whether layers can be compiled if they are to be."""
    report = ask_torch(probe, confined=confined)
    if isinstance(report, str):
        advice = "Install torch for this Python as https://pytorch.org/get-started says"
        yield Check("torch", "fail", f"cannot be imported: {report}", advice)
        return
    yield Check("torch", "ok", report.version)
    gpus = Gpus().read()
    yield check_device(device, report, gpus)
    free = ask_torch(probe, confined=False) if confined and gpus and not report.kind else None
    yield check_confinement(report, free if isinstance(free, TorchReport) else None)
    trains_on = "cpu" if device.startswith("cpu") else report.kind or "cpu"
    compiler = check_compiler(compiling, trains_on)
    if compiler is not None:
        yield compiler


def check_confinement(report: TorchReport, free: TorchReport | None) -> Check:
    """Checks what a confined process gave up, and whether a GPU is missing because of that.

    Args:
        report: torch's report, from a confined process if the settings want one.
        free: its report from one that was not confined; None if it was not asked.
    """
    if free is not None and len(free.names) > len(report.names):
        return Check(
            "trainer",
            "fail",
            "its confinement hides the GPU from it",
            "Set GOSSAMER_CONFINE_TRAINER=off, and report the driver's version as a bug",
        )
    if not report.confinement:
        text = "the trainer is not confined: confine_trainer is off"
        return Check("trainer", "warn", text, "Set GOSSAMER_CONFINE_TRAINER=on if the GPU works so")
    if report.confinement_problems:
        advice = "deploy/gossamer.service confines the whole node; a newer kernel confines more"
        return Check("trainer", "warn", report.confinement, advice)
    return Check("trainer", "ok", report.confinement)


def check_device(device: str, torch: TorchReport, gpus: list[Gpu]) -> Check:
    """Checks whether torch has the wanted devices, and whether `auto` misses a GPU."""
    if device in ("auto", ALL) and not torch.kind and gpus:
        return Check(
            "device",
            "warn",
            f"the driver has {gpus[0].name}, but torch {torch.version} cannot use it",
            "Install a torch build with CUDA; until then the CPU trains",
        )
    problem = device_problem(device, torch)
    if problem is not None:
        return Check("device", "fail", *problem)
    used = used_names(device, torch)
    if used:
        where = "ROCm" if torch.hip else {"cuda": "CUDA"}.get(torch.kind, torch.kind.upper())
        return Check("device", "ok", f"{names_together(used)} through {where}")
    capacity = measure_capacity("cpu" if device in ("auto", ALL) else device, [])
    return Check("device", "ok", f"{capacity.device}, {format_cores(capacity.cores)}")


def check_compiler(choice: CompileChoice, device_type: str) -> Check | None:
    """Checks whether what torch's compiler needs is there; None where it is not to be used.

    Args:
        choice: the owner's.
        device_type: torch's word for the device that trains.
    """
    wanted_on = {"on": ("cpu", "cuda"), "auto": ("cuda",), "off": ()}[choice]
    if device_type not in wanted_on:
        return None
    missing = missing_tools(device_type)
    if missing:
        return Check(
            "compiler",
            "warn",
            f"layers are not compiled, which makes them slower: {' and '.join(missing)} missing",
            "Install a C++ compiler and Python's headers (Debian: g++ python3-dev), or set "
            "--compile off",
        )
    return Check("compiler", "ok", "layers are compiled after the first steps")
