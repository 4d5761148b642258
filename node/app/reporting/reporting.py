"""The node's state as `Status`, and in the words of its log."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import structlog
import trio

from gossamer.node.app.owner.limit_parts import DiskLimit
from gossamer.node.app.owner.owner_limits import OwnerLimits
from gossamer.node.app.runtime import NodeInputs
from gossamer.node.base.pausing import resumes_at
from gossamer.node.heads.missing_record import missing_record_text
from gossamer.node.network.transport import Path
from gossamer.node.rounds.auditing import AuditCount
from gossamer.node.rounds.participant import Participant
from gossamer.node.runs.founding.cutting import CorpusCutter
from gossamer.node.storage.chain.chain_store import ChainStore
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
from gossamer.protocol.ids import Digest
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.policy.heads.chain_checkpoint import signing_depth
from gossamer.protocol.policy.heads.chain_summary import is_mark
from gossamer.protocol.policy.heads.head_choice import UNDO_ROUNDS_MAX
from gossamer.protocol.wire.statements import Announce, Capacity, Phase

SETTLED_ROUNDS = UNDO_ROUNDS_MAX
"""A head that so many rounds follow is not undone any more. Links name the newest of them that the
summary of a checkpoint keeps (`is_mark`): they lead into the run for as long as it lasts."""

log = structlog.get_logger("node")


class Reporter:
    """Reads the parts of a node."""

    def __init__(
        self,
        inputs: NodeInputs,
        participant: Participant,
        capacity: Callable[[], Capacity],
        limits: OwnerLimits,
        disk: DiskLimit,
        cutter: CorpusCutter,
        put_out: Callable[[], str | None],
    ) -> None:
        """
        Args:
            put_out: says why the members do not take this node for one; None if they do.
        """
        self._participant = participant
        self._capacity = capacity
        self._limits = limits
        self._disk = disk
        self._cutter = cutter
        self._put_out = put_out
        self._settings = inputs.settings
        self._transport = inputs.transport
        self._health = inputs.state_dir.health
        self._zone = inputs.runtime.zone
        self._started_seconds = trio.current_time()

    def status(self) -> Status:
        """Returns the present status. It is called on the event loop for every request."""
        node, progress = self._participant.context, self._participant.progress
        heldout = progress.heldout
        holds, is_leaving = self._participant.holds, self._participant.is_leaving
        paused_reason = None if is_leaving else progress.paused_reason
        is_paused = paused_reason not in (None, "disk")
        entry = node.committed.entry
        settled = settled_head(node.committed.chain, entry.head)
        capacity = self._capacity()
        traffic = self._transport.traffic().values()
        addresses, reach = self._transport.addresses(), self._transport.reach()
        peers = self._peers()
        return Status(
            peer_id=self._transport.peer_id,
            run_id=node.manifest.run_id.hex(),
            run_name=node.manifest.name,
            admission=node.manifest.admission,
            name=self._settings.name,
            team=self._settings.team,
            version=package_version("gossamer"),
            addresses=tuple(addresses),
            reach=reach.reach,
            reach_text=reach_text(
                reach.reach, reach.num_confirmed, addresses[0] if addresses else "", peers
            ),
            phase=self._phase,
            problem=self._problem(),
            put_out=self._put_out(),
            waits_for=None if is_leaving else progress.waits_for,
            paused_reason=paused_reason,
            resumes_at=iso_moment(resumes_at(holds), self._zone) if is_paused else None,
            pauses=() if is_leaving else tuple(PauseStatus.of(hold, self._zone) for hold in holds),
            leaves_after_round=self._participant.leaves_after_round and not is_leaving,
            round=entry.round,
            final_round=node.manifest.last_round,
            final_tokens=node.committed.end.final_tokens,
            head=entry.head.hex(),
            settled_head=settled.hex() if settled is not None else None,
            state_digest=entry.state_digest.hex(),
            rolled_back_to=node.rollbacks.newest_round,
            rollback_proposal=self._rollback_proposal(),
            rollback_withdrawn=node.rollbacks.withdrawn,
            rounds_behind=self.rounds_behind(),
            inner_step=progress.inner_step,
            inner_steps=progress.inner_steps,
            tokens_total=node.work.status.committed_on_time + node.work.status.committed_late,
            work=node.work.status,
            data=self.data(),
            swarm_tokens_total=entry.tokens_total,
            tokens_per_second=capacity.tokens_per_second or None,
            loss=progress.loss,
            heldout_loss=heldout and heldout.loss,
            heldout_round=heldout and heldout.round,
            bits_per_byte=progress.bits_per_byte,
            heldout_bits_per_byte=heldout and heldout.bits_per_byte,
            mfu=node.speed.mfu,
            step_times=node.speed.times,
            sampled_round=node.samples.kept[-1].round if node.samples.kept else None,
            num_parameters=node.manifest.model.num_parameters,
            capacity=CapacityStatus.of(capacity),
            confinement=progress.confinement,
            limits=self._limits.status(),
            schedule=self._limits.schedule(),
            uptime_seconds=trio.current_time() - self._started_seconds,
            bytes_sent_total=sum(sent for sent, _ in traffic),
            bytes_received_total=sum(received for _, received in traffic),
            relayed_bytes_total=reach.carried_bytes,
            disk_used_bytes=self._disk.used_bytes(),
            peers=peers,
            peers_banned=node.swarm.num_banned,
            ring=self._participant.rounds.ring,
            last_round=progress.last_round,
            outer_step=self.outer_step(),
            loss_history=progress.history.points(),
        )

    def line(self) -> str:
        """Returns phase, round and cause in a few words."""
        progress = self._participant.progress
        cause = progress.paused_reason or progress.waits_for
        shown_cause = f" ({cause})" if cause and not self._participant.is_leaving else ""
        problem = self._problem()
        shown_problem = f": {problem}" if problem else ""
        round_number = self._participant.context.committed.entry.round
        return f"{self._phase}{shown_cause}, round {round_number}{shown_problem}"

    @property
    def _phase(self) -> Phase:
        """The phase that people see: `leaving` from the order on."""
        return "leaving" if self._participant.is_leaving else self._participant.progress.phase

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

    def rounds_behind(self) -> int:
        """Returns how many rounds a living peer with more tokens in its chain is ahead, at most."""
        mine = self._participant.context.committed.entry
        others = self._participant.context.swarm.living().values()
        newest = max((a.round for a in others if a.tokens_total > mine.tokens_total), default=0)
        return max(0, newest - mine.round)

    def data(self) -> DataStatus:
        """Returns how much of the data is consumed."""
        progress = self._participant.context.feed.epoch_progress()
        return DataStatus(
            epoch=progress.epoch,
            tokens_consumed=progress.tokens_consumed,
            num_tokens=progress.num_tokens,
            shards_consumed=progress.shards_consumed,
            num_shards=progress.num_shards,
            expected_tokens=self._expected_tokens(progress),
            cutting=self._cutter.status,
            own=bool(self._participant.context.manifest.data.own),
        )

    def _expected_tokens(self, progress: EpochProgress) -> int:
        if self._participant.context.manifest.data.own:
            return progress.num_tokens
        return max(self._cutter.data.expected_tokens, progress.num_tokens)

    def outer_step(self) -> OuterStep | None:
        """Returns the settings that the newest round chose; None if it chose none."""
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
        count_of = self._participant.audits.count_of
        return tuple(
            _peer_status(peer, announce, self._transport.path(peer), count_of(peer))
            for peer, announce in living.items()
        )


def say_hello(manifest: Manifest, addresses: Sequence[str]) -> None:
    """Logs which run this node takes part in, and how others join it."""
    data = manifest.data
    text = "each peer's own text" if data.own else f"{data.num_tokens:,} tokens"
    if data.grows:
        text += " to begin with"
    if manifest.last_round is not None:
        text += f", {manifest.last_round:,} rounds"
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
    return PeerStatus(
        peer_id=peer,
        name=announce.name,
        team=announce.team,
        phase=announce.phase,
        round=announce.round,
        head=announce.head.hex(),
        **msgspec.structs.asdict(CapacityStatus.of(announce.capacity)),
        addresses=announce.addresses,
        connected=path is not None,
        reach=announce.reach,
        path=None if path is None else path.kind,
        relay=None if path is None else path.relay,
        audits_good=audits.good,
        audits_poor=audits.poor,
    )
