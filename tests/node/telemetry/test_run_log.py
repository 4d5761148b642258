"""The log of a run: its queues, its failures, and its files as TensorBoard and wandb read them."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest
import trio
import trio.testing

from gossamer.node.base.settings.settings import ConfigError
from gossamer.node.telemetry import log_places, run_log
from gossamer.node.telemetry.log_places import TensorBoardPlace, WandbPlace, require_packages
from gossamer.node.telemetry.run_log import QUEUE_MAX, Record, RunLog, record_of

T = TypeVar("T")


class Kept:
    """A place in memory. It fails while `error` is set, and waits while `gate` is closed."""

    name = "kept"

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.error: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.num_closed = 0

    def write(self, records: Sequence[Record]) -> None:
        self.gate.wait()
        if self.error is not None:
            raise self.error
        self.records += records

    def close(self) -> None:
        self.num_closed += 1


def numbers(place: Kept) -> list[int]:
    return [record.number for record in place.records]


def clock() -> float:
    return 1_700_000_000.0


async def inline(function: Callable[[], T], /) -> T:
    """A thread that takes no time. A busy machine lets a real one wait for longer than virtual time
    stands still for it."""
    await trio.lowlevel.checkpoint()
    return function()


def test_values_that_are_not_known_or_not_finite_are_left_out() -> None:
    record = record_of("step", 3, 5.0, {"loss": math.nan, "mfu": None, "seconds": 2, "round": 0})
    assert record == Record("step", 3, 5.0, {"step/seconds": 2.0, "step/round": 0.0})


def test_steps_are_sampled_and_rounds_are_all_written() -> None:
    place = Kept()

    async def story() -> None:
        log = RunLog([place], clock, inline)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(log.run)
            for number in range(40):  # 20 s, in steps of half a second
                log.step(number, {"loss": 1.0})
                log.round(1000 + number, {"loss": 1.0})
                await trio.sleep(0.5)
                await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    trio.run(story, clock=trio.testing.MockClock(autojump_threshold=0))
    assert [n for n in numbers(place) if n < 1000] == [0, 10, 20, 30]
    assert [n for n in numbers(place) if n >= 1000] == list(range(1000, 1040))
    assert place.num_closed == 1


def test_a_disk_that_hangs_holds_up_neither_training_nor_leaving(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_log, "CLOSE_SECONDS", 0.2)
    place = Kept()
    place.gate.clear()
    took = []

    async def story() -> None:
        log = RunLog([place], clock)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(log.run)
            log.round(0, {"loss": 1.0})
            await trio.sleep(0.1)  # the thread has taken the first one, and hangs
            started = time.monotonic()
            for number in range(10 * QUEUE_MAX):
                log.round(number, {"loss": 1.0})
            took.append(time.monotonic() - started)
            nursery.cancel_scope.cancel()

    started = time.monotonic()
    trio.run(story)
    assert time.monotonic() - started < 30.0, "the node leaves although the thread still hangs"
    assert took[0] < 10.0
    assert place.records == []
    place.gate.set()


def test_a_queue_that_was_full_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    place = Kept()
    place.gate.clear()

    async def story() -> None:
        log = RunLog([place], clock)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(log.run)
            log.round(0, {"loss": 1.0})
            await trio.testing.wait_all_tasks_blocked()
            for number in range(QUEUE_MAX + 7):
                log.round(number, {"loss": 1.0})
            place.gate.set()
            while len(place.records) < QUEUE_MAX + 1:  # noqa: ASYNC110  a thread fills it
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()

    trio.run(story)
    assert numbers(place) == [0, *range(QUEUE_MAX)], "the oldest are kept"
    said = capsys.readouterr().out
    assert "left out of its log" in said
    assert "records=7" in said.replace("\x1b[0m", "")


def test_a_place_that_fails_is_tried_again_and_told_of_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = Kept()
    place.error = OSError("no space left on device")

    async def story() -> None:
        log = RunLog([place], clock, inline)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(log.run)
            for number in range(4):
                log.round(number, {"loss": 1.0})
                await trio.sleep(run_log.RETRY_SECONDS)
                await trio.testing.wait_all_tasks_blocked()
            place.error = None
            log.round(4, {"loss": 1.0})
            await trio.sleep(2 * run_log.RETRY_SECONDS)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    trio.run(story, clock=trio.testing.MockClock(autojump_threshold=0))
    assert numbers(place)[-1] == 4
    said = capsys.readouterr().out
    assert said.count("no space left on device") == 1
    assert "left out of its log" in said


def test_a_package_that_is_missing_is_named_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError) as caught:
        require_packages(["tensorboard", "wandb:offline"])
    first, second = caught.value.problems
    assert "pip install 'gossamer[tensorboard]'" in first
    assert "pip install 'gossamer[wandb]'" in second
    require_packages([])


def records(*numbers: int) -> list[Record]:
    return [
        record_of("step", number, clock() + number, {"loss": 3.0 - number, "round": 1})
        for number in numbers
    ]


@pytest.fixture
def tensorboard() -> None:
    if importlib.util.find_spec("tensorboard") is None:
        pytest.skip("tensorboard is not installed: pip install '.[tensorboard]'")


@pytest.mark.usefixtures("tensorboard")
def test_tensorboard_reads_the_lives_of_a_node_as_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives = [TensorBoardPlace(tmp_path / "run") for _ in range(2)]
    for life, (first, second) in enumerate(((0, 1), (2, 3))):
        monkeypatch.setattr(os, "getpid", lambda life=life: 100 + life)
        lives[life].write(records(first))
        lives[life].write(records(second))
    curves = scalars(tmp_path / "run", "step/loss")
    assert curves == [(0, 3.0), (1, 2.0), (2, 1.0), (3, 0.0)]
    assert scalars(tmp_path / "run", "step/round") == [(n, 1.0) for n in range(4)]
    for place in lives:
        place.close()  # until here as if each had been killed


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    """What TensorBoard's own reader finds."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return [(each.step, each.value) for each in accumulator.Scalars(tag)]


