"""The trainer as the node uses it, with a worker of a few lines that dies however it is told to."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import trio
import trio.testing
import zstandard
from structlog.testing import capture_logs

from gossamer.node.base.settings.setting_values import Switch
from gossamer.node.base.settings.settings import Settings
from gossamer.node.machine import trainer_client
from gossamer.node.machine.trainer_client import FAILURES_MAX, TrainerClient
from gossamer.node.machine.trainer_exit import TrainerExit
from gossamer.node.machine.trainer_process import TrainerProcess
from gossamer.node.runs.planning.draft import draft_of_preset
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.sync_modes import SyncMode
from gossamer.trainer.checkpoint import load_momentum
from gossamer.trainer.ipc import framing
from gossamer.trainer.ipc import messages as m
from gossamer.trainer.presets.table import DEFAULT_PRESET, PRESETS
from tests.support.preloaded import CODE

PATIENCE_SECONDS = 60
NUM_PARAMETERS = PRESETS[DEFAULT_PRESET].model.num_parameters
NUM_KILLS = 15

WORKER = """
import os, sys, time
import numpy as np
from gossamer.trainer.ipc import messages as m
from gossamer.trainer.ipc import framing, memory

def say(message):
    sys.stdout.buffer.write(framing.encode(message))
    sys.stdout.buffer.flush()

def configured(message):
    global vector
    vector = memory.open_vector(message.pseudo_gradient_fd, {num_parameters})
    say(m.Configured(device="cpu", device_name="few lines",
        precision="fp32"))

def trained(message):
    # As slowly as it takes for most kills to come in the middle.
    vector[:] = np.nan
    for part in np.array_split(vector, 64):
        part[:] = message.round
        time.sleep(0.001)
    say(m.Finished(round=message.round, steps=1, tokens=16, spans=((0, 0, 16),), loss=1.0))

def stopped():
    pass

{behaviour}

splitter = framing.MessageSplitter()
while data := os.read(0, 65536):
    for body in splitter.feed(data):
        message = framing.decode_to_worker(body)
        if isinstance(message, m.Configure):
            configured(message)
        elif isinstance(message, m.Begin):
            trained(message)
        elif isinstance(message, m.Evaluate):
            evaluated()
        elif isinstance(message, m.Save):
            saved()
        elif isinstance(message, m.Stop):
            stopped()
        elif isinstance(message, m.Exit):
            sys.exit(0)
"""

SHORT_OF_MEMORY = """
import os, signal
from gossamer.trainer import worker_loop
from gossamer.trainer.model import Decoder

real = Decoder.loss_sum

def loss_sum(self, sequences):
    if len(sequences) > 2:
        {behaviour}
    return real(self, sequences)

Decoder.loss_sum = loss_sum
os._exit(worker_loop.main(None))
"""
"""The real worker on a machine that has memory for two sequences at once."""

RESTART_SECONDS = 0.001

Story = Callable[[TrainerClient, trio.Nursery], Awaitable[None]]


@pytest.fixture(autouse=True)
def quick_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_client, "RESTART_SECONDS", RESTART_SECONDS)


@pytest.fixture
def manifest() -> Manifest:
    """The default preset's manifest, with as much as a trainer needs."""
    draft = draft_of_preset(DEFAULT_PRESET)
    data = SimpleNamespace(token_bytes=2, tokenizer="bytes", tokenizer_digest=b"")
    partial = SimpleNamespace(
        model=draft.model,
        inner=draft.inner,
        outer=draft.outer,
        sync="diloco",
        trust="members",
        seed=1,
        data=data,
    )
    return cast(Manifest, partial)


class Told:
    """The calls to the node."""

    def __init__(self) -> None:
        self.restarts: list[str] = []
        self.num_configured = 0

    def configured(self, _configured: m.Configured) -> None:
        self.num_configured += 1

    def restarted(self, reason: str) -> None:
        self.restarts.append(reason)

    def stepped(self, step: m.Step) -> None:
        pass

    def shared(self, shared: m.Shared) -> None:
        pass

    def needs_data(self, tokens_queued: int) -> None:
        pass


