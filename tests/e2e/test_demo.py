"""The demo as a person runs it, only shorter."""

import io
import os
import re
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from gossamer.node.demo.story import run_demo

pytestmark = [pytest.mark.e2e, pytest.mark.real_processes]

MARK = "DEMO_TEST_MARK"
SECONDS = 15.0
"""Every scene waits for what it shows, however long that takes."""

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> str:
    """A mark in the environment of every process of this test, whatever its parent is."""
    value = uuid.uuid4().hex
    monkeypatch.setenv(MARK, value)
    return value


def marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                found.append(process)
        except psutil.Error:
            continue
    return found


def all_ended(mark: str, seconds: float = 10.0) -> bool:
    """Trainers of killed daemons need a moment to notice."""
    return not psutil.wait_procs(marked(mark), timeout=seconds)[1] and not marked(mark)


def test_the_demo_trains_through_a_death_and_a_birth(tmp_path: Path, mark: str) -> None:
    folder = tmp_path / "demo"
    console = Console(file=io.StringIO(), width=200)

    status = run_demo(folder, seconds=SECONDS, console=console)

    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert status == 0, text
    killed = re.search(r"node1, the seed, is killed \(SIGKILL\) in the ring of round (\d+)", text)
    assert killed is not None, text
    # The ring that commits is the one that the seed died in: it still counts four members.
    assert f"round {killed[1]} is committed" in text
    assert "of its ring's 4" in text
    assert "node5 joins by the address of node2" in text
    assert re.search(r"node5 has the state and is in the ring of round \d+", text), text

    summary = text[text.index("results") :]
    first, last = re.findall(r"(\d+\.\d+) \(rounds \d+ to \d+\)", summary)
    assert float(last) < float(first)
    rounds = re.search(r"(\d+) committed", summary)
    assert rounds is not None
    assert int(rounds[1]) > int(killed[1])
    assert len(re.findall(r"node\d  \d+\.\d [kM]B a round", summary)) == 5
    assert len(set(re.findall(r"[0-9a-f]{64}", summary))) == 1
    assert len(re.findall(r"node\d  [0-9a-f]{64}", summary)) == 4
    assert "equal at round" in summary
    assert str(folder / "loss.png") in summary
    assert (folder / "loss.png").read_bytes().startswith(PNG_SIGNATURE)
    assert all((folder / f"node{number}").is_dir() for number in range(1, 6))
    assert all_ended(mark)


@pytest.mark.long
def test_an_interrupted_demo_leaves_no_process(tmp_path: Path, mark: str) -> None:
    folder = tmp_path / "demo"
    demo = subprocess.Popen(
        [sys.executable, "-m", "gossamer.node.cli", "demo", "--directory", str(folder)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "join by its address" in line:
                break
        assert len(marked(mark)) >= 5  # the demo and four daemons

        demo.send_signal(signal.SIGINT)

        assert demo.wait(30.0) == 130
    finally:
        demo.kill()
        demo.communicate()
    assert all_ended(mark)
