"""Prometheus metrics of one node: prefix `gossamer_`, base units, no peer ids in labels.

Every label's values are a fixed set that is there from the start, so that a rate over "has not
happened yet" is 0 and not absent; whatever does not fit is counted as `other`, so that no peer can
make labels grow. A registry of its own, so that several nodes fit in one process.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gossamer.node.telemetry.gpus import GpuCollector, Gpus
from gossamer.node.telemetry.status import (
    OUTCOMES,
    PHASES,
    DataStatus,
    Outcome,
    OuterStep,
    WorkStatus,
)
from gossamer.protocol.wire.statements import Phase

OTHER = "other"
PAUSE_REASONS = ("user", "disk")
RESTART_REASONS = ("failed", "killed", "hung")
PEER_PATHS = ("direct", "relayed")
DIAL_OUTCOMES = ("connected", "unreachable", "timeout", "wrong_peer")
PURPOSES = ("gossip", "ring", "blocks", "chain", "manifest", "peers")
COMMIT_TIMINGS = ("on_time", "late")
WORK_FATES = ("committed_on_time", "committed_late", "dropped", "lost", "carried")
DROP_REASONS = ("stale", "nonfinite", "abandoned")
ROUND_PHASES = ("training", "gathering", "averaging", "committing")
SKIP_REASONS = (
    "reset",
    "timeout",
    "slow",
    "silent",
    "stalled",
    "restarted",
    "follows",
    "malformed",
)
"""First words of the reasons that `Removed` gives."""
BLOCK_STATES = ("stored", "pinned")
DISK_KINDS = ("blocks",)
OFFENCE_REASONS = (
    "protocol",
    "malformed",
    "oversized",
    "forged",
    "version",
    "implausible",
    "flood",
    "unproven",
)
"""`reason` of `RemoteProtocolError` and its kinds."""

_STEP_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_ROUND_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200)
_RTT_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 5)


class CounterFamily:
    """A counter with one label of known values."""

    def __init__(
        self, registry: CollectorRegistry, name: str, text: str, label: str, values: tuple[str, ...]
    ) -> None:
        counter = Counter(name, text, [label], namespace="gossamer", registry=registry)
        self._children = {value: counter.labels(value) for value in (*values, OTHER)}

    def add(self, value: str, amount: float = 1) -> None:
        """Counts under the label's value, or under `other` where it is not a known one."""
        self._children.get(value, self._children[OTHER]).inc(amount)


class GaugeFamily:
    """A gauge with one label of known values."""

    def __init__(
        self, registry: CollectorRegistry, name: str, text: str, label: str, values: tuple[str, ...]
    ) -> None:
        gauge = Gauge(name, text, [label], namespace="gossamer", registry=registry)
        self._children = {value: gauge.labels(value) for value in values}

    def set(self, value: str, number: float) -> None:
        """KeyError for a value that is not a known one: what is measured here is our own."""
        self._children[value].set(number)

    def set_only(self, value: str | None) -> None:
        """1 for this value, 0 for all others. None: 0 for all."""
        for name, child in self._children.items():
            child.set(1 if name == value else 0)


