"""What can be said of macOS and Windows without either: the table of docs/guides/install.md."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("node", "protocol", "trainer")

NOT_ON_WINDOWS = frozenset({"fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty"})

# First everything is loaded as it is here, so that the packages of others are there. Then the
# modules of Gossamer are loaded anew, on a system that lacks what macOS lacks.
PROGRAM = """
import importlib, os, socket, sys, select

names = sys.argv[1:]
for name in names:
    importlib.import_module(name)
for name in [each for each in sys.modules if each.partition(".")[0] == "gossamer"]:
    del sys.modules[name]
sys.platform = "darwin"
for module, lacks in (
    (os, "MFD_CLOEXEC O_PATH O_TMPFILE eventfd memfd_create pidfd_open posix_fallocate"
         " sched_getaffinity sched_setaffinity"),
    (socket, "TCP_CONGESTION TCP_INFO TCP_KEEPIDLE TCP_USER_TIMEOUT"),
    (select, "epoll"),
):
    for name in lacks.split():
        if hasattr(module, name):
            delattr(module, name)
for name in names:
    importlib.import_module(name)
print(len(names))
"""


def modules() -> dict[str, Path]:
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            words = ("gossamer", *path.relative_to(ROOT).with_suffix("").parts)
            found[".".join(words).removesuffix(".__init__")] = path
    return found


@pytest.mark.long
def test_all_modules_load_on_macos() -> None:
    names = [name for name in modules() if not name.endswith("__main__")]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, *names], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) == len(names) > 400


def test_the_guide_names_the_modules_that_import_what_windows_lacks() -> None:
    found: dict[str, set[str]] = {}
    for path in modules().values():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            else:
                continue
            for missing in NOT_ON_WINDOWS.intersection(names):
                place = path.relative_to(ROOT).as_posix()
                found.setdefault(place, set()).add(missing)
    guide = (
        (ROOT / "docs/guides/install.md").read_text(encoding="utf-8").partition("**Windows**")[2]
    )
    rows = re.findall(r"^\| `([\w/]+\.py)` \| ([^|]+) \|", guide, re.MULTILINE)
    assert {place: set(re.findall(r"`(\w+)`", names)) for place, names in rows} == found
