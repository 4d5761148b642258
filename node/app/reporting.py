"""The node's state as `Status`, and the gauges that follow it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import tzinfo

import structlog
import trio

from gossamer.node.app.limit_parts import DiskLimit
from gossamer.node.app.owner_limits import OwnerLimits
from gossamer.node.base.pausing import resumes_at
from gossamer.node.base.ticks import sleep_to_tick
from gossamer.node.heads.missing_record import missing_record_text
from gossamer.node.network.transport import Path, ReachReport
from gossamer.node.peers.block_exchange import BlockService
from gossamer.node.rounds.auditing import AuditCount
from gossamer.node.rounds.participant import Participant
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.storage.chain_store import ChainStore
from gossamer.node.storage.disk_use import bytes_beside
from gossamer.node.storage.owner_files import MemberName, MemberNames, NamesFile
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.telemetry.metric_labels import PEER_PATHS
from gossamer.node.telemetry.metrics import package_version
from gossamer.node.telemetry.reach_text import reach_text
from gossamer.node.telemetry.status import (
    CapacityStatus,
    DataStatus,
    OuterStep,
    PauseStatus,
    PeerStatus,
    Status,
    iso_moment,
)
from gossamer.protocol.accounting.ledger import EpochProgress
from gossamer.protocol.accounting.run_data import RunData
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.policy.chain_checkpoint import signing_depth
from gossamer.protocol.policy.chain_summary import is_mark
from gossamer.protocol.policy.head_choice import UNDO_ROUNDS_MAX
from gossamer.protocol.wire.statements import Announce, Capacity

GAUGE_SECONDS = 10.0
"""More often than gauges are asked for (`deploy/`: every 15 s). Some of them look at each peer."""

DISK_SECONDS = 30.0
"""Time between two looks at the sizes of the state directory's files. They change with a round, and
there are a few hundred of them."""

SETTLED_ROUNDS = UNDO_ROUNDS_MAX
"""A head that so many rounds follow is not undone any more. Links name the newest of them that the
summary of a checkpoint keeps (`is_mark`): they lead into the run for as long as it lasts."""

log = structlog.get_logger("node")


class Reporter:
    """Reads the parts of a node, and keeps the gauges up to date."""

    def __init__(
        self,
        participant: Participant,
        store: BlockStore,
        blocks: BlockService,
        capacity: Callable[[], Capacity],
        state_dir: StateDir,
        zone: tzinfo | None = None,
        limits: OwnerLimits | None = None,
        disk_limit: DiskLimit | None = None,
        shown: MemberName = MemberName(),  # noqa: B008
        run_data: RunData | None = None,
        cutting: Callable[[], str] = str,
        put_out: Callable[[], str | None] = lambda: None,
    ) -> None:
        """
        Args:
            zone: of the times in the status; None means that of this machine.
            shown: the name and the team that the owner chose.
            run_data: all data of the run; None in a run where each peer has its own.
            cutting: says how far this node is with the rest of its corpus; nothing if it has none.
            put_out: says why the members do not take this node for one; None if they do.
        """
        self._shown = shown
        self._run_data = run_data
        self._cutting = cutting
        self._put_out = put_out
        node = participant.context
        self.names = MemberNames(
            NamesFile(state_dir.names_path, node.manifest.run_id),
            state_dir.health,
            node.run_in_thread,
        )
        self._participant = participant
        self._state_dir = state_dir
        self._zone = zone
        self._health = state_dir.health
        self._limits = limits
        self._disk_limit = disk_limit
        self._other_bytes = 0
        """Bytes of the state directory besides the blocks."""
        self._transport = participant.context.transport
        self._store = store
        self._blocks = blocks
        self._metrics = participant.context.metrics
        self._capacity = capacity
        self._started_seconds = trio.current_time()
        self._verify_failures = 0
        self._counted = ReachReport("unknown")
        """The transport's totals that the counters have."""
        self._newest_checkpoint: Digest | None = None

    def status(self) -> Status:
        """Returns the present status. It is called on the event loop for every request."""
        node, progress = self._participant.context, self._participant.progress
        holds = self._participant.holds
        is_paused = progress.paused_reason not in (None, "disk")
        entry = node.committed.entry
        settled = settled_head(node.committed.chain, entry.head)
        capacity = self._capacity()
        traffic = self._transport.traffic().values()
        addresses, reach, peers = (
            self._transport.addresses(),
            self._transport.reach(),
            self._peers(),
        )
        return Status(
            peer_id=self._transport.peer_id,
            run_id=node.manifest.run_id.hex(),
            run_name=node.manifest.name,
            admission=node.manifest.admission,
            name=self._shown.name,
            team=self._shown.team,
            version=package_version("gossamer"),
            addresses=tuple(addresses),
            reach=reach.reach,
            reach_text=reach_text(
                reach.reach, reach.num_confirmed, addresses[0] if addresses else "", peers
            ),
            phase=progress.phase,
            problem=self._problem(),
            put_out=self._put_out(),
            waits_for=progress.waits_for,
            paused_reason=progress.paused_reason,
            resumes_at=iso_moment(resumes_at(holds), self._zone) if is_paused else None,
            pauses=tuple(PauseStatus.of(hold, self._zone) for hold in holds),
            leaves_after_round=self._participant.leaves_after_round,
            round=entry.round,
            final_round=node.manifest.last_round,
            final_tokens=node.committed.end.final_tokens,
            head=entry.head.hex(),
            settled_head=settled.hex() if settled is not None else None,
            state_digest=entry.state_digest.hex(),
            rolled_back_to=node.rollbacks.newest_round,
            rollback_proposal=self._rollback_proposal(),
            rollback_withdrawn=node.rollbacks.withdrawn,
            rounds_behind=self._rounds_behind(),
            inner_step=progress.inner_step,
            inner_steps=progress.inner_steps,
            tokens_total=node.work.status.committed_on_time + node.work.status.committed_late,
            work=node.work.status,
            data=self._data(),
            swarm_tokens_total=entry.tokens_total,
            tokens_per_second=capacity.tokens_per_second or None,
            loss=progress.loss,
            heldout_loss=progress.heldout_loss,
            bits_per_byte=progress.bits_per_byte,
            heldout_bits_per_byte=progress.heldout_bits_per_byte,
            mfu=node.speed.mfu,
            step_times=node.speed.times,
            sampled_round=node.samples.kept[-1].round if node.samples.kept else None,
            num_parameters=node.manifest.model.num_parameters,
            capacity=CapacityStatus.of(capacity),
            confinement=progress.confinement,
            limits=() if self._limits is None else self._limits.status(),
            schedule=() if self._limits is None else self._limits.schedule(),
            uptime_seconds=trio.current_time() - self._started_seconds,
            bytes_sent_total=sum(sent for sent, _ in traffic),
            bytes_received_total=sum(received for _, received in traffic),
            relayed_bytes_total=reach.carried_bytes,
            disk_used_bytes=self._store.used_bytes() + self._other_bytes,
            peers=peers,
            peers_banned=node.swarm.num_banned,
            ring=self._participant.rounds.ring,
            last_round=progress.last_round,
            outer_step=self._outer_step(),
            loss_history=progress.history.points(),
        )

    def line(self) -> str:
        """Returns phase, round and cause in a few words."""
        progress = self._participant.progress
        cause = progress.paused_reason or progress.waits_for
        shown_cause = f" ({cause})" if cause else ""
        problem = self._problem()
        shown_problem = f": {problem}" if problem else ""
        round_number = self._participant.context.committed.entry.round
        return f"{progress.phase}{shown_cause}, round {round_number}{shown_problem}"

    def _problem(self) -> str | None:
        """Returns what is the matter with this node; the worst of several."""
        node = self._participant.context
        return (
            self._participant.progress.problem
            or self._put_out()
            or self._health.problem
            or node.feed.problem
            or self._parted()
            or missing_record_text(node.committed, node.manifest, node.me, node.rollbacks)
        )

    def _rollback_proposal(self) -> str | None:
        node = self._participant.context
        depth = signing_depth(node.manifest.rounds.checkpoint_rounds)
        return node.rollbacks.proposal_from(node.committed.entry.round - depth)

    def _rounds_behind(self) -> int:
        mine = self._participant.context.committed.entry
        others = self._participant.context.swarm.living().values()
        newest = max((a.round for a in others if a.tokens_total > mine.tokens_total), default=0)
        return max(0, newest - mine.round)

    def _data(self) -> DataStatus:
        progress = self._participant.context.feed.epoch_progress()
        return DataStatus(
            epoch=progress.epoch,
            tokens_consumed=progress.tokens_consumed,
            num_tokens=progress.num_tokens,
            shards_consumed=progress.shards_consumed,
            num_shards=progress.num_shards,
            expected_tokens=self._expected_tokens(progress),
            cutting=self._cutting(),
            own=bool(self._participant.context.manifest.data.own),
        )

    def _expected_tokens(self, progress: EpochProgress) -> int:
        data = self._run_data
        if data is None or self._participant.context.manifest.data.own:
            return progress.num_tokens
        return max(data.expected_tokens, progress.num_tokens)

    def _outer_step(self) -> OuterStep | None:
        tuned = self._participant.context.committed.tuned
        if tuned is None:
            return None
        rate, momentum, scale = tuned
        return OuterStep(learning_rate=rate, momentum=momentum, average_scale=scale)

    def _parted(self) -> str | None:
        """The problem of a node whose history is another one than that of the members around."""
        parted_after = self._participant.parted_after
        if parted_after is None:
            return None
        return (
            f"the other members' history is not this node's since round {parted_after}, and more "
            f"than {UNDO_ROUNDS_MAX} rounds of this node's own are never undone without its owner: "
            "to go on with the others, stop this node, then `gossamer reset` and `gossamer join`"
        )

    def _peers(self) -> tuple[PeerStatus, ...]:
        living = self._participant.context.swarm.living_anywhere()
        return tuple(
            _peer_status(peer, announce, self._transport.path(peer), self._audits_of(peer))
            for peer, announce in living.items()
        )

    def _audits_of(self, peer: PeerId) -> AuditCount:
        auditing = self._participant.auditing
        return AuditCount() if auditing is None else auditing.count_of(peer)

    def _note_checkpoint(self) -> None:
        checkpoints = self._participant.context.committed.checkpoints
        newest = checkpoints[-1].head if checkpoints else None
        if newest is not None and newest != self._newest_checkpoint:
            self._newest_checkpoint = newest
            self._metrics.checkpoint_last_success_timestamp_seconds.set_to_current_time()

    def _names_here(self) -> dict[str, MemberName]:
        """Returns name and team of each member of the chain that is here, and of this node."""
        context = self._participant.context
        members = context.choice.stakes_at(context.committed.entry.head)
        shown = {
            peer: MemberName(announce.name, announce.team)
            for peer, announce in context.swarm.living_anywhere().items()
        }
        shown[context.me] = self._shown
        return {peer: each for peer, each in shown.items() if peer in members}

    async def _measure_disk(self) -> None:
        root, blocks = self._state_dir.root, self._state_dir.blocks_path
        self._other_bytes = await self._participant.context.run_in_thread(
            lambda: bytes_beside(root, blocks)
        )
        self._metrics.disk_used_bytes.set("other", self._other_bytes)
        if self._disk_limit is not None:
            self._disk_limit.measured(self._other_bytes)

    async def run(self) -> None:
        """Updates the gauges every `GAUGE_SECONDS` until cancelled."""
        metrics, store = self._metrics, self._store
        await self.names.load()
        measured_seconds = -math.inf
        while True:
            metrics.set_paused(self._participant.progress.paused_reason)
            metrics.waiting_for_peers.set(self._participant.progress.waits_for is not None)
            self._note_checkpoint()
            metrics.set_traffic(self._transport.traffic())
            paths: Counter[str] = Counter(
                path.kind
                for peer in self._transport.peers()
                if (path := self._transport.path(peer)) is not None
            )
            for kind in PEER_PATHS:
                metrics.peers.set(kind, paths[kind])
            self._count_reach(self._transport.reach())
            metrics.peers_banned.set(self._participant.context.swarm.num_banned)
            metrics.blocks.set("stored", store.num_blocks())
            metrics.blocks.set("pinned", store.num_pinned())
            metrics.disk_quota_bytes.set(store.quota_bytes)
            metrics.disk_used_bytes.set("blocks", store.used_bytes())
            metrics.disk_used_bytes.set("pinned", store.pinned_bytes())
            if trio.current_time() >= measured_seconds + DISK_SECONDS:
                await self._measure_disk()
                await self.names.note(self._names_here())
                measured_seconds = trio.current_time()
            metrics.rounds_behind.set(self._rounds_behind())
            metrics.swarm_tokens.set(self._participant.context.committed.entry.tokens_total)
            metrics.set_data(self._data())
            metrics.set_outer_step(self._outer_step())
            for peer in self._transport.peers():
                seconds = self._transport.round_trip_seconds(peer)
                if seconds is not None:
                    metrics.peer_rtt_seconds.observe(seconds)
            failures = store.verify_failures + self._blocks.verify_failures
            metrics.block_verify_failures.inc(failures - self._verify_failures)
            self._verify_failures = failures
            await sleep_to_tick(GAUGE_SECONDS)

    def _count_reach(self, report: ReachReport) -> None:
        """Adds the growth of the transport's totals."""
        metrics, before = self._metrics, self._counted
        metrics.relayed_bytes.inc(report.carried_bytes - before.carried_bytes)
        metrics.handshakes.add("unfinished", report.num_unfinished - before.num_unfinished)
        metrics.handshakes.add("turned_away", report.num_turned_away - before.num_turned_away)
        self._counted = report