def act(
    story: Story,
    manifest: Manifest,
    monkeypatch: pytest.MonkeyPatch,
    told: Told,
    behaviour: str = "",
    code: str | None = WORKER,
    optimizer_path: str = "unused",
) -> None:
    """Runs a story with a trainer whose worker is Python code, or without any the real one."""
    if code is not None:
        code = code.replace("{num_parameters}", str(NUM_PARAMETERS))
        # Some sixty workers begin here, and each would load numpy or torch anew.
        command = [sys.executable, "-m", CODE, code.replace("{behaviour}", behaviour)]
        process = TrainerProcess(NUM_PARAMETERS, command=command)
        monkeypatch.setattr(trainer_client, "TrainerProcess", lambda _size, **_options: process)
    trainer = TrainerClient(manifest, Settings(state_dir=Path("unused")), optimizer_path)

    async def main() -> None:
        with trio.fail_after(PATIENCE_SECONDS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trainer.run, told)
                await story(trainer, nursery)
                await trainer.suspend()
                nursery.cancel_scope.cancel()

    trio.run(main)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what is watched has no event to wait for
        await trio.sleep(0.005)


def begun(number: int) -> m.Begin:
    return m.Begin(round=number, first_step=0, steps_max=1, seconds_max=60.0)


async def train(trainer: TrainerClient, number: int) -> m.Finished:
    finished = await trainer.train(begun(number))
    assert await trainer.collect()
    return finished


