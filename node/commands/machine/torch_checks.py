"""Checks of torch: whether it can be imported, which devices it has, and what confines its process.

torch is tried in another process, because neither this module nor the daemon ever imports it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator

import msgspec

from gossamer.node.commands.machine.compiler_check import check_compiler
from gossamer.node.commands.machine.state_checks import Check
from gossamer.node.machine.capacity import measure_capacity
from gossamer.node.telemetry.gpus import Gpu, Gpus
from gossamer.trainer.ipc.choices import CompileChoice
from gossamer.trainer.ipc.environment import computing_environment
from gossamer.trainer.resources.device_names import ALL, names_together, parts_of

# Importing torch with CUDA from a cold network disk takes up to a minute.
_TORCH_SECONDS_MAX = 180

# Confined like the trainer, if there is a folder to confine it to: so a driver that does not work
# under confinement shows here.
_TORCH_PROBE = """
import json, pathlib, sys
from gossamer.trainer.confinement.confine import confine
confined = confine(pathlib.Path(sys.argv[1])) if len(sys.argv) > 1 else None
import torch
import torch.distributed as dist
from gossamer.trainer.resources import accelerator
kind, count = accelerator.kind(), accelerator.num_devices()
print(json.dumps({
    "confinement": confined.text if confined else "",
    "confinement_problems": len(confined.problems) if confined else 0,
    "version": torch.__version__,
    "kind": kind,
    "names": [accelerator.name_of(torch.device(kind, n)) for n in range(count)],
    "largest": accelerator.largest(),
    "hip": torch.version.hip or "",
    "connects": dist.is_available() and dist.is_backend_available(
        {"cuda": "nccl", "xpu": "xccl"}.get(kind, "gloo")
    ),
}))
"""


class TorchReport(msgspec.Struct, frozen=True):
    """The report of torch from its own process."""

    version: str
    kind: str
    """torch's kind of accelerator (`cuda`, `xpu`, `mps`); empty without one."""
    names: list[str]
    """The accelerators, for people."""
    hip: str
    largest: int = 0
    """The accelerator with the most memory, by its place among them."""
    connects: bool = True
    """Whether several devices of the kind can train as one."""
    confinement: str = ""
    """What a confined process cannot do here, for people; empty if it was not confined."""
    confinement_problems: int = 0


def check_torch(
    device: str,
    probe: str = _TORCH_PROBE,
    *,
    confined: bool = True,
    compiling: CompileChoice = "auto",
) -> Iterator[Check]:
    """Checks whether torch can be imported and has the device of the settings, what the trainer's
    process can be kept from, and whether layers can be compiled if they are to be."""
    report = _ask_torch(probe, confined=confined)
    if isinstance(report, str):
        advice = "Install torch for this Python as https://pytorch.org/get-started says"
        yield Check("torch", "fail", f"cannot be imported: {report}", advice)
        return
    yield Check("torch", "ok", report.version)
    gpus = Gpus().read()
    yield check_device(device, report, gpus)
    free = _ask_torch(probe, confined=False) if confined and gpus and not report.kind else None
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


def _ask_torch(probe: str, *, confined: bool) -> TorchReport | str:
    """torch's report from a process of its own, or the reason why there is none."""
    with tempfile.TemporaryDirectory(prefix="gossamer-doctor-") as folder:
        try:
            done = subprocess.run(
                [sys.executable, "-c", probe, *([folder] if confined else [])],
                capture_output=True,
                text=True,
                timeout=_TORCH_SECONDS_MAX,
                env=computing_environment(),
                check=False,
            )
            if done.returncode == 0:
                return msgspec.json.decode(done.stdout, type=TorchReport)
            return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        except subprocess.TimeoutExpired:
            return f"no answer within {_TORCH_SECONDS_MAX} s"
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return f"unexpected answer: {error}"


def check_device(device: str, torch: TorchReport, gpus: list[Gpu]) -> Check:
    """Checks whether torch has the wanted devices, and whether `auto` misses a GPU."""
    if device in ("auto", ALL):
        if not torch.kind and gpus:
            return Check(
                "device",
                "warn",
                f"the driver has {gpus[0].name}, but torch {torch.version} cannot use it",
                "Install a torch build with CUDA; until then the CPU trains",
            )
        used = torch.names if device == ALL else torch.names[torch.largest :][:1]
    elif device.startswith("cpu"):
        used = []
    else:
        parts = [part.partition(":") for part in parts_of(device)]
        ordinals = [int(ordinal or 0) for _, _, ordinal in parts]
        names = torch.names if parts[0][0] == torch.kind else []
        if max(ordinals) >= len(names):
            return Check(
                "device",
                "fail",
                f"{device} does not exist: torch finds {len(names)} {parts[0][0]} devices",
                "Choose another --device, or install the driver and a torch build for the GPU",
            )
        used = [names[ordinal] for ordinal in ordinals]
    if not torch.connects and max(len(used), len(parts_of(device))) > 1:
        return Check(
            "device",
            "fail",
            f"torch {torch.version} cannot connect several devices of this kind",
            "Choose one --device, or install a torch build with the library for several",
        )
    if used:
        where = "ROCm" if torch.hip else {"cuda": "CUDA"}.get(torch.kind, torch.kind.upper())
        return Check("device", "ok", f"{names_together(used)} through {where}")
    capacity = measure_capacity("cpu" if device in ("auto", ALL) else device, [])
    return Check("device", "ok", f"{capacity.device}, {capacity.cores} cores")
