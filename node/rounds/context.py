"""What the parts of the loop share: the node's components, its orders, and how far it has come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from gossamer.node.base.disk_health import DiskHealth
from gossamer.node.base.threads import RunInThread
from gossamer.node.machine.speed import SpeedMeter
from gossamer.node.machine.trainer_client import Trainer
from gossamer.node.network.identity import Identity
from gossamer.node.network.transport import Transport
from gossamer.node.peers.chain_sync import ChainSync
from gossamer.node.peers.swarm import Swarm
from gossamer.node.rounds.data_feed import DataFeed
from gossamer.node.storage.committed import CommittedState
from gossamer.node.storage.work import Work
from gossamer.node.telemetry.metrics import Metrics
from gossamer.node.telemetry.status import LastRound, LossHistory
from gossamer.protocol.ids import PeerId
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.wire.statements import Phase


@dataclass(frozen=True)
class NodeContext:
    """The components of one node in one run."""

    manifest: Manifest
    identity: Identity
    transport: Transport
    committed: CommittedState
    chain_sync: ChainSync
    trainer: Trainer
    feed: DataFeed
    swarm: Swarm
    work: Work
    metrics: Metrics
    run_in_thread: RunInThread
    speed: SpeedMeter
    health: DiskHealth
    heldout_paths: Callable[[], list[str]]
    """Files of the held-out shards, none while they are not all here."""

    @property
    def me(self) -> PeerId:
        return self.identity.peer_id


class Orders:
    """What the node was told to do, and the bell that wakes whoever waits for news."""

    def __init__(self) -> None:
        self.pause = False
        self.leave = False
        self._news = trio.Event()

    def notify(self) -> None:
        """Something happened: whoever waits looks again."""
        self._news.set()
        self._news = trio.Event()

    async def wait(self, seconds: float | None = None) -> None:
        """Returns at the next news, or after so long."""
        with trio.move_on_after(float("inf") if seconds is None else seconds):
            await self._news.wait()


@dataclass
class Progress:
    """How far the node has come, for status and announcements."""

    phase: Phase = "joining"
    problem: str | None = None
    paused_reason: str | None = None
    """`user`, or `disk`: the swarm cannot be followed because the disk takes nothing."""
    inner_step: int = 0
    inner_steps: int = 0
    loss: float | None = None
    heldout_loss: float | None = None
    last_round: LastRound | None = None
    history: LossHistory = field(default_factory=LossHistory)
