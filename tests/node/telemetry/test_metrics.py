import math
import shutil
import subprocess

import pytest
from msgspec.structs import replace
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gossamer.node.machine.card_rates import peak_operations
from gossamer.node.machine.speed import SpeedMeter
from gossamer.node.telemetry import metrics
from gossamer.node.telemetry.gpus import Gpus
from gossamer.node.telemetry.metrics import Metrics
from gossamer.node.telemetry.status import DataStatus, OuterStep, WorkStatus
from gossamer.trainer.ipc import messages
from gossamer.trainer.ipc.measures import StepTimes


def sample(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"gossamer_{name}", labels)


def test_the_set_of_metrics() -> None:
    text = generate_latest(Metrics().registry).decode()
    names = {family.name for family in text_string_to_metric_families(text)}
    # Families of counters are listed without their _total.
    expected = [
        "build_info",
        "phase",
        "paused",
        "restarts",
        "peers",
        "network_bytes",
        "dials",
        "peer_rtt_seconds",
        "inner_steps",
        "tokens",
        "tokens_committed",
        "tokens_reclaimed",
        "tokens_dropped",
        "work_tokens",
        "late_work_tokens",
        "swarm_tokens",
        "data_epochs",
        "data_shards",
        "data_shards_consumed",
        "step_duration_seconds",
        "trainer_waiting_seconds",
        "loss",
        "heldout_loss",
        "heldout_round",
        "gradient_norm",
        "operations_per_token",
        "nonfinite_steps",
        "last_step_timestamp_seconds",
        "rounds",
        "round_duration_seconds",
        "round_group_size",
        "outer_learning_rate",
        "outer_momentum",
        "outer_average_scale",
        "round",
        "rounds_behind",
        "last_round_success_timestamp_seconds",
        "ring_skips",
        "blocks",
        "block_verify_failures",
        "disk_used_bytes",
        "disk_quota_bytes",
        "checkpoint_last_success_timestamp_seconds",
        "offences",
    ]
    assert {f"gossamer_{name}" for name in expected} <= names
    assert all(name.startswith("gossamer_") for name in names)
    assert "_created" not in text


def test_promtool_finds_nothing_to_mend() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: apt install prometheus)")
    text = generate_latest(Metrics(Gpus()).registry)
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


def test_labels_are_there_before_anything_happens() -> None:
    metrics = Metrics()
    assert sample(metrics, "rounds_total", outcome="committed") == 0
    assert sample(metrics, "offences_total", reason="forged") == 0
    assert sample(metrics, "network_bytes_total", direction="sent", purpose="ring") == 0
    assert sample(metrics, "round_duration_seconds_count", phase="averaging") == 0
    assert sample(metrics, "phase", phase="joining") == 0
    assert math.isnan(sample(metrics, "loss") or 0.0)


def test_a_step_shows_the_norm_of_its_gradient() -> None:
    metrics = Metrics()
    assert math.isnan(sample(metrics, "gradient_norm") or 0.0)
    step = messages.Step(
        round=1,
        step=1,
        loss=2.0,
        tokens=8,
        seconds=0.5,
        gradient_norm=1.5,
        learning_rate=1e-3,
        skipped=False,
    )
    SpeedMeter(metrics).step(step)
    assert sample(metrics, "gradient_norm") == 1.5
    assert math.isnan(sample(metrics, "text_loss") or 0.0), "not known"
    assert math.isnan(sample(metrics, "mfu_ratio") or 0.0)
    assert sample(metrics, "step_part_seconds_total", part="forward") == 0


def test_a_step_shows_where_its_time_went_and_how_well_the_card_was_used() -> None:
    metrics = Metrics()
    meter = SpeedMeter(metrics, operations_per_token=1e9)
    meter.configured(
        messages.Configured(
            device="cuda:0", device_name="NVIDIA H100 80GB HBM3",
            precision="bf16",
        )
    )  # fmt: skip
    step = messages.Step(
        round=1, step=1, loss=2.0, tokens=494_500, seconds=1.0, gradient_norm=1.5,
        learning_rate=1e-3, skipped=False, text_bytes=989_000, device_memory_bytes=7,
        times=StepTimes(data=0.1, forward=0.3, backward=0.5, optimizer=0.05, handover=2.0),
    )  # fmt: skip
    meter.step(step)
    meter.step(step)
    assert meter.mfu == pytest.approx(0.5)
    assert sample(metrics, "mfu_ratio") == pytest.approx(0.5)
    assert sample(metrics, "text_loss") == pytest.approx(1 / math.log(2))
    assert sample(metrics, "trainer_device_memory_bytes") == 7
    assert sample(metrics, "step_part_seconds_total", part="backward") == 1.0
    assert sample(metrics, "step_part_seconds_total", part="handover") == 4.0
    assert meter.times == step.times


