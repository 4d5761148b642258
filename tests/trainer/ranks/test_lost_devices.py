"""A process of a trainer's further device that ends or hangs ends the trainer, which says so."""

from __future__ import annotations

import os
import queue
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from gossamer.protocol.limits import MIB
from gossamer.protocol.manifest import InnerConfig
from gossamer.protocol.model_config import ModelConfig
from gossamer.trainer.inner_step.gradients import TrainerError
from gossamer.trainer.ipc import framing, memory, pipe
from gossamer.trainer.ipc import messages as m
from gossamer.trainer.ranks import followers as followers_module
from gossamer.trainer.ranks import messages
from gossamer.trainer.ranks.spread import Spread
from tests.support.small_model import INNER, MODEL
from tests.trainer.conftest import MakeTrainer, train
from tests.trainer.ranks.several import others, spread_over


@pytest.fixture
def model_config() -> ModelConfig:
    return MODEL


@pytest.fixture
def inner_config() -> InnerConfig:
    return INNER


def first_pid(spread: Spread) -> int:
    """The process of the first further device."""
    return spread.followers._processes[0].pid


def test_a_killed_process_ends_the_training_with_its_name(
    make_trainer: MakeTrainer, shard: str
) -> None:
    with others() as spread:
        trainer = spread_over(make_trainer(), spread)
        train(trainer, shard, 1)
        os.kill(first_pid(spread), signal.SIGKILL)
        with pytest.raises(TrainerError, match=r"device 2 \(cpu\) was killed \(SIGKILL\)"):
            train(trainer, shard, 2, first=1)


def test_a_killed_process_is_told_of_also_while_nobody_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(followers_module, "LOST_SECONDS", 0.1)
    reasons: queue.Queue[str] = queue.Queue()
    with others(on_lost=reasons.put) as spread:
        os.kill(first_pid(spread), signal.SIGKILL)
        assert "was killed (SIGKILL)" in reasons.get(timeout=60)


@pytest.mark.long
def test_a_process_that_hangs_is_noticed_within_a_bound(
    make_trainer: MakeTrainer, shard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with others() as spread:
        trainer = spread_over(make_trainer(), spread)
        train(trainer, shard, 1)
        monkeypatch.setattr(followers_module, "ANSWER_SECONDS_MAX", 1.0)
        monkeypatch.setattr(spread.group, "share", lambda vector: None)  # it does not come there
        os.kill(first_pid(spread), signal.SIGSTOP)
        with pytest.raises(TrainerError, match="gave no sign of work for 1 s"):
            train(trainer, shard, 1, first=1)


@pytest.mark.long
@pytest.mark.parametrize("by_signal", [False, True], ids=["thread", "signal"])
def test_processes_end_in_time_though_one_reads_nothing(by_signal: bool) -> None:
    """A pipe takes 64 KiB. A thread that writes more to a stopped process waits in the write.
    Another thread ends the processes meanwhile, or a signal's handler in the same thread."""
    take = messages.Take(targets=1, num_sequences=1, tokens=bytes(4 * MIB))
    with others() as spread:
        (process,) = spread.followers._processes
        assert process.stdin is not None
        pipe = process.stdin.fileno()
        process.send_signal(signal.SIGSTOP)
        while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
            pass

        def end() -> None:
            while select.select([], [pipe], [], 0)[1]:
                pass  # there is room in the pipe
            if by_signal:
                os.kill(os.getpid(), signal.SIGUSR1)
            else:
                spread.close()

        before = signal.signal(signal.SIGUSR1, lambda _signal, _frame: spread.close())
        rescue = threading.Timer(10 * followers_module.END_SECONDS, process.kill)
        ending = threading.Thread(target=end)
        ending.start()
        rescue.start()
        spread.followers.tell(take)
        ending.join()
        signal.signal(signal.SIGUSR1, before)
        assert rescue.is_alive()
        rescue.cancel()


Worker = subprocess.Popen[bytes]


@contextmanager
def worker_of_two(folder: Path) -> Iterator[tuple[Worker, m.Configured, psutil.Process]]:
    """A confined trainer with two CPU processes, what it said of itself, and the other process."""
    fds = [memory.create("test", MODEL.num_parameters) for _ in range(2)]
    process = subprocess.Popen(
        [sys.executable, "-m", "gossamer.trainer.worker", str(folder), "several"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=fds,
    )
    with process:
        try:
            configure = m.Configure(
                model=MODEL,
                inner=INNER,
                device="cpu,cpu",
                limits=m.Limits(threads=2),
                seed=0,
                base_fd=fds[0],
                pseudo_gradient_fd=fds[1],
                token_bytes=2,
                optimizer_path=str(folder / "optimizer"),
            )
            assert process.stdin is not None
            process.stdin.write(framing.encode(configure))
            process.stdin.flush()
            configured = hear(process)
            assert isinstance(configured, m.Configured), configured
            (other,) = psutil.Process(process.pid).children()
            yield process, configured, other
        finally:
            process.kill()
            for fd in fds:
                os.close(fd)


def hear(worker: Worker) -> m.FromWorker:
    """The next message that is an answer."""
    assert worker.stdout is not None
    while True:
        body = pipe.read(worker.stdout, framing.MESSAGE_BYTES_MAX)
        assert body is not None
        said = framing.decode_from_worker(body)
        if not isinstance(said, m.Alive):
            return said


@pytest.mark.long
def test_a_worker_of_two_is_confined_and_ends_when_one_is_killed(tmp_path: Path) -> None:
    with worker_of_two(tmp_path / "own") as (worker, configured, other):
        assert configured.device == "cpu,cpu"
        assert configured.device_name.startswith("2 x ")
        if sys.platform == "linux" and "(" not in configured.confinement:
            assert "cannot open network connections" in configured.confinement
            for pid in (worker.pid, other.pid):
                status = Path(f"/proc/{pid}/status").read_text()
                assert "Seccomp:\t2" in status, "a filter holds"
        other.kill()
        failed = hear(worker)
        assert isinstance(failed, m.Failed)
        assert "device 2 (cpu) was killed (SIGKILL)" in failed.reason
        assert worker.wait(60) == 1
    assert not list((tmp_path / "own" / "tmp").iterdir())


_SLOW_MACHINE = """
import platform, sys, time

def machine():
    time.sleep(1)
    return "toaster"

if "gossamer.trainer.ranks.follower" in sys.orig_argv:
    platform.machine = machine
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the filter")
def test_the_worker_says_that_another_process_keeps_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits until each has given it up, or says why not."""
    (tmp_path / "sitecustomize.py").write_text(_SLOW_MACHINE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with worker_of_two(tmp_path / "own") as (_, configured, _):
        assert " can open network connections" in configured.confinement
        assert "does not know Linux on toaster" in configured.confinement


@pytest.mark.long
@pytest.mark.parametrize("is_stopped", [False, True], ids=["running", "stopped"])
def test_no_process_outlives_a_worker_that_is_killed(tmp_path: Path, is_stopped: bool) -> None:
    if is_stopped and sys.platform != "linux":
        pytest.skip("only Linux ends a stopped process with its parent")
    with worker_of_two(tmp_path / "own") as (worker, _, other):
        if is_stopped:
            other.suspend()
        worker.kill()
        other.wait(60)
