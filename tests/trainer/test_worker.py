"""The worker process at its pipes: how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gossamer.protocol.manifest import InnerConfig, ModelConfig
from gossamer.trainer import memory
from gossamer.trainer import messages as m

Worker = subprocess.Popen[bytes]


@pytest.fixture
def configure(model_config: ModelConfig, inner_config: InnerConfig) -> Iterator[m.Configure]:
    fds = [memory.create("test", model_config.num_parameters) for _ in range(2)]
    yield m.Configure(
        model=model_config,
        inner=inner_config,
        device="cpu",
        threads=1,
        seed=0,
        base_fd=fds[0],
        pending_fd=fds[1],
        token_bytes=2,
    )
    for fd in fds:
        os.close(fd)


@pytest.fixture
def worker(configure: m.Configure) -> Iterator[Worker]:
    """A worker that has been configured, between rounds."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gossamer.trainer.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[configure.base_fd, configure.pending_fd],
    )
    with process:
        try:
            say(process, configure)
            assert isinstance(hear(process), m.Configured)
            yield process
        finally:
            process.kill()


def say(worker: Worker, message: m.ToWorker) -> None:
    assert worker.stdin is not None
    worker.stdin.write(m.encode(message))
    worker.stdin.flush()


def hear(worker: Worker) -> m.FromWorker:
    assert worker.stdout is not None
    length = m.decode_length(worker.stdout.read(m.LENGTH_BYTES))
    return m.decode_from_worker(worker.stdout.read(length))


def test_the_end_of_stdin_ends_it_in_the_middle_of_a_round(worker: Worker) -> None:
    say(worker, m.Begin(round=1, first_step=0, steps_max=10, seconds_max=1e12))
    assert isinstance(hear(worker), m.NeedData)
    assert worker.stdin is not None
    worker.stdin.close()
    assert worker.wait(30) == 0


def test_sigterm_ends_it_and_sigint_does_not(worker: Worker) -> None:
    worker.send_signal(signal.SIGINT)
    say(worker, m.Save())
    assert hear(worker) == m.Saved()
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 0


def test_what_it_does_not_understand_ends_it_with_the_reason(worker: Worker) -> None:
    assert worker.stdin is not None
    worker.stdin.write(b"\0\0\0\x01\xc1")
    worker.stdin.flush()
    failed = hear(worker)
    assert isinstance(failed, m.Failed)
    assert "not a message" in failed.reason
    assert worker.wait(30) == 1


def test_a_message_at_the_wrong_time_ends_it_with_the_reason(worker: Worker) -> None:
    say(worker, m.Begin(round=4, first_step=0, steps_max=10, seconds_max=60.0))
    assert isinstance(hear(worker), m.NeedData)
    say(worker, m.Genesis())
    failed = hear(worker)
    assert isinstance(failed, m.Failed)
    assert "round 4 is running" in failed.reason
    assert worker.wait(30) == 1
