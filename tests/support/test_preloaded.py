"""A copy of the preloaded process does what an executed one does, and shows the same outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gossamer.trainer.ipc import framing, pipe
from gossamer.trainer.ipc import messages as m
from gossamer.trainer.ipc.environment import computing_environment
from tests.support import preloaded

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="copies are forked on Linux only")

FOLLOWERS = 20
"""Processes that one test starts, one after the other. Some of them were killed before copies
waited."""

WORKER = (sys.executable, "-m", "gossamer.trainer.worker")
BOTH = pytest.mark.parametrize("popen", [preloaded.Popen, preloaded.REAL_POPEN])


def is_copy(process: subprocess.Popen[bytes]) -> bool:
    """Returns whether libp2p is in the memory of a process that has no use for it."""
    return "/Crypto/" in Path(f"/proc/{process.pid}/maps").read_text()


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[bytes]]:
    """A trainer that is a copy, and has given a sign of life."""
    with preloaded.Popen[bytes](
        WORKER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        body = pipe.read(process.stdout, framing.MESSAGE_BYTES_MAX)
        assert body is not None
        assert isinstance(framing.decode_from_worker(body), m.Alive)
        yield process
        process.kill()


def test_a_copy_looks_like_an_executed_process(worker: subprocess.Popen[bytes]) -> None:
    assert is_copy(worker)
    seen = psutil.Process(worker.pid)
    assert seen in psutil.Process().children()
    assert tuple(filter(None, seen.cmdline())) == WORKER
    assert os.getsid(worker.pid) == os.getpgid(worker.pid) == worker.pid
    open_files = [os.readlink(each) for each in Path(f"/proc/{worker.pid}/fd").iterdir()]
    assert not [each for each in open_files if each.startswith("socket:")], "the server's own"


def test_a_copy_can_be_frozen_and_killed(worker: subprocess.Popen[bytes]) -> None:
    seen = psutil.Process(worker.pid)
    worker.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, worker.pid, os.WSTOPPED)
    assert seen.status() == psutil.STATUS_STOPPED
    worker.kill()
    assert worker.wait(30) == -signal.SIGKILL
    assert not psutil.pid_exists(worker.pid)


@BOTH
def test_environment_folder_streams_and_exit_status(
    popen: type[subprocess.Popen[str]], tmp_path: Path
) -> None:
    command = (sys.executable, "-m", preloaded.CLI, "start", "--config", "here.toml")
    (tmp_path / "here.toml").write_text('listen = ["nonsense"]\n')
    environment = {**os.environ, "GOSSAMER_API": "no address", "HOME": str(tmp_path)}
    with popen(
        command,
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert out == ""
    assert "listen" in err
    assert "GOSSAMER_API" in err


@pytest.mark.parametrize("name", preloaded.SET_WHILE_RUNNING)
def test_a_variable_that_a_test_has_set_meanwhile_changes_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "0")
    with preloaded.Popen[bytes](WORKER, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        assert is_copy(process)
        process.kill()


def test_what_a_daemon_starts_to_compute_is_a_copy() -> None:
    """Hundreds of trainers of the tests come from daemons, which give them variables. Each that is
    executed loads torch anew, and no test fails for it."""
    with preloaded.Popen[bytes](
        WORKER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=computing_environment()
    ) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        assert is_copy(process)
        process.kill()


@BOTH
def test_the_end_of_a_program_closes_no_file_that_it_did_not_open(
    popen: type[subprocess.Popen[str]],
) -> None:
    """A socket of the server, still known in a copy, would close what got its number meanwhile."""
    program = """
import atexit, os
mine = [os.open(os.devnull, os.O_RDONLY) for _ in range(200)]
atexit.register(lambda: [os.fstat(each) for each in mine])
"""
    command = (sys.executable, "-m", preloaded.CODE, program)
    with popen(command, stderr=subprocess.PIPE, text=True) as process:
        _, err = process.communicate(timeout=60)
    assert err == ""
    assert process.returncode == 0


def test_a_copy_that_ends_with_its_parent_lives_as_long_as_this_process() -> None:
    """A process of a further device asks to be killed with its parent when it begins: until it is
    adopted, that would be the short-lived process which forked it."""
    command = (sys.executable, "-m", "gossamer.trainer.ranks.follower")
    for _ in range(FOLLOWERS):
        with preloaded.Popen[bytes](command, stdin=subprocess.PIPE) as process:
            assert process.stdin is not None
            process.stdin.close()  # the end of its orders, and so of itself
            assert process.wait(60) == 0


@pytest.mark.long
def test_a_command_that_needs_more_is_executed(tmp_path: Path) -> None:
    """What is read when Python and libraries are loaded must be there from the start."""
    for environment, expected in (({}, True), ({"OMP_NUM_THREADS": "7"}, False)):
        with preloaded.Popen[bytes](
            WORKER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **environment}
        ) as process:
            assert process.stdout is not None
            process.stdout.read(1)
            assert is_copy(process) == expected
            process.kill()
