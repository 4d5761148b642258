"""The programs that torch's compiler needs on this machine. Without torch."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path

_COMPILERS = {"cpu": ("g++", "clang++"), "cuda": ("gcc", "clang")}
"""By torch's word for the device. It writes C++ for a CPU, and C for a card's launchers."""


def missing_tools(device_type: str) -> tuple[str, ...]:
    """Returns what is missing to compile for a device, for people; nothing if all is there.

    Args:
        device_type: torch's word for it, `cpu` or `cuda`.
    """
    names = _COMPILERS[device_type]
    variable = "CXX" if device_type == "cpu" else "CC"
    chosen = os.environ.get(variable, "")
    has_compiler = any(shutil.which(name) for name in ([chosen] if chosen else names))
    has_headers = (Path(sysconfig.get_path("include")) / "Python.h").exists()
    missing = {f"a compiler ({' or '.join(names)})": has_compiler, "Python.h": has_headers}
    return tuple(what for what, is_there in missing.items() if not is_there)
