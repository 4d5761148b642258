"""What commands that only ask a running node load: a person waits for each module."""

from __future__ import annotations

import importlib.util
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

READER = {"cyclopts"}
KEYS = {"cryptography"}
NEVER = frozenset(
    {
        *("torch", "numpy", "matplotlib", "starlette", "hypercorn", "prometheus_client", "psutil"),
        *("libp2p", "multiaddr", "zeroconf", "trio", "structlog", "pygments", "zstandard"),
        "rich",
        *("asyncio", "email", "http", "logging", "plistlib", "ssl", "subprocess", "xml"),
        *("difflib", "secrets", "tomllib"),
        # A manifest has many structs, as have the messages of the trainer.
        *("gossamer.protocol.manifest", "gossamer.trainer.ipc.messages"),
        *("gossamer.node.commands.node_options", "gossamer.node.telemetry.logs"),
    }
)
"""Packages and modules that none of these commands needs."""

OF_STATUS = frozenset(
    {
        *("gossamer.node.app.http.client", "gossamer.node.base.address_text"),
        *("gossamer.node.base.settings.default_places", "gossamer.node.base.disk_health"),
        "gossamer.node.base.durations",
        *("gossamer.node.base.limit_periods", "gossamer.node.base.local_http"),
        *("gossamer.node.base.pausing", "gossamer.node.base.terminal.printable"),
        *("gossamer.node.base.settings.setting_values", "gossamer.node.base.settings.settings"),
        "gossamer.node.base.terminal.standard_streams",
        *("gossamer.node.base.terminal.terminal", "gossamer.node.base.terminal.text_table"),
        *(
            "gossamer.node.base.terminal.units",
            "gossamer.node.base.work_hours",
            "gossamer.node.cli",
        ),
        *("gossamer.node.commands.views.status_line", "gossamer.node.commands.views.status_view"),
        "gossamer.node.storage.address_files",
        *("gossamer.node.storage.bounded_file", "gossamer.node.storage.daemon_files"),
        "gossamer.node.storage.manifest_files",
        *("gossamer.node.storage.known_peers", "gossamer.node.storage.state_dir"),
        *("gossamer.node.telemetry.pause_text", "gossamer.node.telemetry.status"),
        *("gossamer.protocol.decoding", "gossamer.protocol.errors", "gossamer.protocol.ids"),
        "gossamer.protocol.limits",
        "gossamer.protocol.wire.audit_messages",
        *("gossamer.protocol.wire.statement_checks", "gossamer.protocol.wire.statements"),
        *("gossamer.trainer.ipc.choices", "gossamer.trainer.ipc.measures"),
        "gossamer.trainer.resources.device_names",
    }
)
"""All modules of Gossamer that `gossamer status` loads, but for packages without a line of code. A
module that is added here is time for which everybody waits who asks a node."""

PACKAGES_OF_STATUS = frozenset({"blake3", "msgspec", "platformdirs"})
"""Packages of others that `gossamer status` loads."""


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
        ("status", set()),
        ("status --json", set()),
        ("pause", READER),
        ("resume", READER),
        ("limits", READER),
        ("limits set upload=10", READER),
        ("schedule", READER),
        ("page", READER),
        ("id", READER | KEYS),
    ],
)
def test_a_question_to_a_node_loads_nothing_that_it_does_not_need(
    command: str, may_load: set[str], tmp_path: Path
) -> None:
    with answering_node(tmp_path):
        loaded = loaded_by(tmp_path, *command.split())
    assert loaded >= may_load
    assert not loaded & (NEVER | ((READER | KEYS) - may_load))


@pytest.mark.parametrize("command", ["status", "status --json"])
def test_all_that_status_loads_is_known(command: str, tmp_path: Path) -> None:
    with answering_node(tmp_path):
        loaded = loaded_by(tmp_path, *command.split(), "--state-dir", str(tmp_path))
    ours = {name for name in loaded if name.startswith("gossamer.") and has_code(name)}
    assert ours <= OF_STATUS
    at_start = subprocess.run(
        [sys.executable, "-c", "import sys; print(*sys.modules)"],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    others = {name.partition(".")[0] for name in loaded - set(at_start)}
    assert others - sys.stdlib_module_names - {"gossamer", "typing_extensions"} == (
        PACKAGES_OF_STATUS
    )


def has_code(name: str) -> bool:
    """Whether a module is more than the docstring of its package."""
    found = importlib.util.find_spec(name)
    return found is not None and Path(found.origin or "").name != "__init__.py"


def test_what_each_member_has_given_is_read_without_the_network() -> None:
    program = "import sys, gossamer.node.runs.results.credit; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert not {"trio", "libp2p", "torch", "numpy"} & set(done.stdout.split())


def test_a_daemon_loads_neither_chat_templates_nor_pictures() -> None:
    program = "import sys, gossamer.node.app.daemon; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert not {"jinja2", "segno", "torch", "matplotlib"} & set(done.stdout.split())