@pytest.mark.usefixtures("tensorboard")
def test_half_a_record_costs_only_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = TensorBoardPlace(tmp_path)
    place.write(records(0, 1))
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-5])
    monkeypatch.setattr(os, "getpid", lambda: 101)
    later = TensorBoardPlace(tmp_path)
    later.write([each._replace(unix_seconds=clock() + 60) for each in records(2)])
    later.close()
    place.close()
    assert [number for number, _ in scalars(tmp_path, "step/loss")] == [0, 2]


@pytest.mark.usefixtures("tensorboard")
def test_beyond_their_limit_the_files_get_only_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_places, "FILES_BYTES_MAX", 2000)
    place = TensorBoardPlace(tmp_path)
    for number in range(100):
        place.write(records(number))
    place.write([record_of("round", 7, clock(), {"loss": 1.0})])
    place.close()
    (file,) = tmp_path.iterdir()
    assert file.stat().st_size < 2300
    assert scalars(tmp_path, "round/loss") == [(7, 1.0)]


def wandb_records(data: bytes) -> Iterator[bytes]:
    """The records of a `.wandb` file, whose form is that of LevelDB's log: blocks of 32 KiB with
    parts of records, each behind a checksum, its length and its kind (whole, first, middle, last).
    """
    assert data.startswith(b":W&B")
    place, parts = 7, b""
    while place < len(data):
        left = 32_768 - place % 32_768
        if left < 7:
            place += left
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""


def test_wandb_offline_keeps_a_file_that_has_all_values(tmp_path: Path) -> None:
    if importlib.util.find_spec("wandb") is None:
        pytest.skip("wandb is not installed: pip install '.[wandb]'")
    import wandb
    from wandb.proto import wandb_internal_pb2

    for life, numbers_ in enumerate(((0, 1), (2, 3))):
        # A folder for each: wandb names what it makes by the second.
        place = WandbPlace(tmp_path / str(life), "run-1", {"run": "a run"})
        place.write(records(*numbers_))
        place.close()
    wandb.teardown()  # as at the end of the process: its own process writes a little later
    files = sorted(tmp_path.glob("*/wandb/offline-run-*/run-run-1.wandb"))
    assert len(files) == 2, "both are of the same run, which `wandb sync` puts together"
    assert not list(tmp_path.rglob("requirements.txt")), "nothing is noted of the machine"
    losses: list[tuple[int, float]] = []
    for file in files:
        for data in wandb_records(file.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            values = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json)
                for item in record.history.item
            }
            if "step/loss" in values:
                losses.append((values["step"], values["step/loss"]))
    assert losses == [(0, 3.0), (1, 2.0), (2, 1.0), (3, 0.0)]
