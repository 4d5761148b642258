"""`gossamer doctor`: whether torch's compiler has what it needs."""

from __future__ import annotations

from gossamer.node.commands.machine.state_checks import Check
from gossamer.trainer.compiling.tools import missing_tools
from gossamer.trainer.ipc.choices import CompileChoice


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