@pytest.mark.parametrize("value", [3e30, float("nan")])
def test_work_with_a_value_out_of_range_is_not_collected(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    async def story(trainer: TrainerClient, _nursery: trio.Nursery) -> None:
        await train(trainer, 1)
        before = trainer.pending.copy()
        await trainer.train(begun(2))
        trainer._process.vectors.pseudo_gradient[-1] = value
        assert not await trainer.collect()
        assert await trainer.collect(), "once a round: there is nothing any more"
        assert (trainer.pending == before).all()
        await train(trainer, 3)
        assert (trainer.pending != before).any()

    act(story, manifest, monkeypatch, Told())


UNTIL_STOPPED = """
rounds = []

def trained(message):
    if message.steps_max == 0:
        finished(message.round)
    else:
        rounds.append(message.round)

def finished(number):
    say(m.Finished(round=number, steps=0, tokens=0, spans=(), loss=0.0))

def stopped():
    if rounds:
        finished(rounds.pop())
"""


def test_a_round_that_is_stopped_as_it_begins_ends(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker passes over a stop that comes before the round, which would then go on."""
    told = Told()

    async def story(trainer: TrainerClient, nursery: trio.Nursery) -> None:
        await until(lambda: trainer.is_up)
        # Often, because who of those that are ready runs first is a matter of chance.
        for number in range(1, 31):
            ended = trio.Event()

            async def begin(number: int = number, ended: trio.Event = ended) -> None:
                assert (await train(trainer, number)).steps == 0
                ended.set()

            nursery.start_soon(begin)
            while trainer._round != number:
                await trio.lowlevel.checkpoint()
            await trainer.stop()
            await ended.wait()
            assert not told.restarts, "the worker waited for a stop until it was killed"

    act(story, manifest, monkeypatch, told, UNTIL_STOPPED)


@pytest.mark.long
def test_a_worker_killed_at_any_moment_leaves_pending_whole(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_client, "FAILURES_MAX", 10**9)
    told, randomness = Told(), random.Random(1)
    finished = unfinished = 0

    async def kill_again_and_again(trainer: TrainerClient) -> None:
        while True:
            await until(lambda: trainer.is_up)
            await trio.sleep(randomness.uniform(0.0, 0.3))
            if trainer.pid is not None:
                os.kill(trainer.pid, signal.SIGKILL)
            await until(lambda: not trainer.is_up)

    async def story(trainer: TrainerClient, nursery: trio.Nursery) -> None:
        nonlocal finished, unfinished
        trainer.pending[:] = 0.5  # work carried from earlier rounds
        expected = trainer.pending.copy()
        nursery.start_soon(kill_again_and_again, trainer)
        number = 0
        # How many rounds end between two kills is up to the speed of the machine.
        while (
            len(told.restarts) < NUM_KILLS or finished <= NUM_KILLS or unfinished <= NUM_KILLS // 3
        ):
            number += 1
            answer = await train(trainer, number)
            assert (answer.tokens > 0) == (answer.steps > 0)
            if answer.tokens:
                assert answer.round == number
                expected += np.float32(number)
                finished += 1
            else:
                unfinished += 1
            assert (trainer.pending == expected).all(), "half of a round's work"

    act(story, manifest, monkeypatch, told)
    assert set(told.restarts) == {"killed"}


def test_an_answer_counts_though_the_end_comes_right_behind_it(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished = m.Finished(round=1, steps=1, tokens=16, spans=(), loss=1.0)
    end = TrainerExit(1, None, False, "", ())

    async def story(trainer: TrainerClient, nursery: trio.Nursery) -> None:
        await until(lambda: trainer.is_up)
        answers: list[m.Finished] = []

        async def ask() -> None:
            answers.append(await train(trainer, 1))

        # Often, because who of those that are ready runs first is a matter of chance.
        for number in range(1, 31):
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            for event in (finished, end):
                trainer._process._events_in.send_nowait(event)
            await until(lambda number=number: len(answers) == number)  # type: ignore[misc]
        assert all(answer.tokens == 16 for answer in answers)

    act(story, manifest, monkeypatch, Told(), "def trained(_message): pass")


def test_a_worker_that_exits_at_once_is_given_up_and_tried_again_when_told(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    broken.touch()
    told = Told()

    async def story(trainer: TrainerClient, nursery: trio.Nursery) -> None:
        # A task that waits for the trainer is told too.
        assert (await train(trainer, 1)).steps == 0
        assert trainer.failure is not None
        for text in ("no torch here", f"{FAILURES_MAX} times", "gossamer doctor", "resume"):
            assert text in trainer.failure
        assert not trainer.is_up
        assert told.restarts == ["failed"] * (FAILURES_MAX - 1)
        assert not await trainer.genesis()
        assert await trainer.evaluate(["a"], 1, 1.0) is None
        await trainer.save(m.Place(head=bytes(32)))
        await trainer.is_saved()
        await trainer.stop()
        assert (await train(trainer, 2)).steps == 0
        assert len(told.restarts) == FAILURES_MAX - 1, "it was started again by itself"

        broken.unlink()
        nursery.start_soon(trainer.queue, 1, "shard", 0, 10)
        trainer.resume()
        assert trainer.failure is None
        assert (await train(trainer, 3)).tokens == 16
        assert (trainer.pending == 3).all()
        assert told.num_configured == 1

    check = f"if os.path.exists({str(broken)!r}): sys.exit('no torch here')"
    with capture_logs() as lines:
        act(story, manifest, monkeypatch, told, check)
    waits = [line["restart_in_seconds"] for line in lines if "restart_in_seconds" in line]
    assert waits == [RESTART_SECONDS * 2**n for n in range(FAILURES_MAX)]


def test_the_next_worker_finds_the_momentum_and_waits_for_word_of_it(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    manifest.sync = "distro"  # type: ignore[misc]
    path = tmp_path / "momentum"
    saved, later = m.Place(head=b"h" * 32, rings=(b"r" * 32,)), m.Place(head=b"l" * 32)

    async def story(trainer: TrainerClient, _nursery: trio.Nursery) -> None:
        await until(lambda: trainer.is_up)
        assert (trainer.lives, trainer.loaded_momentum) == (1, None)
        await trainer.save(saved)
        await trainer.is_saved()
        assert trainer.save_seconds > 0
        content = path.read_bytes()
        assert trainer.pid is not None
        os.kill(trainer.pid, signal.SIGKILL)
        await until(lambda: trainer.lives == 2 and trainer.is_up)
        assert trainer.loaded_momentum == saved
        await trainer.save(later)
        await trainer.is_saved()
        assert path.read_bytes() == content
        await trainer.keep_momentum(keep=True)
        await trainer.save(later)
        await trainer.is_saved()
        assert load_momentum(manifest.model, path).place == later

    act(story, manifest, monkeypatch, Told(), code=None, optimizer_path=str(path))


@pytest.mark.parametrize("wanted", ["on", "off"])
def test_the_setting_says_whether_the_worker_is_confined(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wanted: Switch
) -> None:
    folders: list[Path | None] = []
    process = TrainerProcess(NUM_PARAMETERS)

    def noting(_size: int, folder: Path | None, **_options: bool) -> TrainerProcess:
        folders.append(folder)
        return process

    monkeypatch.setattr(trainer_client, "TrainerProcess", noting)
    settings = Settings(state_dir=tmp_path, confine_trainer=wanted)
    try:
        TrainerClient(manifest, settings, str(StateDir(tmp_path).optimizer_path))
    finally:
        process.vectors.release()
    assert folders == [tmp_path / "trainer" if wanted == "on" else None]


@pytest.mark.parametrize("sync", ["diloco", "distro"])
def test_the_process_may_say_what_a_shared_step_of_the_run_has(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch, sync: SyncMode
) -> None:
    bounds: list[int] = []
    process = TrainerProcess(NUM_PARAMETERS)

    def noting(_size: int, message_bytes_max: int, **_options: object) -> TrainerProcess:
        bounds.append(message_bytes_max)
        return process

    monkeypatch.setattr(trainer_client, "TrainerProcess", noting)
    manifest.sync = sync  # type: ignore[misc]
    try:
        client = TrainerClient(manifest, Settings(state_dir=Path("unused")), "unused")
    finally:
        process.vectors.release()
    steps = client._configure.shared_steps
    assert (steps is not None) is (sync == "distro")
    assert bounds == [framing.bytes_max_of(manifest.model, steps)]


def test_the_worker_is_told_the_micro_batch_of_the_settings(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = TrainerProcess(NUM_PARAMETERS)
    monkeypatch.setattr(trainer_client, "TrainerProcess", lambda _size, **_options: process)
    settings = Settings(state_dir=Path("unused"), micro_batch=4)
    try:
        assert TrainerClient(manifest, settings, "unused")._configure.micro_batch == 4
    finally:
        process.vectors.release()


@pytest.mark.parametrize(
    "behaviour",
    ["os.kill(os.getpid(), signal.SIGKILL)", "raise RuntimeError('words that nobody knows')"],
)
def test_a_worker_that_dies_for_want_of_memory_takes_less_in_its_next_life(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, behaviour: str
) -> None:
    """Otherwise each life would end as the one before, until the node says `failed`."""
    assert manifest.inner.sequences_per_step == 8
    shard = tmp_path / "shard"
    tokens = np.arange(8 * (manifest.model.context + 1), dtype="<u2") % 256
    shard.write_bytes(zstandard.compress(tokens.tobytes()))
    steps: list[int] = []

    async def story(trainer: TrainerClient, _nursery: trio.Nursery) -> None:
        for number in range(1, FAILURES_MAX):
            await until(lambda: trainer.is_up and trainer.lives == len(steps) + 1)
            await trainer.queue(0, str(shard), 0, len(tokens))
            steps.append((await trainer.train(begun(number))).steps)
            if steps[-1]:
                break
        assert trainer.failure is None

    path = str(tmp_path / "optimizer")
    act(story, manifest, monkeypatch, Told(), behaviour, SHORT_OF_MEMORY, path)
    assert steps == [0, 0, 1], "8, 4 and 2 at once"


def test_failures_count_anew_after_a_finished_round(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(trainer: TrainerClient, _nursery: trio.Nursery) -> None:
        for number in range(1, 2 * FAILURES_MAX):
            assert (await train(trainer, number)).tokens
            pid = trainer.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await until(lambda pid=pid: trainer.pid not in (None, pid))  # type: ignore[misc]
        assert trainer.failure is None

    act(story, manifest, monkeypatch, Told())


def test_a_death_over_an_evaluation_does_not_hold_up_the_caller(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(trainer: TrainerClient, _nursery: trio.Nursery) -> None:
        assert (await train(trainer, 1)).tokens
        assert await trainer.evaluate(["heldout"], 10, 1.0) is None
        assert await trainer.evaluate(["heldout"], 10, 1.0) is None, "it waits for the next worker"
        assert (await train(trainer, 2)).tokens

    told = Told()
    act(story, manifest, monkeypatch, told, "def evaluated(): os._exit(1)")


def test_saving_does_not_wait_for_the_round_that_is_trained_meanwhile(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A round with overlap is committed while the next one is trained, which may take hours."""
    goes_on = tmp_path / "goes on"

    async def story(trainer: TrainerClient, nursery: trio.Nursery) -> None:
        await until(lambda: trainer.is_up)
        nursery.start_soon(train, trainer, 1)
        await trio.testing.wait_all_tasks_blocked()
        place = m.Place(head=bytes(32))
        await trainer.save(place)
        await trainer.save(place)  # nothing: the worker has not come to the first
        goes_on.touch()
        await trainer.is_saved()
        assert trainer.save_seconds == 1.5

    patient = (
        "hurried = trained\n"
        "def trained(message):\n"
        f"    while not os.path.exists({str(goes_on)!r}): time.sleep(0.01)\n"
        "    hurried(message)\n"
        "saves = []\n"
        "def saved():\n"
        "    saves.append(1)\n"
        "    assert len(saves) == 1\n"
        "    say(m.Saved(seconds=1.5))\n"
    )
    act(story, manifest, monkeypatch, Told(), patient)


def test_data_for_a_worker_that_was_waited_for_is_not_queued(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is asked for anew when the worker begins: queued twice it would count twice."""
    seen = tmp_path / "seen"

    async def story(trainer: TrainerClient, _nursery: trio.Nursery) -> None:
        assert not trainer.is_up
        await trainer.queue(1, "early", 0, 10)
        assert trainer.is_up
        await trainer.queue(1, "late", 0, 10)
        assert (await train(trainer, 1)).tokens

    noting = (
        "decode = framing.decode_to_worker\n"
        "def noted(body):\n"
        "    message = decode(body)\n"
        f"    with open({str(seen)!r}, 'a') as file: print(message, file=file)\n"
        "    return message\n"
        "framing.decode_to_worker = noted"
    )
    act(story, manifest, monkeypatch, Told(), noting)
    assert "late" in seen.read_text()
    assert "early" not in seen.read_text()


def test_a_program_that_cannot_be_started_is_a_failure_like_others(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(trainer: TrainerClient, _nursery: trio.Nursery) -> None:
        monkeypatch.setattr(trainer._process, "_command", ["/nonexistent/python"])
        assert (await train(trainer, 1)).steps == 0
        assert trainer.failure is not None
        assert "could not be started" in trainer.failure
        assert "/nonexistent/python" in trainer.failure

    act(story, manifest, monkeypatch, Told())


def test_suspended_while_it_is_started(manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(trainer: TrainerClient, _nursery: trio.Nursery) -> None:
        for checkpoints in range(8):
            for _ in range(checkpoints):
                await trio.lowlevel.checkpoint()
            await trainer.suspend()
            with trio.move_on_after(0.05):
                await until(lambda: trainer.is_up)
            await until(lambda: trainer.pid is None)
            trainer.resume()
        assert (await train(trainer, 1)).tokens

    told = Told()
    act(story, manifest, monkeypatch, told)
    assert told.restarts == []


def test_suspended_twice_it_goes_on_when_it_is_resumed(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that was paused when it ended begins suspended, and suspends its trainer again."""

    async def story(trainer: TrainerClient, _nursery: trio.Nursery) -> None:
        await trainer.suspend()
        await until(lambda: trainer.pid is None)
        await trainer.suspend()
        trainer.resume()
        assert (await train(trainer, 1)).tokens

    act(story, manifest, monkeypatch, Told())


def test_a_round_that_is_stopped_before_it_begins_does_not_begin(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker is being started again: no peer waits for a whole round of it."""

    async def story(trainer: TrainerClient, nursery: trio.Nursery) -> None:
        await until(lambda: trainer.is_up)
        await trainer.suspend()
        await until(lambda: not trainer.is_up)
        answers: list[m.Finished] = []

        async def ask() -> None:
            answers.append(await train(trainer, 1))

        nursery.start_soon(ask)
        await trio.sleep(0.05)
        assert not answers
        await trainer.stop()
        await until(lambda: bool(answers))
        assert (answers[0].round, answers[0].steps) == (1, 0)
        trainer.resume()
        assert (await train(trainer, 2)).steps > 0

    act(story, manifest, monkeypatch, Told())


def test_the_worker_is_told_the_runs_tokenizer(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without it no loss is told in bits per byte."""
    process = TrainerProcess(NUM_PARAMETERS)
    monkeypatch.setattr(trainer_client, "TrainerProcess", lambda _size, **_options: process)
    data = SimpleNamespace(token_bytes=2, tokenizer="bpe", tokenizer_digest=bytes(range(32)))
    manifest.data = data  # type: ignore[misc, assignment]
    try:
        configure = TrainerClient(manifest, Settings(state_dir=tmp_path), "unused")._configure
        path = Path(configure.tokenizer_path)
        assert configure.tokenizer == "bpe"
        assert (path.parent.name, path.name) == ("00", bytes(range(32)).hex())
    finally:
        process.vectors.release()
