"""A node that looks for peers or loads its modules is asked and refused like one that runs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import pytest

from gossamer.node.base.terminal.early_stop import stopped_in_order
from gossamer.node.cli import run_command
from gossamer.node.machine import torch_probe
from gossamer.node.machine.torch_probe import TorchReport
from gossamer.node.storage.state_dir import StateDir

LOADING = """
import importlib.abc, sys
from gossamer.node.cli import run_command


class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == module:
            print("loading", flush=True)
            sys.stdin.readline()
            raise SystemExit(7)


module = sys.argv[1]
sys.meta_path.insert(0, Slow())
run_command(sys.argv[2:])
"""
"""A command whose import of a module takes until a line comes in."""

DAEMON, NEIGHBOURS = "gossamer.node.app.daemon", "gossamer.node.network.lan"
LOADS, LOOKS = "it loads its modules", "it looks for peers"
STOPPED = "gossamer: stopped before the node took part in a run\n"

JOINING = "/ip4/127.0.0.1/tcp/9/p2p/12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"


def gossamer(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gossamer.node.cli", *words]
    return subprocess.run(command, env=environment(root), capture_output=True, text=True)


def environment(root: Path) -> dict[str, str]:
    return {**os.environ, "GOSSAMER_STATE_DIR": str(root / "state"), "XDG_CONFIG_HOME": str(root)}


class Starting(NamedTuple):
    """A node that does something before it can answer."""

    process: subprocess.Popen[str]
    does: str


@pytest.fixture(
    params=[
        ((DAEMON, "start"), LOADS),
        ((DAEMON, "join", JOINING), LOADS),
        ((NEIGHBOURS, "join"), LOOKS),
    ],
    ids=["start", "join", "join without an address"],
)
def starting(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Starting]:
    words, does = request.param
    with subprocess.Popen(
        [sys.executable, "-c", LOADING, *words],
        env=environment(tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "loading\n"
        yield Starting(process, does)
        process.kill()


def test_a_node_that_is_starting_is_asked_and_refused_like_one_that_runs(
    starting: Starting, tmp_path: Path
) -> None:
    asked = gossamer(tmp_path, "status")
    assert asked.returncode == 0, asked
    assert f"the node on {tmp_path / 'state'} is starting: {starting.does}" in asked.stdout
    told = gossamer(tmp_path, "pause")
    assert (told.returncode, "is starting" in told.stderr) == (1, True), told
    for words in (("start",), ("join",)):
        second = gossamer(tmp_path, *words)
        assert second.returncode == 1, second
        assert f"is in use by process {starting.process.pid}" in second.stderr


def test_a_node_that_ended_while_it_started_is_none(starting: Starting, tmp_path: Path) -> None:
    starting.process.communicate("\n")
    assert starting.process.returncode == 7
    asked = gossamer(tmp_path, "status")
    assert (asked.returncode, "no node runs" in asked.stderr) == (1, True), asked


def test_a_node_that_was_killed_while_it_started_is_none(
    starting: Starting, tmp_path: Path
) -> None:
    starting.process.kill()
    starting.process.wait()
    asked = gossamer(tmp_path, "status")
    assert (asked.returncode, "no node runs" in asked.stderr) == (1, True), asked


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_node_that_is_told_to_stop_while_it_starts_ends_in_order(
    starting: Starting, number: signal.Signals, tmp_path: Path
) -> None:
    starting.process.send_signal(number)
    said = starting.process.communicate(timeout=60)[1]
    assert (starting.process.returncode, said) == (0, STOPPED)
    state_dir = StateDir(tmp_path / "state")
    assert not state_dir.starting_path.exists()
    assert state_dir.lock_path.read_bytes() == b""


def test_a_node_that_was_started_with_nohup_outlives_its_terminal(tmp_path: Path) -> None:
    with handled(signal.SIGHUP, signal.SIG_IGN), stopped_in_order():
        signal.raise_signal(signal.SIGHUP)


@pytest.mark.parametrize("ctrl_c", [signal.default_int_handler, signal.SIG_IGN])
def test_a_signal_that_python_drops_ends_the_start_as_well(
    ctrl_c: Callable[[int, FrameType | None], None] | signal.Handlers,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = signal.signal(signal.SIGINT, ctrl_c)
    try:
        with (
            pytest.raises(SystemExit) as ended,
            stopped_in_order(),
            contextlib.suppress(KeyboardInterrupt),  # as Python does in a callback
        ):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (ended.value.code, capsys.readouterr().err) == (0, STOPPED)


def test_ctrl_c_while_a_node_starts_is_as_in_every_command() -> None:
    """Tests in the background of a shell ignore Ctrl-C from the start."""
    with (
        handled(signal.SIGINT, signal.default_int_handler),
        pytest.raises(KeyboardInterrupt),
        stopped_in_order(),
    ):
        signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def handled(
    number: signal.Signals, handler: Callable[[int, FrameType | None], object] | signal.Handlers
) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("words", [("start",), ("join", JOINING)], ids=["start", "join"])
def test_a_device_that_is_not_there_is_refused_before_anything_is_founded_or_joined(
    words: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = TorchReport(version="2.9", kind="xpu", names=["Arc", "Arc"], hip="")
    monkeypatch.setattr(torch_probe, "ask_torch", lambda _probe, **_options: report)
    place = ("--state-dir", str(tmp_path / "state"), "--api", "127.0.0.1:0")
    assert run_command([*words, "--device", "cuda", *place]) == 2
    said = capsys.readouterr().err
    assert "cuda does not exist: torch 2.9 finds 0 cuda devices" in said
    assert "(auto, cpu, xpu:0, xpu:1)" in said
    assert not StateDir(tmp_path / "state").has_run()


def test_a_fifo_in_the_place_of_a_file_is_named_and_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    os.mkfifo(tmp_path / "state" / "head")
    told = gossamer(tmp_path, "start")
    assert told.returncode == 2
    assert "state/head has to be a file, and is a FIFO: move it away" in told.stderr
