"""Prometheus metrics of one node: prefix `gossamer_`, base units, no peer ids in labels.

The values of a label are a fixed set (`metric_labels`). A metric is made in the `_add_` of its
subject. Each node has its own registry, so that several nodes fit in one process.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version

import prometheus_client
from prometheus_client import CollectorRegistry

from gossamer.node.base.pausing import PAUSE_REASONS
from gossamer.node.telemetry import metric_labels
from gossamer.node.telemetry.gpus import GpuCollector, Gpus
from gossamer.node.telemetry.loss_history import Heldout
from gossamer.node.telemetry.metric_families import OTHER, Registrar
from gossamer.node.telemetry.status import (
    OUTCOMES,
    PHASES,
    DataStatus,
    Outcome,
    OuterStep,
    WorkStatus,
)
from gossamer.node.telemetry.use_metrics import UseMetrics
from gossamer.protocol.wire.statements import Phase

_STEP_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_ROUND_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200)
_RTT_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 5)

_PACKAGES_MAX = 8
"""Versions that are remembered: those of the node and of torch are asked for."""


class Metrics:
    """All metrics of a node; the registry is what `/metrics` shows.

    It has one attribute for each metric.
    """

    def __init__(self, gpus: Gpus | None = None) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry(auto_describe=False)
        add = Registrar(registry)
        self._add_build_info(add)
        self._add_node(add)
        self._add_network(add)
        self._add_work(add)
        self._add_steps(add)
        self._add_losses(add)
        self._add_rounds(add)
        self._add_data(add)
        self._add_storage(add)
        self.uses = UseMetrics(add)
        """The owner's limits beside the use."""
        self._add_offences(add)
        prometheus_client.ProcessCollector(namespace="gossamer", registry=registry)
        if gpus is not None:
            registry.register(GpuCollector(gpus))

    def _add_build_info(self, add: Registrar) -> None:
        build = add.gauge(
            "build_info", "Always 1; the labels say what runs.", ["version", "python", "torch"]
        )
        self._run = add.gauge(
            "run_info",
            "Always 1; the label has name and id of the run that the node is in.",
            ["run"],
        )
        build.labels(
            package_version("gossamer"), platform.python_version(), package_version("torch")
        ).set(1)

    def set_run(self, run: str) -> None:
        """Sets the run of this node. Its text tells it from other runs, also from those of one
        name."""
        self._run.clear()
        self._run.labels(run).set(1)

    def _add_node(self, add: Registrar) -> None:
        self._phase = add.gauges("phase", "1 for the phase that the node is in.", "phase", PHASES)
        self._paused = add.gauges("paused", "1 if paused for this reason.", "reason", PAUSE_REASONS)
        self.waiting_for_peers = add.gauge(
            "waiting_for_peers", "1 while the run's first round waits for other peers."
        )
        self.restarts = add.counters(
            "restarts_total",
            "Restarts of the trainer process.",
            "reason",
            metric_labels.RESTART_REASONS,
        )
        self.stalled_seconds = add.counter(
            "stalled_seconds_total",
            "Time for which this process did not run: stopped, suspended or starved.",
        )

    def _add_network(self, add: Registrar) -> None:
        self.relayed_bytes = add.counter(
            "relayed_bytes_total", "Payload bytes carried between other peers."
        )
        self.handshakes = add.counters(
            "handshakes_total",
            "Connections of others that never came to a proof of their key: begun and not finished,"
            " or turned away because many were not.",
            "outcome",
            metric_labels.HANDSHAKE_OUTCOMES,
        )
        self.peers = add.gauges("peers", "Connected peers.", "path", metric_labels.PEER_PATHS)
        self._network_bytes = add.counter(
            "network_bytes_total", "Payload bytes exchanged with peers.", ["direction", "purpose"]
        )
        self._traffic_seen: dict[tuple[str, str], int] = {}
        for direction in ("sent", "received"):
            for purpose in (*metric_labels.PURPOSES, OTHER):
                self._network_bytes.labels(direction, purpose)
        self.dials = add.counters(
            "dials_total", "Attempts to connect to a peer.", "outcome", metric_labels.DIAL_OUTCOMES
        )
        self.peer_rtt_seconds = add.histogram(
            "peer_rtt_seconds", "Round trips to peers.", _RTT_BUCKETS
        )

    def _add_work(self, add: Registrar) -> None:
        self.tokens = add.counter("tokens_total", "Tokens trained on, committed or not.")
        self.tokens_committed = add.counters(
            "tokens_committed_total",
            "Own tokens in committed rounds: in that for which they were trained, or a later one.",
            "timing",
            metric_labels.COMMIT_TIMINGS,
        )
        self.tokens_reclaimed = add.counters(
            "tokens_reclaimed_total",
            "Own tokens of rounds that are no longer in the chain.",
            "timing",
            metric_labels.COMMIT_TIMINGS,
        )
        self._work = add.gauges(
            "work_tokens",
            "All tokens that this node trained in the run, by their fate.",
            "fate",
            metric_labels.WORK_FATES,
        )
        self.late_work_tokens = add.gauge(
            "late_work_tokens",
            "Those of the carried tokens that missed their round and wait for a later one.",
        )
        self.tokens_dropped = add.counters(
            "tokens_dropped_total",
            "Own tokens that no round will contain.",
            "reason",
            metric_labels.DROP_REASONS,
        )

    def _add_steps(self, add: Registrar) -> None:
        self.inner_steps = add.counter("inner_steps_total", "Inner steps done.")
        self.nonfinite_steps = add.counter(
            "nonfinite_steps_total",
            "Inner steps skipped for a loss, gradient or momentum out of range.",
        )
        self.last_step_timestamp_seconds = add.gauge(
            "last_step_timestamp_seconds", "When the newest inner step ended; 0 before the first."
        )
        self.step_duration_seconds = add.histogram(
            "step_duration_seconds", "Time of an inner step.", _STEP_BUCKETS
        )
        self.step_part_seconds = add.counters(
            "step_part_seconds_total",
            "Time of inner steps by what it went into; handover: taking over states, and handing "
            "over the work, between them. None where the device's clock is not read.",
            "part",
            metric_labels.STEP_PARTS,
        )
        self.trainer_waiting_seconds = add.counter(
            "trainer_waiting_seconds_total",
            "Time in which the trainer waited for its daemon.",
        )
        self.operations_per_token = add.gauge(
            "operations_per_token",
            "Floating point operations that training takes for a token, without what is computed "
            "twice. Times tokens a second, by those that the device can do: its utilisation (MFU).",
        )
        self.mfu_ratio = add.gauge(
            "mfu_ratio",
            "Part of the card's operations that training uses (MFU), while it trains; NaN if its "
            "maker's figure is not known here.",
        )
        self.mfu_ratio.set(math.nan)
        self.trainer_device_memory_bytes = add.gauge(
            "trainer_device_memory_bytes",
            "The most memory of the card that the trainer's tensors took in the newest inner step.",
        )

    def _add_losses(self, add: Registrar) -> None:
        self.loss = add.gauge("loss", "Training loss of the newest inner step, nats per token.")
        self.heldout_loss = add.gauge(
            "heldout_loss", "Loss of the newest evaluated state on held-out text, nats per token."
        )
        self.heldout_round = add.gauge(
            "heldout_round", "The round after which that state is; NaN while there is none."
        )
        self.text_loss = add.gauge(
            "text_loss",
            "Training loss of the newest inner step in bits for each byte of text; NaN if the "
            "tokenizer's tokens have no certain length.",
        )
        self.heldout_text_loss = add.gauge(
            "heldout_text_loss", "The newest held-out loss in bits for each byte of text."
        )
        self.gradient_norm = add.gauge(
            "gradient_norm", "Norm of the newest inner step's gradient, before clipping."
        )
        losses = (self.loss, self.heldout_loss, self.text_loss, self.heldout_text_loss)
        for unknown in (*losses, self.heldout_round, self.gradient_norm):
            unknown.set(math.nan)

    def _add_rounds(self, add: Registrar) -> None:
        self.rounds = add.counters("rounds_total", "Rounds that ended here.", "outcome", OUTCOMES)
        round_duration = add.histogram(
            "round_duration_seconds",
            "Time spent in each phase of a round.",
            _ROUND_BUCKETS,
            ["phase"],
        )
        self._round_duration = {
            phase: round_duration.labels(phase) for phase in metric_labels.ROUND_PHASES
        }
        self.round_group_size = add.gauge("round_group_size", "Members of the newest ring.")
        self.round = add.gauge("round", "The newest committed round.")
        self.swarm_tokens = add.gauge("swarm_tokens", "Tokens of all peers in the committed chain.")
        self._outer_learning_rate = add.gauge(
            "outer_learning_rate", "Value that the newest round chose; NaN if it chose none."
        )
        self._outer_momentum = add.gauge(
            "outer_momentum", "Value that the newest round chose; NaN if it chose none."
        )
        self._outer_average_scale = add.gauge(
            "outer_average_scale",
            "Factor of the newest average: below 1 if it was longer than its members' work.",
        )
        self.set_outer_step(None)
        self.rounds_behind = add.gauge(
            "rounds_behind", "Rounds that the swarm is ahead of this node."
        )
        self.last_round_success_timestamp_seconds = add.gauge(
            "last_round_success_timestamp_seconds",
            "When a round with this node in it was last committed; 0 before the first.",
        )
        self.audits = add.counters(
            "audits_total",
            "Audits that this node made of others' work or sums.",
            "verdict",
            metric_labels.VERDICTS,
        )
        self.poor_work = add.counter(
            "poor_work_total",
            "Members that two of three auditors found to have done poor work, or that this node "
            "found at fault for a sum.",
        )
        self.poor_members = add.counter(
            "poor_members_total", "Times that this node let a member sit out for its work or sums."
        )
        self.ring_skips = add.counters(
            "ring_skips_total",
            "Members that this node skipped in a ring.",
            "reason",
            metric_labels.SKIP_REASONS,
        )

    def _add_data(self, add: Registrar) -> None:
        self._data_epochs = add.gauge(
            "data_epochs",
            "Epochs of the data that the committed chain has consumed, or of its own text that "
            "this node has trained on.",
        )
        self._data_shards = add.gauge("data_shards", "Shards of one epoch.")
        self._data_shards_consumed = add.gauge(
            "data_shards_consumed", "Shards of the present epoch that are consumed to their end."
        )

    def _add_storage(self, add: Registrar) -> None:
        self.blocks = add.gauges(
            "blocks", "Blocks of state and data.", "state", metric_labels.BLOCK_STATES
        )
        self.block_verify_failures = add.counter(
            "block_verify_failures_total",
            "Blocks from disk or peers that did not match their digest.",
        )
        self.disk_used_bytes = add.gauges(
            "disk_used_bytes",
            "Disk in use: all blocks, those of them that are pinned, and all other files.",
            "kind",
            metric_labels.DISK_KINDS,
        )
        self.disk_quota_bytes = add.gauge(
            "disk_quota_bytes",
            "Limit of the blocks; pinned ones, such as the newest states, stay beyond it.",
        )
        self.checkpoint_last_success_timestamp_seconds = add.gauge(
            "checkpoint_last_success_timestamp_seconds",
            "When the state last reached the disk; 0 before the first time.",
        )

    def _add_offences(self, add: Registrar) -> None:
        self.offences = add.counters(
            "offences_total",
            "Violations of the protocol by peers.",
            "reason",
            metric_labels.OFFENCE_REASONS,
        )
        self.bans = add.counters(
            "bans_total",
            "Peers banned for a while, by the reason of their last offence.",
            "reason",
            metric_labels.OFFENCE_REASONS,
        )
        self.peers_banned = add.gauge("peers_banned", "Peers that are banned now.")

    def set_phase(self, phase: Phase) -> None:
        self._phase.set_only(phase)

    def set_paused(self, reason: str | None) -> None:
        """Sets the reason of a pause; None means that the node is not paused."""
        self._paused.set_only(reason)

    def set_work(self, work: WorkStatus) -> None:
        for fate in metric_labels.WORK_FATES:
            self._work.set(fate, getattr(work, fate))

    def set_data(self, data: DataStatus) -> None:
        self._data_epochs.set(data.epoch + data.tokens_consumed / data.num_tokens)
        self._data_shards.set(data.num_shards)
        self._data_shards_consumed.set(data.shards_consumed)

    def set_outer_step(self, step: OuterStep | None) -> None:
        self._outer_learning_rate.set(math.nan if step is None else step.learning_rate)
        self._outer_momentum.set(math.nan if step is None else step.momentum)
        self._outer_average_scale.set(math.nan if step is None else step.average_scale)

    def set_heldout(self, heldout: Heldout | None) -> None:
        """Sets the newest evaluation; None if none is of a state of this node's chain."""
        bits = None if heldout is None else heldout.bits_per_byte
        self.heldout_loss.set(math.nan if heldout is None else heldout.loss)
        self.heldout_text_loss.set(math.nan if bits is None else bits)
        self.heldout_round.set(math.nan if heldout is None else heldout.round)

    def observe_round_phase(self, phase: str, seconds: float) -> None:
        """Adds the time of a phase of a round, which is one of `metric_labels.ROUND_PHASES`."""
        self._round_duration[phase].observe(seconds)

    def end_round(self, outcome: Outcome, group_size: int) -> None:
        self.rounds.add(outcome)
        self.round_group_size.set(group_size)
        if outcome == "committed":
            self.last_round_success_timestamp_seconds.set_to_current_time()

    def set_traffic(self, traffic: Mapping[str, tuple[int, int]]) -> None:
        """Adds the growth of a transport's totals: bytes (sent, received) by protocol."""
        for protocol, totals in sorted(traffic.items()):
            name = protocol.split("/")[2] if protocol.startswith("/gossamer/") else protocol
            purpose = name if name in metric_labels.PURPOSES else OTHER
            for direction, total in zip(("sent", "received"), totals, strict=True):
                seen = self._traffic_seen.get((protocol, direction), 0)
                if total > seen:
                    self._network_bytes.labels(direction, purpose).inc(total - seen)
                    self._traffic_seen[protocol, direction] = total


@lru_cache(_PACKAGES_MAX)
def package_version(package: str) -> str:
    """Returns the version of a package that was installed when it was first asked for, without
    importing it, or `none`. Each status has it, and to read it takes half the time of a status."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