def say_hello(manifest: Manifest, addresses: Sequence[str]) -> None:
    """Logs which run this node takes part in, and how others join it."""
    data = manifest.data
    text = "each peer's own text" if data.own else f"{data.num_tokens:,} tokens"
    if data.grows:
        text += " to begin with"
    log.info(
        f"run {manifest.name}: {manifest.model.num_parameters:,} parameters, {text}",
        run=manifest.run_id.hex()[:16],
        fields={
            "event": "in a run",
            "name": manifest.name,
            "parameters": manifest.model.num_parameters,
            "tokens": manifest.data.num_tokens,
        },
    )
    if manifest.admission == "invite":
        log.info("others join with the text that `gossamer invite` prints here")
        return
    for address in addresses:
        link = f"{address}#{manifest.run_id.hex()}"
        log.info(
            f"others join with: gossamer join {link}",
            fields={"event": "others join with", "link": link},
        )


def settled_head(chain: ChainStore, head: Digest) -> Digest | None:
    """Returns the ancestor of a head that links name, see `SETTLED_ROUNDS`; None if there is none
    yet."""
    round_number = chain.entry(head).round
    settled = range(round_number - SETTLED_ROUNDS, 0, -1)
    settled_round = next((each for each in settled if is_mark(each)), 0)
    if not settled_round:
        return None
    num_after = round_number - settled_round
    ancestors = chain.ancestors(head, num_after)
    return ancestors[-1] if len(ancestors) > num_after else None


def _peer_status(
    peer: str, announce: Announce, path: Path | None, audits: AuditCount
) -> PeerStatus:
    capacity = announce.capacity
    return PeerStatus(
        peer_id=peer,
        name=announce.name,
        team=announce.team,
        phase=announce.phase,
        round=announce.round,
        head=announce.head.hex(),
        tokens_per_second=capacity.tokens_per_second or None,
        device=capacity.device,
        device_kind=capacity.device_kind,
        device_memory_bytes=capacity.device_memory_bytes,
        host_memory_bytes=capacity.host_memory_bytes,
        cores=capacity.cores,
        bandwidth_bytes_per_second=capacity.bandwidth_bytes_per_second or None,
        addresses=announce.addresses,
        connected=path is not None,
        reach=announce.reach,
        path=None if path is None else path.kind,
        relay=None if path is None else path.relay,
        audits_good=audits.good,
        audits_poor=audits.poor,
    )
