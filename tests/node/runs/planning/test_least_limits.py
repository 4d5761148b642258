"""A limit that is too low for a run is refused with the least that the run needs."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from gossamer.node.app.owner.limit_parts import TRAINER_BYTES_MIN, worker_limits
from gossamer.node.base.settings.settings import Settings
from gossamer.node.machine.capacity import DeviceMemory
from gossamer.node.runs.planning.least_limits import least_line_mbit, least_problems
from gossamer.node.runs.planning.needs import (
    DAEMON_BYTES,
    PEERS_SUPPOSED,
    PROCESS_BYTES,
    describe_limits,
    needs_of,
)
from gossamer.node.runs.planning.planning import Line, plan_round
from gossamer.node.telemetry.gpus import Gpus
from gossamer.protocol.rounds.ring.link_rates import LIMIT_PATIENCE_FRACTION
from gossamer.protocol.sync_modes import SyncMode
from tests.support.builders import manifest
from tests.support.simulated_nvml import Card, SimulatedNvml

GIB = 1024**3
RUN = manifest()
SPEED = 1000.0


def settings(**values: object) -> Settings:
    return Settings(state_dir=Path("/nowhere"), **values)  # type: ignore[arg-type]


def problems(
    now: Settings, speed: float | None = SPEED, card: DeviceMemory | None = None
) -> list[str]:
    return least_problems(
        RUN,
        now,
        trains_on_host=card is None,
        disk_bytes=GIB,
        cards=[card] if card else [],
        tokens_per_second=speed,
    )


def test_at_the_least_rate_a_ring_lasts_as_long_as_the_training() -> None:
    least = least_line_mbit(RUN, SPEED)
    plan = plan_round(RUN, PEERS_SUPPOSED, Line(least, 1000.0), SPEED)
    assert plan.training_seconds is not None
    ring_seconds = plan.sent_bytes_max * 8 / 1e6 / least / 0.95
    assert ring_seconds == pytest.approx(LIMIT_PATIENCE_FRACTION * plan.training_seconds)


@pytest.mark.parametrize("name", ["upload", "download"])
def test_a_line_below_the_least_is_refused_and_the_least_is_taken(name: str) -> None:
    fast = 1e9  # a trainer so fast that every line is slow
    least = least_line_mbit(RUN, fast)
    assert least > 10
    setting = {"upload": "up_limit", "download": "down_limit"}[name]
    (problem,) = problems(settings(**{setting: ("1",)}), fast)
    assert problem.startswith(f"{name}: 1 Mbit/s are too few: this run needs ")
    told = problem.partition("needs ")[2].split()[0]
    assert problems(settings(**{setting: (told,)}), fast) == []


def test_a_limit_of_the_evening_counts_as_well() -> None:
    assert len(problems(settings(up_limit=("1@18:00-23:00", "100000")), 1e9)) == 1


def test_before_the_speed_is_known_no_line_is_refused() -> None:
    assert problems(settings(up_limit=("0.5",)), None) == []


def test_memory_and_disk_name_their_least() -> None:
    needs = needs_of(RUN, trains_on_host=True, cache_bytes=0)
    assert problems(settings(memory_max=needs.memory, disk_max=GIB)) == []
    memory, disk = problems(settings(memory_max=needs.memory - 1, disk_max=GIB - 1))
    assert memory.startswith("memory: ")
    assert disk.startswith("disk: ")


def test_memory_of_the_card_names_its_least() -> None:
    card = DeviceMemory("NVIDIA A10", 24 * GIB, 20 * GIB)
    assert problems(settings(gpu_memory="90%"), card=card) == []
    (problem,) = problems(settings(gpu_memory="1%"), card=card)
    assert problem.startswith("gpu_memory: ")
    assert "of NVIDIA A10" in problem


def test_the_trainer_gets_what_the_daemon_leaves() -> None:
    none = Gpus(SimulatedNvml([]))
    given = worker_limits(settings(threads=3, memory_max=4 * GIB), RUN, none)
    assert given.threads == 3
    assert given.memory_bytes == 4 * GIB - DAEMON_BYTES - 28 * RUN.model.num_parameters
    assert worker_limits(settings(memory_max=1), RUN, none).memory_bytes == TRAINER_BYTES_MIN
    assert worker_limits(settings(), RUN, none).memory_bytes == 0


@pytest.mark.parametrize("sync", ["diloco", "distro"])
def test_what_a_run_is_said_to_need_is_what_its_processes_get(sync: SyncMode) -> None:
    """A limit of memory at the least of the run leaves the trainer's own needs to the trainer."""
    run = replace(RUN, sync=sync)
    needs = needs_of(run, trains_on_host=True, cache_bytes=0).memory
    given = worker_limits(settings(memory_max=needs), run, Gpus(SimulatedNvml([])))
    vectors = {"diloco": 4, "distro": 3}[sync]  # parameters, gradient, and moments or a momentum
    own = PROCESS_BYTES - DAEMON_BYTES + 4 * vectors * run.model.num_parameters
    assert given.memory_bytes == own


def test_a_share_of_the_card_is_turned_into_bytes() -> None:
    card = Gpus(SimulatedNvml([Card(memory_total_bytes=24 * GIB)]))
    assert worker_limits(settings(gpu_memory="50%"), RUN, card).gpu_memory_bytes == 12 * GIB
    none = Gpus(SimulatedNvml([]))
    assert worker_limits(settings(gpu_memory="8GiB"), RUN, none).gpu_memory_bytes == 8 * GIB
    assert worker_limits(settings(gpu_memory="50%"), RUN, none).gpu_memory_bytes == 0


def test_the_owner_is_told_the_limits_before_joining() -> None:
    assert describe_limits(settings()).startswith("none: line, processor and card")
    told = describe_limits(settings(up_limit=("10",), memory_max=8 * 10**9, gpu_memory="50%"))
    assert told.startswith("10 Mbit/s up, 8.0 GB of memory, 50% of the card's memory; ")
    assert "gossamer limits set" in told