def test_the_speed_of_a_device_that_is_gone_is_not_shown_for_another_one() -> None:
    """A card that fails, and whose node goes on with the processor."""
    metrics = Metrics()
    meter = SpeedMeter(metrics, operations_per_token=1e9)
    card = messages.Configured(
        device="cuda:0", device_name="NVIDIA H100 80GB HBM3", precision="bf16"
    )
    step = messages.Step(
        round=1, step=1, loss=2.0, tokens=494_500, seconds=1.0, gradient_norm=1.5,
        learning_rate=1e-3, skipped=False,
    )  # fmt: skip
    meter.configured(card)
    meter.step(step)
    meter.configured(card)  # the process was started again
    assert meter.tokens_per_second == 494_500
    meter.configured(messages.Configured(device="cpu", device_name="EPYC", precision="fp32"))
    assert meter.tokens_per_second is None
    assert math.isnan(sample(metrics, "mfu_ratio") or 0.0)
    meter.step(replace(step, tokens=100))
    assert meter.tokens_per_second == 100


@pytest.mark.parametrize(
    ("name", "precision", "rate"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989e12),
        ("NVIDIA H100 PCIe", "bf16", 756e12),
        ("NVIDIA A100-SXM4-80GB", "bf16", 312e12),
        ("NVIDIA GeForce RTX 4090", "bf16", 165e12),
        ("NVIDIA GeForce RTX 4090 D", "bf16", None),
        ("NVIDIA GeForce RTX 3080 Ti", "bf16", None),
        ("NVIDIA GeForce RTX 4080 Laptop GPU", "bf16", None),
        ("Tesla T4", "fp16", 65e12),
        ("NVIDIA L40S", "bf16", 362e12),
        ("NVIDIA L40", "bf16", None),
        ("NVIDIA H100 80GB HBM3", "fp32", None),
        ("AMD EPYC 9654", "bf16", None),
        ("2 x NVIDIA A10", "bf16", 250e12),
        ("NVIDIA A10, Tesla T4", "fp16", 190e12),
        ("3 x Tesla T4, 2 x NVIDIA A10", "fp16", 445e12),
        ("NVIDIA A10, Other", "bf16", None),
    ],
)
def test_utilisation_is_told_only_where_the_makers_figure_is_known(
    name: str, precision: str, rate: float | None
) -> None:
    assert peak_operations(name, precision) == rate


def test_build_info_names_the_versions_without_importing_torch() -> None:
    (family,) = [
        family for family in Metrics().registry.collect() if family.name == "gossamer_build_info"
    ]
    labels = family.samples[0].labels
    assert set(labels) == {"version", "python", "torch"}
    assert labels["torch"][0].isdigit()


def test_what_does_not_fit_is_counted_as_other() -> None:
    metrics = Metrics()
    metrics.offences.add("forged")
    metrics.offences.add("12D3KooWstranger", 2)
    assert sample(metrics, "offences_total", reason="forged") == 1
    assert sample(metrics, "offences_total", reason="other") == 2
    assert sample(metrics, "offences_total", reason="12D3KooWstranger") is None


def test_one_phase_at_a_time() -> None:
    metrics = Metrics()
    metrics.set_phase("training")
    metrics.set_phase("averaging")
    assert sample(metrics, "phase", phase="training") == 0
    assert sample(metrics, "phase", phase="averaging") == 1
    metrics.set_paused("user")
    assert sample(metrics, "paused", reason="user") == 1
    metrics.set_paused(None)
    assert sample(metrics, "paused", reason="user") == 0


def test_traffic_is_taken_over_from_totals() -> None:
    metrics = Metrics()
    metrics.set_traffic({"/gossamer/ring/2": (100, 50), "gossip": (7, 8), "/ipfs/id/1": (1, 2)})
    metrics.set_traffic({"/gossamer/ring/2": (130, 50), "gossip": (7, 9), "/ipfs/id/1": (1, 2)})
    assert sample(metrics, "network_bytes_total", direction="sent", purpose="ring") == 130
    assert sample(metrics, "network_bytes_total", direction="received", purpose="ring") == 50
    assert sample(metrics, "network_bytes_total", direction="received", purpose="gossip") == 9
    assert sample(metrics, "network_bytes_total", direction="received", purpose="other") == 2