class Metrics:
    """All metrics of a node; the registry is what `/metrics` shows."""

    def __init__(self, gpus: Gpus | None = None) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry(auto_describe=False)

        def counter(name: str, text: str) -> Counter:
            return Counter(name, text, namespace="gossamer", registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, namespace="gossamer", registry=registry)

        def counters(name: str, text: str, label: str, values: tuple[str, ...]) -> CounterFamily:
            return CounterFamily(registry, name, text, label, values)

        def gauges(name: str, text: str, label: str, values: tuple[str, ...]) -> GaugeFamily:
            return GaugeFamily(registry, name, text, label, values)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, namespace="gossamer", registry=registry, buckets=buckets)

        build = Gauge(
            "build_info",
            "Always 1; the labels say what runs.",
            ["version", "python", "torch"],
            namespace="gossamer",
            registry=registry,
        )
        build.labels(
            package_version("gossamer"), platform.python_version(), package_version("torch")
        ).set(1)

        # The node itself.
        self._phase = gauges("phase", "1 for the phase that the node is in.", "phase", PHASES)
        self._paused = gauges("paused", "1 if paused for this reason.", "reason", PAUSE_REASONS)
        self.restarts = counters(
            "restarts_total", "Restarts of the trainer process.", "reason", RESTART_REASONS
        )
        self.stalled_seconds = counter(
            "stalled_seconds_total",
            "Time for which this process did not run: stopped, suspended or starved.",
        )
        # The network.
        self.peers = gauges("peers", "Connected peers.", "path", PEER_PATHS)
        self._network_bytes = Counter(
            "network_bytes_total",
            "Payload bytes exchanged with peers.",
            ["direction", "purpose"],
            namespace="gossamer",
            registry=registry,
        )
        self._traffic_seen: dict[tuple[str, str], int] = {}
        for direction in ("sent", "received"):
            for purpose in (*PURPOSES, OTHER):
                self._network_bytes.labels(direction, purpose)
        self.dials = counters(
            "dials_total", "Attempts to connect to a peer.", "outcome", DIAL_OUTCOMES
        )
        self.peer_rtt_seconds = histogram("peer_rtt_seconds", "Round trips to peers.", _RTT_BUCKETS)
        # Training.
        self.inner_steps = counter("inner_steps_total", "Inner steps done.")
        self.tokens = counter("tokens_total", "Tokens trained on, committed or not.")
        self.tokens_committed = counters(
            "tokens_committed_total",
            "Own tokens that a committed round took: that they were trained for, or a later one.",
            "timing",
            COMMIT_TIMINGS,
        )
        self.tokens_reclaimed = counters(
            "tokens_reclaimed_total",
            "Own tokens that a round had taken which is not in the chain after all.",
            "timing",
            COMMIT_TIMINGS,
        )
        self._work = gauges(
            "work_tokens",
            "All tokens that this node trained in the run, by what has become of them.",
            "fate",
            WORK_FATES,
        )
        self.tokens_dropped = counters(
            "tokens_dropped_total", "Own tokens that no round will take.", "reason", DROP_REASONS
        )
        self.step_duration_seconds = histogram(
            "step_duration_seconds", "Time of an inner step.", _STEP_BUCKETS
        )
        self.trainer_waiting_seconds = counter(
            "trainer_waiting_seconds_total",
            "Time in which the trainer had nothing to do until its daemon would go on.",
        )
        self.loss = gauge("loss", "Training loss of the newest inner step, nats per token.")
        self.heldout_loss = gauge(
            "heldout_loss", "Loss of the newest evaluated state on held-out text, nats per token."
        )
        self.loss.set(math.nan)
        self.heldout_loss.set(math.nan)
        self.nonfinite_steps = counter(
            "nonfinite_steps_total", "Inner steps skipped for a loss or gradient that is no number."
        )
        self.last_step_timestamp_seconds = gauge(
            "last_step_timestamp_seconds", "When the newest inner step ended; 0 before the first."
        )
        # Rounds.
        self.rounds = counters("rounds_total", "Rounds that ended here.", "outcome", OUTCOMES)
        round_duration = Histogram(
            "round_duration_seconds",
            "Time spent in each phase of a round.",
            ["phase"],
            namespace="gossamer",
            registry=registry,
            buckets=_ROUND_BUCKETS,
        )
        self._round_duration = {phase: round_duration.labels(phase) for phase in ROUND_PHASES}
        self.round_group_size = gauge("round_group_size", "Members of the newest ring.")
        self.round = gauge("round", "The newest committed round.")
        self.swarm_tokens = gauge("swarm_tokens", "Tokens of all peers in the committed chain.")
        self._outer_learning_rate = gauge(
            "outer_learning_rate", "Chosen by the newest round, NaN if it chose none."
        )
        self._outer_momentum = gauge(
            "outer_momentum", "Chosen by the newest round, NaN if it chose none."
        )
        self.set_outer_step(None)
        # Data.
        self._data_epochs = gauge(
            "data_epochs", "Epochs of the data that the committed chain has consumed."
        )
        self._data_shards = gauge("data_shards", "Shards of one epoch.")
        self._data_shards_consumed = gauge(
            "data_shards_consumed", "Shards of the present epoch that are consumed to their end."
        )
        self.rounds_behind = gauge("rounds_behind", "Rounds that the swarm is ahead of this node.")
        self.last_round_success_timestamp_seconds = gauge(
            "last_round_success_timestamp_seconds",
            "When a round with this node in it was last committed; 0 before the first.",
        )
        self.ring_skips = counters(
            "ring_skips_total", "Members that this node skipped in a ring.", "reason", SKIP_REASONS
        )
        # Blocks and disk.
        self.blocks = gauges("blocks", "Blocks of state and data.", "state", BLOCK_STATES)
        self.block_verify_failures = counter(
            "block_verify_failures_total",
            "Blocks, of disk or peers, that did not fit their digest.",
        )
        self.disk_used_bytes = gauges("disk_used_bytes", "Disk in use.", "kind", DISK_KINDS)
        self.disk_quota_bytes = gauge("disk_quota_bytes", "Limit of the data cache.")
        self.checkpoint_last_success_timestamp_seconds = gauge(
            "checkpoint_last_success_timestamp_seconds",
            "When the state last reached the disk; 0 before the first time.",
        )
        self.offences = counters(
            "offences_total", "What peers did against the protocol.", "reason", OFFENCE_REASONS
        )
        self.bans = counters(
            "bans_total",
            "Peers banned for a while, by what they did last.",
            "reason",
            OFFENCE_REASONS,
        )
        self.peers_banned = gauge("peers_banned", "Peers that are banned now.")
        prometheus_client.ProcessCollector(namespace="gossamer", registry=registry)
        if gpus is not None:
            registry.register(GpuCollector(gpus))

    def set_phase(self, phase: Phase) -> None:
        self._phase.set_only(phase)

    def set_paused(self, reason: str | None) -> None:
        """None: not paused."""
        self._paused.set_only(reason)

    def set_work(self, work: WorkStatus) -> None:
        for fate in WORK_FATES:
            self._work.set(fate, getattr(work, fate))

    def set_data(self, data: DataStatus) -> None:
        self._data_epochs.set(data.epoch + data.tokens_consumed / data.num_tokens)
        self._data_shards.set(data.num_shards)
        self._data_shards_consumed.set(data.shards_consumed)

    def set_outer_step(self, step: OuterStep | None) -> None:
        self._outer_learning_rate.set(math.nan if step is None else step.learning_rate)
        self._outer_momentum.set(math.nan if step is None else step.momentum)

    def observe_round_phase(self, phase: str, seconds: float) -> None:
        """`phase` is one of `ROUND_PHASES`."""
        self._round_duration[phase].observe(seconds)

    def end_round(self, outcome: Outcome, group_size: int) -> None:
        self.rounds.add(outcome)
        self.round_group_size.set(group_size)
        if outcome == "committed":
            self.last_round_success_timestamp_seconds.set_to_current_time()

    def set_traffic(self, traffic: Mapping[str, tuple[int, int]]) -> None:
        """Takes over a transport's totals: protocol id, or `gossip`, to (sent, received) bytes."""
        for protocol, totals in sorted(traffic.items()):
            name = protocol.split("/")[2] if protocol.startswith("/gossamer/") else protocol
            purpose = name if name in PURPOSES else OTHER
            for direction, total in zip(("sent", "received"), totals, strict=True):
                seen = self._traffic_seen.get((protocol, direction), 0)
                if total > seen:
                    self._network_bytes.labels(direction, purpose).inc(total - seen)
                    self._traffic_seen[protocol, direction] = total


def package_version(package: str) -> str:
    """The installed version, without importing the package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
