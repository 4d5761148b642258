"""What commands that only ask a running node load: a person waits for each module."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.answering_node import answering_node

PROGRAM = """
import sys
from gossamer.node.cli import run_command
status = run_command(sys.argv[1:])
print("", *sys.modules, file=sys.stderr)
sys.exit(status)
"""

TERMINAL = {"rich"}
KEYS = {"cryptography"}
NEVER = frozenset(
    {
        *("torch", "numpy", "matplotlib", "starlette", "hypercorn", "prometheus_client", "psutil"),
        *("libp2p", "multiaddr", "zeroconf", "trio", "structlog", "pygments", "zstandard"),
        *("asyncio", "email", "http", "logging", "plistlib", "ssl", "subprocess", "xml"),
        *("difflib", "secrets", "tomllib"),
        # A manifest has many structs, as have the messages of the trainer.
        *("gossamer.protocol.manifest", "gossamer.trainer.ipc.messages"),
        *("gossamer.node.commands.node_options", "gossamer.node.telemetry.logs"),
    }
)
"""Packages and modules that none of these commands needs."""


def loaded_by(root: Path, *words: str) -> set[str]:
    """The modules that a command has loaded at its end, and their packages."""
    environment = {**os.environ, "GOSSAMER_STATE_DIR": str(root), "XDG_CONFIG_HOME": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split("\n")[-2].split())


@pytest.mark.parametrize(
    ("command", "may_load"),
    [
        ("status", TERMINAL),
        ("status --json", set()),
        ("pause", set()),
        ("resume", set()),
        ("limits", set()),
        ("limits set upload=10", set()),
        ("schedule", set()),
        ("page", set()),
        ("id", KEYS),
    ],
)
def test_a_question_to_a_node_loads_nothing_that_it_does_not_need(
    command: str, may_load: set[str], tmp_path: Path
) -> None:
    with answering_node(tmp_path):
        loaded = loaded_by(tmp_path, *command.split())
    assert "cyclopts" in loaded
    assert not loaded & (NEVER | ((TERMINAL | KEYS) - may_load))


def test_what_each_member_has_given_is_read_without_the_network() -> None:
    program = "import sys, gossamer.node.runs.credit; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert not {"trio", "libp2p", "torch", "numpy"} & set(done.stdout.split())
