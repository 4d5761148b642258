"""The components of one node in one run, as `app.assembly` puts them together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gossamer.node.base.disk_health import DiskHealth
from gossamer.node.base.threads import RunInThread
from gossamer.node.machine.speed import SpeedMeter
from gossamer.node.machine.trainer_client import Trainer
from gossamer.node.network.identity import Identity
from gossamer.node.network.transport import Transport
from gossamer.node.peers.chain_sync import ChainSync
from gossamer.node.peers.swarm import Swarm
from gossamer.node.storage.committed import CommittedState
from gossamer.node.storage.work import Work
from gossamer.node.telemetry.metrics import Metrics
from gossamer.node.training.data_feed import DataFeed
from gossamer.protocol.ids import PeerId
from gossamer.protocol.manifest import Manifest


@dataclass(frozen=True)
class NodeContext:
    """The components that `Participant` hands out: each class below it takes only those it uses."""

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
    """Files of the held-out shards; empty until all of them are on this disk."""

    @property
    def me(self) -> PeerId:
        """This node's peer id."""
        return self.identity.peer_id
