"""The owner's limits of disk, temperature and power: what obeys, and what is said."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from gossamer.node.app.owner import owner_limits
from gossamer.node.app.owner.limit_parts import DiskLimit, LimitParts, worker_limits
from gossamer.node.app.owner.owner_limits import OwnerLimits
from gossamer.node.app.owner.pause_watch import PauseWatch, pause_rules
from gossamer.node.app.runtime import Runtime
from gossamer.node.base.disk_health import DiskFullError, write_atomically
from gossamer.node.base.pausing import Hold
from gossamer.node.base.settings.settings import ConfigError, Settings
from gossamer.node.base.threads import run_abandonable
from gossamer.node.machine import capacity
from gossamer.node.machine.limit_uses import NodeUses
from gossamer.node.machine.machine_use import MachineUse
from gossamer.node.machine.power_limit import PowerLimit
from gossamer.node.storage import owner_orders
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.storage.owner_orders import read_limits, write_limits
from gossamer.node.storage.state_dir import StateDir, StateDirError
from gossamer.node.telemetry.gpus import Gpus
from gossamer.node.telemetry.metrics import Metrics
from gossamer.protocol.ids import digest_of
from gossamer.trainer.ipc import messages
from tests.support.builders import manifest
from tests.support.simulated_nvml import Card, SimulatedNvml

MB = 1_000_000


def settings(tmp_path: Path, **values: object) -> Settings:
    return Settings(state_dir=tmp_path, **values)  # type: ignore[arg-type]


def looks(watch: PauseWatch, number: int) -> list[tuple[Hold, ...]]:
    async def main() -> list[tuple[Hold, ...]]:
        return [await watch.look() for _ in range(number)]

    return trio.run(main)


def test_a_hot_card_pauses_the_node_until_it_is_five_degrees_cooler(tmp_path: Path) -> None:
    temperatures = iter([79.0, 81.0, 79.0, 76.0, 75.0, 79.0])
    use = MachineUse(is_on_battery=lambda: None, read_gpu_celsius=lambda: next(temperatures))
    rules = pause_rules(settings(tmp_path, gpu_temperature_max=80))
    watch = PauseWatch(rules, use, lambda: 1_700_000_000.0, run_abandonable)
    found = looks(watch, 6)
    assert [bool(holds) for holds in found] == [False, True, True, True, False, False]
    assert found[1][0].reason == "temperature"
    assert "81 degrees C" in found[1][0].text
    assert "at 75" in found[1][0].text


def test_rules_that_change_hold_at_the_next_look(tmp_path: Path) -> None:
    use = MachineUse(is_on_battery=lambda: None, read_gpu_celsius=lambda: 70.0)
    watch = PauseWatch(pause_rules(settings(tmp_path)), use, lambda: 0.0, run_abandonable)
    assert looks(watch, 1) == [()]
    watch.change(pause_rules(settings(tmp_path, gpu_temperature_max=60)))
    assert looks(watch, 1)[0][0].reason == "temperature"


def test_without_a_sensor_the_node_trains(tmp_path: Path) -> None:
    use = MachineUse(is_on_battery=lambda: None, read_gpu_celsius=lambda: None)
    rules = pause_rules(settings(tmp_path, gpu_temperature_max=60))
    assert looks(PauseWatch(rules, use, lambda: 0.0, run_abandonable), 1) == [()]


# Power


def power_of(card: Card) -> PowerLimit:
    return PowerLimit(Gpus(SimulatedNvml([card])), "auto")


def test_the_cards_power_is_limited_and_put_back() -> None:
    card = Card(power_limit_watts=450.0)
    power = power_of(card)
    assert power.apply(300) == ""
    assert card.power_limit_watts == 300.0
    assert power.apply(250) == ""
    assert power.apply(0) == ""
    assert card.power_limit_watts == 450.0


def test_a_power_limit_that_was_lowered_is_raised_again() -> None:
    card = Card(power_limit_watts=450.0)
    power = power_of(card)
    for wanted, limit in ((200, 200.0), (300, 300.0), (600, 450.0), (250, 250.0)):
        assert power.apply(wanted) == ""
        assert card.power_limit_watts == limit
    assert power.restore() == ""
    assert card.power_limit_watts == 450.0


def test_without_root_the_power_limit_says_so_and_what_to_do() -> None:
    card = Card(is_root=False)
    assert "only root" in power_of(card).apply(300)
    assert "nvidia-smi -i 0 -pl 300" in power_of(card).apply(300)
    assert card.power_limit_watts == 450.0


def test_a_card_that_takes_less_already_stays_as_it_is() -> None:
    card = Card(is_root=False, power_limit_watts=280.0)
    assert power_of(card).apply(300) == ""


def test_a_power_below_what_the_card_can_is_refused_with_the_least() -> None:
    problem = power_of(Card(power_limit_min_watts=100.0)).problem(60)
    assert problem == "60 W are too few: Simulated RTX takes 100 W or more"


def test_without_a_card_the_power_limit_says_so() -> None:
    assert "no NVIDIA card" in PowerLimit(Gpus(SimulatedNvml([])), "auto").apply(300)


# Disk


def put(store: BlockStore, number: int) -> None:
    store.put(bytes([number]) * MB)


def test_blocks_get_what_other_files_leave_of_the_disk_limit(tmp_path: Path) -> None:
    store = BlockStore(tmp_path, 100 * MB)
    disk = DiskLimit(settings(tmp_path, cache_bytes=100 * MB), store)
    for number in range(10):
        put(store, number)
    disk.measured(2 * MB)
    assert store.quota_bytes == 100 * MB
    disk.apply(settings(tmp_path, cache_bytes=100 * MB, disk_max=6 * MB))
    store.evict()
    assert disk.used_bytes() <= 6 * MB
    disk.measured(3 * MB)
    assert store.quota_bytes == 3 * MB


def test_what_a_run_needs_for_good_takes_no_room_from_the_cache(tmp_path: Path) -> None:
    store = BlockStore(tmp_path, 3 * MB)
    disk = DiskLimit(settings(tmp_path, cache_bytes=3 * MB), store)
    store.reserved_bytes = 4 * MB
    store.pin("frozen", [digest_of(bytes([number]) * MB) for number in range(4)])
    for number in range(9):
        put(store, number)
    assert store.used_bytes() == 7 * MB
    assert store.cached_bytes() == 3 * MB
    disk.apply(settings(tmp_path, cache_bytes=3 * MB, disk_max=6 * MB))
    store.evict()
    assert store.used_bytes() == 6 * MB
    assert store.pinned_bytes() == 4 * MB


def test_a_disk_limit_below_what_has_to_stay_says_so(tmp_path: Path) -> None:
    store = BlockStore(tmp_path, 100 * MB)
    disk = DiskLimit(settings(tmp_path, disk_max=6 * MB), store)
    disk.measured(5 * MB)
    assert disk.problem == ""
    disk.measured(7 * MB)
    assert disk.problem == "the run needs 7.0 MB of the disk, and its owner's limit is 6.0 MB"


def test_a_node_whose_run_does_not_fit_into_the_disk_limit_pauses(tmp_path: Path) -> None:
    limits = limits_of(settings(tmp_path, disk_max=6 * MB))
    parts = parts_of(limits, BlockStore(tmp_path, 100 * MB))
    watch = watch_of(limits)
    parts.join(watch, lambda: 0.0)
    assert looks(watch, 1) == [()]
    parts.disk.measured(7 * MB)
    assert looks(watch, 1)[0][0].reason == "disk"


# All parts


def limits_of(settings: Settings) -> OwnerLimits:
    return OwnerLimits(settings, StateDir(settings.state_dir), run_abandonable)


def watch_of(limits: OwnerLimits) -> PauseWatch:
    """The watch over a machine that nobody uses."""
    use = MachineUse(is_on_battery=lambda: None)
    return PauseWatch(pause_rules(limits.settings), use, lambda: 0.0, run_abandonable)


def parts_of(limits: OwnerLimits, store: BlockStore, *cards: Card) -> LimitParts:
    gpus, runtime = Gpus(SimulatedNvml(cards)), Runtime(serves_http=False)
    return LimitParts(limits, manifest(), gpus, store, runtime)


class Trainer:
    """It hears limits, and says when."""

    def __init__(self) -> None:
        self.limits: list[messages.Limits] = []

    async def limit(self, limits: messages.Limits) -> None:
        self.limits.append(limits)


def test_a_node_obeys_while_it_runs_and_puts_the_cards_power_back(tmp_path: Path) -> None:
    limits = limits_of(settings(tmp_path, gpu_power_watts=300, gpu_memory="50%"))
    card, trainer = Card(power_limit_watts=450.0), Trainer()
    parts = parts_of(limits, BlockStore(tmp_path, 100 * MB), card)
    parts.join(watch_of(limits), lambda: 0.0)

    async def until(watts: float) -> None:
        with trio.fail_after(10):
            while card.power_limit_watts != watts:  # noqa: ASYNC110 - a card has no event
                await trio.sleep(0.001)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            parts.start(nursery, cast(Any, trainer), Metrics())
            await until(300.0)
            await limits.change({"gpu_power": "200", "threads": "3"})
            await until(200.0)
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert card.power_limit_watts == 450.0
    assert [each.threads for each in trainer.limits] == [0, 3]
    assert trainer.limits[0].gpu_memory_bytes == card.memory_total_bytes // 2


# Changes


def changing(limits: OwnerLimits, **changes: str) -> None:
    trio.run(lambda: limits.change(changes))


def test_a_change_is_kept_first_and_then_obeyed(tmp_path: Path) -> None:
    state_dir = StateDir(tmp_path)
    limits = OwnerLimits(settings(tmp_path), state_dir, run_abandonable)
    seen: list[int] = []
    limits.join(lambda now: seen.append(now.threads))
    changing(limits, threads="3", upload="10")
    assert seen == [3]
    assert limits.rates.up.bytes_per_second == 1_250_000
    again = OwnerLimits(settings(tmp_path), state_dir, run_abandonable)
    assert again.settings.threads == 3
    assert again.rates.up.bytes_per_second == 1_250_000


def test_a_full_disk_takes_a_change_when_it_has_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner of a full disk can give the node less of it, and is told how long that holds."""
    monkeypatch.setattr(owner_limits, "LOOK_SECONDS", 0.01)
    limits = limits_of(settings(tmp_path))
    seen: list[int] = []
    limits.join(lambda now: seen.append(now.disk_max))

    def refuse(path: Path, *parts: bytes, **_: object) -> None:
        raise DiskFullError(path, sum(map(len, parts)))

    def write_and_tell(path: Path, *parts: bytes, is_order: bool) -> None:
        write_atomically(path, *parts, is_order=is_order)
        trio.from_thread.run_sync(is_written.set)

    is_written = trio.Event()

    async def main() -> None:
        monkeypatch.setattr(owner_orders, "write_atomically", refuse)
        assert "the disk is full" in await limits.change({"disk": "8GiB"})
        assert seen == [8 * 1024**3]
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                reads = lambda _: NodeUses({"memory": 0.0}, {}, 0, 0.0)  # noqa: E731
                nursery.start_soon(limits.run, reads, Metrics())
                monkeypatch.setattr(owner_orders, "write_atomically", write_and_tell)
                await is_written.wait()
                nursery.cancel_scope.cancel()
        assert await limits.change({"threads": "2"}) == ""

    trio.run(main)
    assert read_limits(tmp_path / "limits") == {"disk": "8GiB", "threads": "2"}


