"""The trainer as a process, end to end, and what the daemon sees when it dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
import trio
import zstandard
from msgspec.structs import replace

from gossamer.node.machine import trainer_exit, trainer_process
from gossamer.node.machine.trainer_exit import TrainerExit
from gossamer.node.machine.trainer_process import TrainerEvent, TrainerGoneError, TrainerProcess
from gossamer.trainer.ipc import framing, pipe
from gossamer.trainer.ipc import messages as m
from tests.support import small_model

MODEL = replace(small_model.MODEL, num_layers=1)
INNER = replace(small_model.INNER, total_steps=10_000)
Event = TypeVar("Event", bound=TrainerEvent)

# Generous: several of these start torch on a machine that is busy with other tests.
PATIENCE_SECONDS = 120


@pytest.fixture
def shard(tmp_path: Path) -> str:
    """32,000 tokens that repeat with a period of 40: 500 steps."""
    period = np.random.default_rng(0).integers(0, 64, 40)
    path = tmp_path / "shard"
    path.write_bytes(zstandard.compress(np.tile(period, 800).astype("<u2").tobytes()))
    return str(path)


@pytest.fixture
def trainer() -> Iterator[TrainerProcess]:
    process = TrainerProcess(MODEL.num_parameters, has_audits=True)
    yield process
    process.vectors.release()


def configure(trainer: TrainerProcess, **options: object) -> m.Configure:
    return m.Configure(
        model=MODEL,
        inner=INNER,
        device="cpu",
        limits=m.Limits(threads=1),
        seed=3,
        base_fd=trainer.vectors.base_fd,
        pseudo_gradient_fd=trainer.vectors.pseudo_gradient_fd,
        audited_fd=trainer.vectors.audited_fd,
        token_bytes=2,
        **options,  # type: ignore[arg-type]
    )


async def next_of(trainer: TrainerProcess, kind: type[Event]) -> Event:
    """The next event of a kind; the ones before it are dropped, but not an end of the process."""
    async for event in trainer.events:
        if isinstance(event, kind):
            return event
        assert not isinstance(event, TrainerExit | m.Failed), event
    raise AssertionError("no more events")


def in_trio(scenario: Callable[[trio.Nursery], Awaitable[None]]) -> None:
    async def main() -> None:
        with trio.fail_after(PATIENCE_SECONDS):
            async with trio.open_nursery() as nursery:
                await scenario(nursery)
                nursery.cancel_scope.cancel()

    trio.run(main)


def test_trains_evaluates_dies_and_comes_back(
    trainer: TrainerProcess, shard: str, tmp_path: Path
) -> None:
    optimizer_path = str(tmp_path / "optimizer")

    async def scenario(nursery: trio.Nursery) -> None:
        await nursery.start(trainer.run)
        await trainer.send(configure(trainer, optimizer_path=optimizer_path))
        configured = await next_of(trainer, m.Configured)
        assert len(trainer.vectors.base) == MODEL.num_parameters
        assert (configured.device, configured.precision) == ("cpu", "fp32")
        assert configured.problem == ""
        await trainer.send(m.Genesis())
        await next_of(trainer, m.GenesisDone)
        assert trainer.vectors.base.any()
        await trainer.send(m.Evaluate(paths=(shard,), tokens_max=2000))
        before = await next_of(trainer, m.Evaluated)

        # A round that ends by its number of steps, and one that Stop ends while it waits for data.
        await trainer.send(m.Begin(round=1, first_step=0, steps_max=50, seconds_max=60.0))
        need = await next_of(trainer, m.NeedData)
        assert (need.round, need.tokens_queued) == (1, 0)
        await trainer.send(m.Data(shard=5, path=shard, start=0, stop=6800))
        losses = [(await next_of(trainer, m.Step)).loss for _ in range(50)]
        assert losses[-1] < 0.8 * losses[0]
        finished = await next_of(trainer, m.Finished)
        assert finished.tokens == 50 * 64
        assert finished.spans == ((5, 0, 3400),)
        trainer.vectors.base -= trainer.vectors.pseudo_gradient
        await trainer.send(m.Stop())  # too late, so it means nothing
        await trainer.send(m.Rebase(ranges=((0, 8), (16, 20))))
        await next_of(trainer, m.Rebased)
        await trainer.send(m.Begin(round=2, first_step=50, steps_max=10_000, seconds_max=60.0))
        for _ in range(50):
            await next_of(trainer, m.Step)
        await trainer.send(m.Stop())
        finished = await next_of(trainer, m.Finished)
        assert (finished.round, finished.steps) == (2, 50)
        assert finished.spans == ((5, 3400, 6800),)
        trainer.vectors.base -= trainer.vectors.pseudo_gradient
        await trainer.send(m.Evaluate(paths=(shard,), tokens_max=2000))
        after = await next_of(trainer, m.Evaluated)
        assert after.loss < 0.5 * before.loss
        assert trainer.vectors.audited is not None
        for _ in range(2):  # its memory is given back in between
            trainer.vectors.audited[:] = trainer.vectors.base
            await trainer.send(m.Audit(sequences=((shard, 0), (shard, 17))))
            audited = await next_of(trainer, m.Audited)
            assert max(audited.losses) < 0.5 * before.loss
            trainer.vectors.give_back_audited()
            assert not trainer.vectors.audited.any()
        await trainer.send(m.Save())
        assert (await next_of(trainer, m.Saved)).problem == ""

        base = trainer.vectors.base.copy()
        await trainer.send(m.Data(shard=5, path=shard, start=6400, stop=32_000))
        await trainer.send(m.Begin(round=3, first_step=100, steps_max=10_000, seconds_max=60.0))
        await next_of(trainer, m.Step)
        assert trainer.pid is not None
        os.kill(trainer.pid, signal.SIGKILL)
        death = await next_of(trainer, TrainerExit)
        assert (death.code, death.signal, death.wanted) == (None, signal.SIGKILL, False)
        assert "SIGKILL" in death.description
        with pytest.raises(TrainerGoneError):
            await trainer.send(m.Stop())
        assert (trainer.vectors.base == base).all()

        await nursery.start(trainer.run)
        await trainer.send(configure(trainer, optimizer_path=optimizer_path))
        assert await trio.Path(optimizer_path).exists()
        assert (await next_of(trainer, m.Configured)).problem == "", "the moments are loaded"
        await trainer.send(m.Evaluate(paths=(shard,), tokens_max=2000))
        assert (await next_of(trainer, m.Evaluated)).loss == after.loss
        nursery.start_soon(trainer.close)
        end = await next_of(trainer, TrainerExit)
        assert (end.code, end.wanted, end.failure) == (0, True, "")

    in_trio(scenario)


@pytest.mark.parametrize("confined", [True, False])
def test_the_worker_says_whether_it_is_confined(tmp_path: Path, confined: bool) -> None:
    folder = tmp_path / "trainer"
    trainer = TrainerProcess(MODEL.num_parameters, folder=folder if confined else None)

    async def scenario(nursery: trio.Nursery) -> None:
        await nursery.start(trainer.run)
        await trainer.send(configure(trainer))
        text = (await next_of(trainer, m.Configured)).confinement
        assert ("confine_trainer is off" in text) is not confined
        assert folder.exists() is confined
        await trainer.close()

    try:
        in_trio(scenario)
    finally:
        trainer.vectors.release()


def test_what_the_worker_cannot_do_is_said(trainer: TrainerProcess, shard: str) -> None:
    async def scenario(nursery: trio.Nursery) -> None:
        await nursery.start(trainer.run)
        await trainer.send(configure(trainer))
        await next_of(trainer, m.Configured)
        await trainer.send(m.Data(shard=5, path=shard + "-missing", start=0, stop=6800))
        await trainer.send(m.Begin(round=1, first_step=0, steps_max=50, seconds_max=60.0))
        async for event in trainer.events:
            if isinstance(event, TrainerExit):
                break
        else:
            raise AssertionError("the process has no end")
        assert (event.code, event.wanted) == (1, False)
        assert f"cannot read shard {shard}-missing" in event.failure
        assert event.failure in event.description

    in_trio(scenario)


def test_cancelling_run_ends_the_process(trainer: TrainerProcess) -> None:
    pids: list[int] = []

    async def scenario(nursery: trio.Nursery) -> None:
        await nursery.start(trainer.run)
        assert trainer.pid is not None
        pids.append(trainer.pid)

    in_trio(scenario)
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)
    assert trainer.pid is None


def python(code: str) -> TrainerProcess:
    """A trainer whose worker is a few lines of Python."""
    return TrainerProcess(4, command=[sys.executable, "-c", code])


def end_of(trainer: TrainerProcess) -> TrainerExit:
    async def main() -> TrainerExit:
        with trio.fail_after(PATIENCE_SECONDS):
            return await trainer.run()

    try:
        return trio.run(main)
    finally:
        trainer.vectors.release()


def exit_with(
    code: int | None = None,
    signal: int | None = None,
    wanted: bool = False,
    failure: str = "",
    stderr: tuple[str, ...] = (),
    out_of_memory: bool | None = None,
) -> TrainerExit:
    return TrainerExit(code, signal, wanted, failure, stderr, False, out_of_memory)


def test_the_last_lines_on_stderr_are_kept() -> None:
    exit_ = end_of(
        python(
            "import sys\n"
            "for i in range(1000): print('line', i, file=sys.stderr)\n"
            "sys.stderr.write('x' * 10_000 + '\\xe9 last')\n"
            "sys.exit(3)"
        )
    )
    assert exit_.code == 3
    assert len(exit_.stderr) == trainer_process.STDERR_LINES_KEPT
    assert exit_.stderr[0].startswith("line ")
    assert all(len(line) <= trainer_process.STDERR_LINE_CHARACTERS_MAX for line in exit_.stderr)
    assert "code 3" in exit_.description


def test_threads_of_a_worker_sleep_while_they_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY")
    exit_ = end_of(python("import os, sys; sys.exit(os.environ['OMP_WAIT_POLICY'])"))
    assert exit_.stderr == ("PASSIVE",)


def test_a_worker_that_talks_nonsense_is_killed() -> None:
    exit_ = end_of(
        python(
            "import sys, time\n"
            "print('Hello, this is no message'); sys.stdout.flush(); time.sleep(600)"
        )
    )
    assert exit_.signal == signal.SIGKILL
    assert "message of" in exit_.failure
    assert exit_.reason == "failed"


@pytest.mark.parametrize("spare_bytes", [0, -1])
def test_what_a_worker_says_is_bounded_by_its_run(spare_bytes: int) -> None:
    """A part of a shared step of a large model is longer than any other message."""
    size = 2 * framing.MESSAGE_BYTES_MAX
    code = (
        "import sys\n"
        "from gossamer.trainer.ipc import framing, messages as m\n"
        f"frame = framing.encode(m.Shared(round=1, update=bytes({size})), 2**30)\n"
        "sys.stdout.buffer.write(frame)"
    )
    frame = framing.encode(m.Shared(round=1, update=bytes(size)), 2**30)
    trainer = TrainerProcess(
        4,
        command=[sys.executable, "-c", code],
        message_bytes_max=len(frame) - pipe.LENGTH_BYTES + spare_bytes,
    )

    async def scenario(nursery: trio.Nursery) -> None:
        await nursery.start(trainer.run)
        first = await anext(trainer.events)
        if spare_bytes:
            assert isinstance(first, TrainerExit)
            assert "is the limit" in first.failure
        else:
            assert first == m.Shared(round=1, update=bytes(size))

    in_trio(scenario)
    trainer.vectors.release()


def test_a_worker_that_does_not_want_to_go_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_process, "EXIT_SECONDS", 0.1)
    monkeypatch.setattr(trainer_process, "TERMINATE_SECONDS", 0.1)
    trainer = python(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"sys.stdout.buffer.write({framing.encode(m.GenesisDone())!r}); sys.stdout.flush()\n"
        "while True: time.sleep(600)"
    )

    async def scenario(nursery: trio.Nursery) -> None:
        await nursery.start(trainer.run)
        await next_of(trainer, m.GenesisDone)
        nursery.start_soon(trainer.close)
        exit_ = await next_of(trainer, TrainerExit)
        assert (exit_.signal, exit_.wanted) == (signal.SIGKILL, True)

    in_trio(scenario)
    trainer.vectors.release()


def test_a_stopped_worker_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_process, "SILENT_SECONDS_MAX", 1.0)
    alive = framing.encode(m.Alive(busy_seconds=0.0))
    exit_ = end_of(
        python(
            "import os, signal, sys\n"
            f"sys.stdout.buffer.write({alive!r}); sys.stdout.flush()\n"
            "os.kill(os.getpid(), signal.SIGSTOP)"
        )
    )
    assert (exit_.signal, exit_.hung, exit_.reason) == (signal.SIGKILL, True, "hung")
    assert "hung: it gave no sign of life for" in exit_.description


def test_a_worker_that_does_not_begin_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_process, "START_SECONDS_MAX", 1.0)
    exit_ = end_of(python("import time; time.sleep(600)"))
    assert (exit_.signal, exit_.reason) == (signal.SIGKILL, "hung")


def test_a_worker_that_is_stuck_is_killed_though_it_shows_life() -> None:
    alive = framing.encode(m.Alive(busy_seconds=trainer_process.STUCK_SECONDS_MAX + 1))
    exit_ = end_of(
        python(
            "import sys, time\n"
            f"sys.stdout.buffer.write({alive!r}); sys.stdout.flush(); time.sleep(600)"
        )
    )
    assert (exit_.signal, exit_.reason) == (signal.SIGKILL, "hung")
    assert "got no further for 301 s" in exit_.description


@pytest.mark.long
def test_a_worker_is_not_silent_while_its_messages_are_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trainer_process, "SILENT_SECONDS_MAX", 1.5)
    monkeypatch.setattr(trainer_process, "QUEUE_MESSAGES_MAX", 1)
    alive = framing.encode(m.Alive(busy_seconds=0.0))
    said = b"".join(framing.encode(m.GenesisDone()) for _ in range(3))
    trainer = python(
        "import sys, time\n"
        f"sys.stdout.buffer.write({alive!r}); sys.stdout.flush(); time.sleep(0.1)\n"
        f"sys.stdout.buffer.write({said!r}); sys.stdout.flush(); sys.stdin.read(1)"
    )

    async def scenario(nursery: trio.Nursery) -> None:
        await nursery.start(trainer.run)
        await trio.sleep(4.0)
        for _ in range(3):
            await next_of(trainer, m.GenesisDone)
        nursery.start_soon(trainer.close)
        assert (await next_of(trainer, TrainerExit)).code == 0

    in_trio(scenario)
    trainer.vectors.release()


@pytest.mark.parametrize(
    ("exit_", "words"),
    [
        (exit_with(signal=9, out_of_memory=True), "killed by the system (SIGKILL), which ran out"),
        (exit_with(signal=9, out_of_memory=None), "by a person or for want of memory"),
        (exit_with(signal=9, out_of_memory=False), "not by the kernel"),
        (exit_with(signal=9, wanted=True), "ended by SIGKILL"),
        (exit_with(signal=11), "ended by SIGSEGV"),
        (exit_with(signal=99), "ended by signal 99"),
        (exit_with(code=1, stderr=("No module named 'torch'",)), "1: No module named 'torch'"),
        (exit_with(code=1, failure="no device"), "failed: no device"),
    ],
)
def test_what_is_said_of_an_end(exit_: TrainerExit, words: str) -> None:
    assert words in exit_.description


@pytest.mark.parametrize(
    ("exit_", "device", "advises"),
    [
        (exit_with(signal=9, out_of_memory=True), "cpu", "smaller model takes less, and so does"),
        (exit_with(signal=9, out_of_memory=None), "auto", "smaller model takes less. "),
        (exit_with(signal=9, out_of_memory=False), "cpu", "doctor` checks the device, `gossamer"),
        (exit_with(code=1, failure="no step"), "cpu", "doctor` checks the device, `gossamer"),
        (exit_with(signal=11), "cuda:0", "--device cpu trains without it"),
    ],
)
def test_what_is_advised_against_an_end(exit_: TrainerExit, device: str, advises: str) -> None:
    """A CPU without memory is no reason to train on the CPU."""
    told = exit_.remedies(device)
    assert advises in told
    assert ("--micro-batch 1" in told) == (device == "cpu" and exit_.out_of_memory is True)
    assert ("--device cpu" in told) == (device == "cuda:0")
    assert told.endswith("`gossamer resume` tries again")


def test_kills_by_the_kernel_are_counted_where_it_says(tmp_path: Path) -> None:
    known = trainer_exit.kernel_memory_kills()
    assert known is None or known >= 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer_exit, "_VMSTAT", tmp_path / "vmstat")
        assert trainer_exit.kernel_memory_kills() is None
        (tmp_path / "vmstat").write_text("pgfault 12\noom_kill 3\n")
        assert trainer_exit.kernel_memory_kills() == 3


def test_a_program_that_is_not_there() -> None:
    trainer = TrainerProcess(4, command=["/nonexistent/program"])
    with pytest.raises(FileNotFoundError):
        end_of(trainer)


def test_the_daemons_side_does_not_load_torch() -> None:
    code = (
        "import sys, gossamer.node.machine.trainer_process\n"
        "import gossamer.protocol.state.outer_step, gossamer.trainer.export.hugging_face\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
