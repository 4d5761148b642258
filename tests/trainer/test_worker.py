"""The worker process at its pipes: how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from gossamer.protocol.manifest import InnerConfig
from gossamer.protocol.model_config import ModelConfig
from gossamer.trainer.ipc import framing, memory, pipe
from gossamer.trainer.ipc import messages as m

Worker = subprocess.Popen[bytes]


@pytest.fixture
def configure(model_config: ModelConfig, inner_config: InnerConfig) -> Iterator[m.Configure]:
    fds = [memory.create("test", model_config.num_parameters) for _ in range(2)]
    yield m.Configure(
        model=model_config,
        inner=inner_config,
        device="cpu",
        limits=m.Limits(threads=1),
        seed=0,
        base_fd=fds[0],
        pseudo_gradient_fd=fds[1],
        token_bytes=2,
    )
    for fd in fds:
        os.close(fd)


@pytest.fixture
def worker(configure: m.Configure) -> Iterator[Worker]:
    """A worker that has been configured, between rounds."""
    with started(configure) as process:
        yield process


@contextmanager
def started(configure: m.Configure) -> Iterator[Worker]:
    process = subprocess.Popen(
        [sys.executable, "-m", "gossamer.trainer.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[configure.base_fd, configure.pseudo_gradient_fd],
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
    worker.stdin.write(framing.encode(message))
    worker.stdin.flush()


def hear_all(worker: Worker, bytes_max: int = framing.MESSAGE_BYTES_MAX) -> Iterator[m.FromWorker]:
    assert worker.stdout is not None
    while True:
        body = pipe.read(worker.stdout, bytes_max)
        assert body is not None
        yield framing.decode_from_worker(body)


def hear(worker: Worker) -> m.FromWorker:
    """The next message that is an answer."""
    return next(said for said in hear_all(worker) if not isinstance(said, m.Alive))


def test_the_end_of_stdin_ends_it_in_the_middle_of_a_round(worker: Worker) -> None:
    say(worker, m.Begin(round=1, first_step=0, steps_max=10, seconds_max=1e12))
    assert isinstance(hear(worker), m.NeedData)
    assert worker.stdin is not None
    worker.stdin.close()
    assert worker.wait(30) == 0


def test_sigterm_ends_it_and_sigint_does_not(worker: Worker) -> None:
    worker.send_signal(signal.SIGINT)
    say(worker, m.Save())
    answer = hear(worker)
    assert isinstance(answer, m.Saved)
    assert answer.problem == ""
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


@pytest.mark.long
def test_it_shows_life_and_how_long_it_has_been_at_something(
    worker: Worker, tmp_path: Path
) -> None:
    def next_alive() -> m.Alive:
        return next(said for said in hear_all(worker) if isinstance(said, m.Alive))

    assert next_alive().busy_seconds == 0
    fifo = tmp_path / "a shard that does not come"
    os.mkfifo(fifo)
    say(worker, m.Data(shard=0, path=str(fifo), start=0, stop=1000))
    say(worker, m.Begin(round=1, first_step=0, steps_max=1, seconds_max=60.0))
    busy = [next_alive().busy_seconds for _ in range(3)]
    assert busy[2] > busy[1] > 0
    assert busy[2] - busy[1] == pytest.approx(m.ALIVE_SECONDS, rel=0.5)


@pytest.mark.long
def test_memory_that_does_not_suffice_for_the_model(configure: m.Configure) -> None:
    limited = (
        "import resource, sys\n"
        "import torch\n"
        "from gossamer.trainer import worker\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, used + 2**28))\n"
        "sys.exit(worker.main())\n"
    )
    model = msgspec.structs.replace(configure.model, vocabulary=2**19)
    fds = [memory.create("test", model.num_parameters) for _ in range(2)]
    try:
        worker = subprocess.Popen(
            [sys.executable, "-c", limited],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=fds,
        )
        with worker:
            say(
                worker,
                msgspec.structs.replace(
                    configure, model=model, base_fd=fds[0], pseudo_gradient_fd=fds[1]
                ),
            )
            failed = hear(worker)
            assert isinstance(failed, m.Failed)
            assert "too little memory for this model" in failed.reason
            assert "train on one with more" in failed.reason
            assert worker.wait(30) == 1
            assert worker.stderr is not None
            assert b"Traceback" not in worker.stderr.read()
    finally:
        for fd in fds:
            os.close(fd)


def test_a_step_says_how_long_the_worker_had_nothing_to_do_before_it(
    worker: Worker, shard: str
) -> None:
    say(worker, m.Genesis())
    assert isinstance(hear(worker), m.GenesisDone)
    say(worker, m.Data(shard=0, path=shard, start=0, stop=4400))

    def steps_of_round(number: int) -> list[m.Step]:
        say(worker, m.Begin(round=number, first_step=0, steps_max=2, seconds_max=600.0))
        answers = iter(lambda: hear(worker), None)
        steps = []
        for answer in answers:
            if isinstance(answer, m.Finished):
                break
            if isinstance(answer, m.Step):
                steps.append(answer)
        return steps

    steps_of_round(1)
    pause_seconds = 0.5
    started = time.monotonic()
    time.sleep(pause_seconds)  # what is measured, not a wait for something
    first, second = steps_of_round(2)
    assert 0.9 * pause_seconds < first.waited_seconds < time.monotonic() - started
    assert second.waited_seconds < 0.5 * pause_seconds


def test_a_round_of_shared_steps_waits_for_the_others(configure: m.Configure, shard: str) -> None:
    shares = msgspec.structs.replace(configure, shared_steps=m.SharedSteps(top_k=4, lookahead=True))
    with started(shares) as worker:
        say(worker, m.Genesis())
        assert isinstance(hear(worker), m.GenesisDone)
        say(worker, m.Data(shard=0, path=shard, start=0, stop=4400))
        say(worker, m.Begin(round=3, first_step=0, steps_max=3, seconds_max=600.0))
        for step in range(3):
            done, shared = hear(worker), hear(worker)
            assert isinstance(done, m.Step)
            assert done.step == step
            assert isinstance(shared, m.Shared)
            assert shared.round == 3
            if step < 2:
                # Data, and whatever else comes, is no word of what became of it.
                say(worker, m.Data(shard=0, path=shard, start=0, stop=10))
                say(worker, m.Share(taken=step == 0))
        finished = hear(worker)
        assert isinstance(finished, m.Finished)
        assert finished.steps == 3
        say(worker, m.Share(taken=True))  # of the last one; the round is over


def test_a_part_of_a_shared_step_may_be_longer_than_other_messages(
    configure: m.Configure, shard: str
) -> None:
    model = msgspec.structs.replace(configure.model, vocabulary=100_000)
    steps = m.SharedSteps(top_k=4096, chunks=20, lookahead=False)
    fds = [memory.create("test", model.num_parameters) for _ in range(2)]
    shares = msgspec.structs.replace(
        configure, model=model, base_fd=fds[0], pseudo_gradient_fd=fds[1], shared_steps=steps
    )
    try:
        with started(shares) as worker:
            say(worker, m.Data(shard=0, path=shard, start=0, stop=4400))
            say(worker, m.Begin(round=1, first_step=0, steps_max=2, seconds_max=600.0))
            heard = hear_all(worker, framing.bytes_max_of(model, steps))
            answers = (said for said in heard if not isinstance(said, m.Alive))
            step, shared = next(answers), next(answers)
    finally:
        for fd in fds:
            os.close(fd)
    assert isinstance(step, m.Step)
    assert isinstance(shared, m.Shared)
    assert len(shared.update) > framing.MESSAGE_BYTES_MAX


@pytest.mark.parametrize("message", [m.Share(taken=True), m.KeepMomentum(keep=True)])
def test_what_is_for_workers_that_share(worker: Worker, message: m.ToWorker) -> None:
    say(worker, message)
    failed = hear(worker)
    assert isinstance(failed, m.Failed)
    assert "without shared steps" in failed.reason
