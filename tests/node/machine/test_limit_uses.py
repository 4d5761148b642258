"""The reader of what a node uses, on processes of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gossamer.node.base.settings.settings import Settings
from gossamer.node.machine.limit_uses import LimitUses
from gossamer.node.telemetry.gpus import Gpus

# Its parent hears when it has worked for a while, and tells it to end.
_WORK = """
import time
while time.process_time() < 0.3:
    pass
print("worked", flush=True)
input()
"""

_ALONE = """
import psutil
from pathlib import Path
from gossamer.node.base.settings.settings import Settings
from gossamer.node.machine.limit_uses import LimitUses
from gossamer.node.telemetry.gpus import Gpus

read = LimitUses(Gpus(), lambda: 7)
settings = Settings(state_dir=Path("/nowhere"))
read(settings)
listed = []
psutil._ppid_map = psutil._psplatform.ppid_map = lambda: listed.append(1) or {}
print(read(settings).trainer_bytes, len(listed))
"""

SETTINGS = Settings(state_dir=Path("/nowhere"))


def test_memory_and_processor_time_of_the_trainer_are_its_own() -> None:
    read = LimitUses(Gpus(), lambda: 7)
    read(SETTINGS)  # the first look counts what other children of this process did before
    before = read(SETTINGS)
    with subprocess.Popen(
        [sys.executable, "-c", _WORK], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as trainer:
        assert trainer.stdout is not None
        assert trainer.stdin is not None
        assert trainer.stdout.readline() == b"worked\n"
        during = read(SETTINGS)
        again = read(SETTINGS)
        trainer.stdin.write(b"\n")
    after = read(SETTINGS)
    assert during.uses["disk"] == 7
    assert during.trainer_bytes >= before.trainer_bytes + 2**20
    assert 0.25 <= during.trainer_cpu_seconds - before.trainer_cpu_seconds < 5
    # Time that was counted is not counted again.
    assert 0 <= again.trainer_cpu_seconds < 0.2
    assert after.trainer_bytes == before.trainer_bytes
    assert during.uses["memory"] > during.trainer_bytes


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="this system does not say who has children")
def test_a_node_without_a_trainer_does_not_list_the_processes_of_the_machine() -> None:
    alone = subprocess.run([sys.executable, "-c", _ALONE], capture_output=True, text=True)
    assert alone.stderr == ""
    assert alone.stdout == "0.0 0\n"
