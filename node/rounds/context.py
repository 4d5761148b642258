"""The components of one node in one run, as `app.assembly` puts them together, and its phase."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gossamer.node.base.awake_clock import AwakeClock
from gossamer.node.base.disk_health import DiskHealth
from gossamer.node.base.orders import Orders
from gossamer.node.base.pausing import PauseReason
from gossamer.node.base.rate_limit import NO_LIMITS, Limits
from gossamer.node.base.threads import RunInThread
from gossamer.node.heads.extensions import Extensions
from gossamer.node.heads.heads import AT_WORK
from gossamer.node.heads.rollbacks import Rollbacks
from gossamer.node.machine.speed import SpeedMeter
from gossamer.node.machine.trainer import Trainer
from gossamer.node.network.identity import Identity
from gossamer.node.network.transport import Transport
from gossamer.node.peers.chain_sync import ChainSync
from gossamer.node.peers.swarm import Swarm
from gossamer.node.rounds.model_samples import ModelSamples
from gossamer.node.storage.committed import CommittedState
from gossamer.node.storage.known_rounds import KnownRounds
from gossamer.node.storage.loss_file import LossFile
from gossamer.node.storage.work import Work
from gossamer.node.telemetry.metrics import Metrics
from gossamer.node.telemetry.progress import Progress
from gossamer.node.training.audit_data import AuditData
from gossamer.node.training.feed import Feed
from gossamer.node.training.more_data import AddedData
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.policy.head_choice import HeadChoice
from gossamer.protocol.wire.statements import Phase


@dataclass(frozen=True)
class NodeContext:
    """The components that `Participant` hands out: each class below it takes only those it uses.

    It has more than 12 attributes: each is a component.
    """

    manifest: Manifest
    identity: Identity
    transport: Transport
    committed: CommittedState
    chain_sync: ChainSync
    trainer: Trainer
    feed: Feed
    swarm: Swarm
    rounds: KnownRounds
    choice: HeadChoice
    rollbacks: Rollbacks
    extensions: Extensions
    added_data: AddedData
    work: Work
    metrics: Metrics
    run_in_thread: RunInThread
    speed: SpeedMeter
    health: DiskHealth
    awake: AwakeClock
    losses: LossFile
    samples: ModelSamples
    heldout_paths: Callable[[], list[str]]
    """Files of the held-out shards; empty until all of them are on this disk."""
    pinned_head: Digest | None = None
    """The head that this node's chain has to contain, from the link by which it joined."""
    audit_data: AuditData | None = None
    """The sequences of this node's audits; None in a run without audits."""
    limits: Limits = NO_LIMITS
    """The owner's limits of what all connections move."""

    @property
    def me(self) -> PeerId:
        """This node's peer id."""
        return self.identity.peer_id


class Phases:
    """Sets the node's phase and tells status, metrics and the swarm."""

    def __init__(self, progress: Progress, metrics: Metrics, swarm: Swarm, orders: Orders) -> None:
        self.progress = progress
        self._metrics = metrics
        self._swarm = swarm
        self._orders = orders

    def set(self, phase: Phase) -> None:
        """Sets a phase, announces it if it is new, and wakes the tasks that wait for news."""
        progress = self.progress
        if phase != "paused":
            progress.paused_reason = None
        if phase != progress.phase:
            before, progress.phase = progress.phase, phase
            self._metrics.set_phase(phase)
            # A phase that stays needs no announcement besides the regular ones. A loop that sets it
            # at every wake would answer each announcement heard with one of its own.
            if not (before in AT_WORK and phase in AT_WORK):
                # Those two say the same to a peer that waits for this node, or looks at its head.
                self._swarm.announce()
        self._orders.notify()

    def pause(self, reason: PauseReason) -> None:
        """Sets the phase `paused`, with the reason that status and metrics show."""
        self.progress.paused_reason = reason
        self.set("paused")
