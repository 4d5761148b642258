"""What torch finds on this machine: its version, and the devices that it can train on.

torch is tried in another process, because no process of the daemon ever imports it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from typing import NamedTuple

import msgspec

from gossamer.node.base.settings.settings import ConfigError
from gossamer.trainer.ipc.environment import computing_environment
from gossamer.trainer.resources.device_names import ALL, parts_of

# Importing torch with CUDA from a cold network disk takes up to a minute.
_TORCH_SECONDS_MAX = 180

# Confined like the trainer, if there is a folder to confine it to: so a driver that does not work
# under confinement shows here.
TORCH_PROBE = """
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


def ask_torch(probe: str, *, confined: bool) -> TorchReport | str:
    """Returns torch's report from a process of its own, or the reason why there is none."""
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


class DeviceProblem(NamedTuple):
    """The reason why a setting of the device does not work here, for people."""

    text: str
    advice: str


def device_problem(device: str, torch: TorchReport) -> DeviceProblem | None:
    """Returns why torch cannot train on the devices of a setting; None if it can."""
    parts = [part.partition(":") for part in parts_of(device)]
    if is_named(device):
        kind, names = parts[0][0], _names_of(parts[0][0], torch)
        if max(int(ordinal or 0) for _, _, ordinal in parts) >= len(names):
            return DeviceProblem(
                f"{device} does not exist: torch {torch.version} finds {len(names)} {kind} devices",
                f"Choose another --device ({', '.join(_here(torch))}), or install the driver and a "
                "torch build for the GPU",
            )
    if not torch.connects and max(len(used_names(device, torch)), len(parts)) > 1:
        return DeviceProblem(
            f"torch {torch.version} cannot connect several devices of this kind",
            "Choose one --device, or install a torch build with the library for several",
        )
    return None


def is_named(device: str) -> bool:
    """Returns whether a setting names accelerators, which may not be there."""
    return device not in ("auto", ALL) and not device.startswith("cpu")


def used_names(device: str, torch: TorchReport) -> list[str]:
    """Returns the names of the accelerators that a setting stands for, if they exist."""
    if device == ALL:
        return torch.names
    if device == "auto":
        return torch.names[torch.largest :][:1]
    if not is_named(device):
        return []
    parts = [part.partition(":") for part in parts_of(device)]
    return [_names_of(kind, torch)[int(ordinal or 0)] for kind, _, ordinal in parts]


def _names_of(kind: str, torch: TorchReport) -> list[str]:
    return torch.names if kind == torch.kind else []


def _here(torch: TorchReport) -> list[str]:
    """Returns the devices of this machine, in words of the setting."""
    numbered = [f"{torch.kind}:{number}" for number in range(len(torch.names))]
    return ["auto", "cpu", *(["mps"] if torch.kind == "mps" else numbered)]


def require_device(device: str, *, confined: bool) -> None:
    """Refuses a setting that names an accelerator which torch does not find here.

    It takes the seconds in which torch loads, if the setting names one.

    Raises:
        ConfigError: it does not exist, or torch cannot be used.
    """
    if not is_named(device):
        return
    report = ask_torch(TORCH_PROBE, confined=confined)
    if isinstance(report, str):
        raise ConfigError([f"torch cannot be used, and {device} needs it: {report}"])
    problem = device_problem(device, report)
    if problem is not None:
        raise ConfigError([f"{problem.text}. {problem.advice}"])
