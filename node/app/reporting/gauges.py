"""The gauges that follow the node's state, and the counters that follow totals of its parts."""

from __future__ import annotations

import math
from collections import Counter

import trio

from gossamer.node.app.owner.limit_parts import DiskLimit
from gossamer.node.app.reporting.reporting import Reporter
from gossamer.node.base.ticks import sleep_to_tick
from gossamer.node.network.transport import ReachReport, Transport
from gossamer.node.peers.blocks.block_exchange import BlockService
from gossamer.node.rounds.participant import Participant
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.storage.disk_use import bytes_beside
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.telemetry.metric_labels import PEER_PATHS
from gossamer.protocol.ids import Digest

GAUGE_SECONDS = 10.0
"""More often than gauges are asked for (`deploy/`: every 15 s). Some of them look at each peer."""

DISK_SECONDS = 30.0
"""Time between two looks at the sizes of the state directory's files. They change with a round, and
there are a few hundred of them."""


class Gauges:
    """Keeps the gauges of one node up to date, and tells its disk limit what other files take."""

    def __init__(
        self,
        participant: Participant,
        state_dir: StateDir,
        store: BlockStore,
        blocks: BlockService,
        disk: DiskLimit,
        reporter: Reporter,
    ) -> None:
        self._node = participant.context
        self._progress = participant.progress
        self._state_dir = state_dir
        self._store = store
        self._blocks = blocks
        self._disk = disk
        self._reporter = reporter
        self._measured_seconds = -math.inf
        """Local time of the newest look at the files."""
        self._verify_failures = 0
        self._counted = ReachReport("unknown")
        """The transport's totals that the counters have."""
        self._newest_checkpoint: Digest | None = None

    async def run(self) -> None:
        """Updates the gauges every `GAUGE_SECONDS` until cancelled."""
        while True:
            if trio.current_time() >= self._measured_seconds + DISK_SECONDS:
                await self._measure_disk()
            self._follow()
            self._follow_transport(self._node.transport)
            self._follow_store()
            self._note_checkpoint()
            await sleep_to_tick(GAUGE_SECONDS)

    async def _measure_disk(self) -> None:
        root, blocks = self._state_dir.root, self._state_dir.blocks_path
        other_bytes = await self._node.run_in_thread(lambda: bytes_beside(root, blocks))
        self._node.metrics.disk_used_bytes.set("other", other_bytes)
        self._disk.measured(other_bytes)
        self._measured_seconds = trio.current_time()

    def _follow(self) -> None:
        node, metrics, reporter = self._node, self._node.metrics, self._reporter
        metrics.set_paused(self._progress.paused_reason)
        metrics.waiting_for_peers.set(self._progress.waits_for is not None)
        metrics.peers_banned.set(node.swarm.num_banned)
        metrics.rounds_behind.set(reporter.rounds_behind())
        metrics.swarm_tokens.set(node.committed.entry.tokens_total)
        metrics.set_data(reporter.data())
        metrics.set_outer_step(reporter.outer_step())
        metrics.set_heldout(self._progress.heldout)  # None, when its round has left the chain

    def _follow_transport(self, transport: Transport) -> None:
        metrics = self._node.metrics
        metrics.set_traffic(transport.traffic())
        paths: Counter[str] = Counter(
            path.kind for peer in transport.peers() if (path := transport.path(peer)) is not None
        )
        for kind in PEER_PATHS:
            metrics.peers.set(kind, paths[kind])
        for peer in transport.peers():
            seconds = transport.round_trip_seconds(peer)
            if seconds is not None:
                metrics.peer_rtt_seconds.observe(seconds)
        self._count_reach(transport.reach())

    def _count_reach(self, report: ReachReport) -> None:
        """Adds the growth of the transport's totals."""
        metrics, before = self._node.metrics, self._counted
        metrics.relayed_bytes.inc(report.carried_bytes - before.carried_bytes)
        metrics.handshakes.add("unfinished", report.num_unfinished - before.num_unfinished)
        metrics.handshakes.add("turned_away", report.num_turned_away - before.num_turned_away)
        self._counted = report

    def _follow_store(self) -> None:
        metrics, store = self._node.metrics, self._store
        metrics.blocks.set("stored", store.num_blocks())
        metrics.blocks.set("pinned", store.num_pinned())
        metrics.disk_quota_bytes.set(store.quota_bytes)
        metrics.disk_used_bytes.set("blocks", store.used_bytes())
        metrics.disk_used_bytes.set("pinned", store.pinned_bytes())
        failures = store.verify_failures + self._blocks.verify_failures
        metrics.block_verify_failures.inc(failures - self._verify_failures)
        self._verify_failures = failures

    def _note_checkpoint(self) -> None:
        checkpoints = self._node.committed.checkpoints
        newest = checkpoints[-1].head if checkpoints else None
        if newest is not None and newest != self._newest_checkpoint:
            self._newest_checkpoint = newest
            self._node.metrics.checkpoint_last_success_timestamp_seconds.set_to_current_time()