def test_where_the_tokens_are() -> None:
    metrics = Metrics()
    assert sample(metrics, "work_tokens", fate="lost") == 0
    metrics.set_work(WorkStatus(trained=10, committed_on_time=4, committed_late=3, carried=3))
    metrics.set_work(WorkStatus(trained=10, committed_late=7, lost=1, dropped=2))
    fates = ("committed_on_time", "committed_late", "dropped", "lost", "carried")
    assert [sample(metrics, "work_tokens", fate=fate) for fate in fates] == [0, 7, 2, 1, 0]


def test_where_the_chain_stands_in_the_data() -> None:
    metrics = Metrics()
    metrics.set_data(
        DataStatus(epoch=2, tokens_consumed=25, num_tokens=100, shards_consumed=1, num_shards=4)
    )
    assert sample(metrics, "data_epochs") == 2.25
    assert sample(metrics, "data_shards") == 4
    assert sample(metrics, "data_shards_consumed") == 1


def test_the_outer_step_that_a_round_chose() -> None:
    metrics = Metrics()
    for name in ("outer_learning_rate", "outer_momentum", "outer_average_scale"):
        assert math.isnan(sample(metrics, name) or 0.0)
    metrics.set_outer_step(OuterStep(learning_rate=0.8, momentum=0.0, average_scale=0.5))
    assert sample(metrics, "outer_average_scale") == 0.5
    assert (sample(metrics, "outer_learning_rate"), sample(metrics, "outer_momentum")) == (0.8, 0.0)
    metrics.set_outer_step(None)
    assert math.isnan(sample(metrics, "outer_momentum") or 0.0)


def test_the_end_of_a_round() -> None:
    metrics = Metrics()
    metrics.observe_round_phase("averaging", 2.0)
    metrics.end_round("missed", 4)
    assert sample(metrics, "last_round_success_timestamp_seconds") == 0
    metrics.end_round("committed", 3)
    assert sample(metrics, "rounds_total", outcome="committed") == 1
    assert sample(metrics, "rounds_total", outcome="missed") == 1
    assert sample(metrics, "round_group_size") == 3
    assert (sample(metrics, "last_round_success_timestamp_seconds") or 0) > 0
    assert sample(metrics, "round_duration_seconds_sum", phase="averaging") == 2.0


def test_two_nodes_in_one_process_do_not_share_metrics() -> None:
    first, second = Metrics(), Metrics()
    first.inner_steps.inc()
    assert sample(second, "inner_steps_total") == 0


def test_limits_are_shown_beside_their_use() -> None:
    metrics = Metrics()
    value = metrics.registry.get_sample_value
    metrics.uses.set_limits({"upload": 8.0, "memory": 4e9})
    assert value("gossamer_limit_memory_bytes") == 4e9
    metrics.uses.set_limits({"upload": 8.0, "memory": None})
    assert value("gossamer_limit_memory_bytes") == math.inf
    assert value("gossamer_line_limit_bytes_per_second", {"direction": "sent"}) == 1e6
    assert value("gossamer_line_limit_bytes_per_second", {"direction": "received"}) == math.inf
    metrics.uses.set_moved(3000, 5000)
    metrics.uses.set_moved(4000, 5000)
    assert value("gossamer_line_bytes_total", {"direction": "sent"}) == 4000
    assert value("gossamer_line_bytes_total", {"direction": "received"}) == 5000
    metrics.uses.set_used(1e9, 6e8, 2.5)
    metrics.uses.set_used(1e9, 7e8, 0.5)
    assert value("gossamer_memory_used_bytes") == 1e9
    assert value("gossamer_trainer_resident_memory_bytes") == 7e8
    assert value("gossamer_trainer_cpu_seconds_total") == 3.0


def test_the_version_of_a_package_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []

    def version(package: str) -> str:
        reads.append(package)
        return "1.2"

    monkeypatch.setattr(metrics, "version", version)
    name = "a package that no other test asks for"
    assert [metrics.package_version(name) for _ in range(3)] == ["1.2"] * 3
    assert reads == [name]