def test_the_metrics_show_a_change_at_once_though_a_driver_hangs(tmp_path: Path) -> None:
    limits = OwnerLimits(settings(tmp_path), StateDir(tmp_path), run_abandonable)
    metrics = Metrics()
    is_asked, may_answer = threading.Event(), threading.Event()

    def hanging_driver(settings: Settings) -> NodeUses:
        is_asked.set()
        may_answer.wait()
        return NodeUses({"memory": 0.0}, {}, 0, 0.0)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(limits.run, hanging_driver, metrics)
            await trio.to_thread.run_sync(is_asked.wait)
            await limits.change({"upload": "10", "threads": "3"})
            nursery.cancel_scope.cancel()

    try:
        trio.run(main)
    finally:
        may_answer.set()
    read = metrics.registry.get_sample_value
    assert read("gossamer_limit_threads") == 3
    assert read("gossamer_line_limit_bytes_per_second", {"direction": "sent"}) == 1_250_000


def test_a_driver_that_hangs_takes_one_thread_and_is_read_again_when_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look that left a thread behind would in the end leave none for the disk."""
    monkeypatch.setattr("gossamer.node.base.threads.READ_SECONDS_MAX", 0.05)
    monkeypatch.setattr(owner_limits, "LOOK_SECONDS", 0.05)
    limits = OwnerLimits(settings(tmp_path), StateDir(tmp_path), run_abandonable)
    may_answer, has_answered = threading.Event(), threading.Event()
    asked: list[float] = []

    def hanging_driver(settings: Settings) -> NodeUses:
        asked.append(trio.from_thread.run_sync(trio.current_time))
        may_answer.wait()
        if len(asked) > 1:
            has_answered.set()
        return NodeUses({"memory": 0.0}, {}, 0, 0.0)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(limits.run, hanging_driver, Metrics())
            await trio.sleep(2.0)
            num_asked = len(asked)
            threads = trio.to_thread.current_default_thread_limiter().borrowed_tokens
            may_answer.set()
            with trio.fail_after(10):
                await run_abandonable(has_answered.wait)
            nursery.cancel_scope.cancel()
            assert (num_asked, threads) == (1, 1)

    try:
        trio.run(main)
    finally:
        may_answer.set()


async def too_little_disk(_settings: Settings) -> list[str]:
    await trio.lowlevel.checkpoint()
    return ["disk: 3 GB or more"]


def test_a_refused_change_leaves_everything_as_it_was(tmp_path: Path) -> None:
    state_dir = StateDir(tmp_path)
    limits = OwnerLimits(settings(tmp_path), state_dir, run_abandonable)
    limits.join(lambda now: pytest.fail("obeyed"))
    limits.check = too_little_disk
    with pytest.raises(ConfigError, match="3 GB or more"):
        changing(limits, disk="1GiB", threads="3")
    assert limits.settings.threads == 0
    assert not state_dir.limits_path.exists()


def test_a_limit_that_stays_as_it_was_is_not_refused(tmp_path: Path) -> None:
    """A run may have grown since: that is no reason to refuse another limit."""
    write_limits(tmp_path / "limits", {"disk": "1GiB"})
    limits = OwnerLimits(settings(tmp_path), StateDir(tmp_path), run_abandonable)
    limits.check = too_little_disk
    changing(limits, threads="3")
    assert limits.settings.threads == 3


@pytest.mark.parametrize("content", [b"{upload", b'{"upload": "\xff"}'])
def test_a_damaged_file_of_limits_is_not_passed_over(tmp_path: Path, content: bytes) -> None:
    state_dir = StateDir(tmp_path)
    state_dir.limits_path.write_bytes(content)
    with pytest.raises(StateDirError, match="remove it"):
        OwnerLimits(settings(tmp_path), state_dir, run_abandonable)


def test_a_share_of_a_card_of_another_maker_is_a_limit_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"total": [16_000_000_000], "used": [0]}
    monkeypatch.setattr(capacity, "_amd_memory_bytes", lambda kind="total": sizes[kind])
    monkeypatch.setattr(capacity, "torch_has_rocm", lambda: True)
    wanted = settings(tmp_path, gpu_memory="50%")
    no_nvidia = cast("Gpus", SimpleNamespace(read=list))
    assert worker_limits(wanted, manifest(), no_nvidia).gpu_memory_bytes == 8_000_000_000
