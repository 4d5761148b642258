"""Processes that load thousands of modules do not look for garbage while they do so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

STARTING = """
import gc, importlib.abc, importlib.util, runpy, sys

loaded, module, name = sys.argv[1:4]


class Shown(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, asked, path=None, target=None):
        return importlib.util.spec_from_loader(asked, self) if asked == loaded else None

    def exec_module(self, of):
        print("looks while it loads:", gc.isenabled())
        setattr(of, name, self.run)

    def run(self, *arguments):
        print("looks when it runs:", gc.isenabled())
        print("what was loaded is looked at:", gc.get_freeze_count() == 0)
        return 0


sys.meta_path.insert(0, Shown())
sys.argv[1:] = sys.argv[4:]
sys.exit(getattr(importlib.import_module(module), "main")())
"""
"""A process whose last and largest module is one that prints what the collector does."""

CLI, DAEMON = "gossamer.node.cli", "gossamer.node.app.daemon"
JOINING = "/ip4/127.0.0.1/tcp/9/p2p/12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"


@pytest.mark.parametrize(
    "words",
    [
        (DAEMON, CLI, "run", "start"),
        (DAEMON, CLI, "run", "join", JOINING, "--yes"),
        ("gossamer.trainer.worker_loop", "gossamer.trainer.worker", "main"),
    ],
    ids=["start", "join", "trainer"],
)
def test_the_search_for_garbage_begins_when_all_is_loaded(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    environment = {
        **os.environ,
        "GOSSAMER_STATE_DIR": str(tmp_path / "state"),
        "XDG_CONFIG_HOME": str(tmp_path),
    }
    command = [sys.executable, "-c", STARTING, *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "looks while it loads: False",
        "looks when it runs: True",
        "what was loaded is looked at: False",
    ]
