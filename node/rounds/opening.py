"""Puts one round together from the components of a node: the machine that decides, the driver that
acts, and the mode's work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import structlog
import trio

from gossamer.node.base.awake_clock import AwakeClock
from gossamer.node.base.disk_health import DiskHealth
from gossamer.node.base.rate_limit import NO_LIMITS, Limits
from gossamer.node.base.threads import RunInThread
from gossamer.node.heads.extensions import Extensions
from gossamer.node.heads.heads import Heads
from gossamer.node.heads.rollbacks import Rollbacks
from gossamer.node.machine.speed import SpeedMeter
from gossamer.node.machine.trainer import Trainer
from gossamer.node.modes.pending_work import PendingWork
from gossamer.node.modes.shared import SharedSteps
from gossamer.node.modes.sync_mode import Contribution, Promise, RoundWork, Spawn, SyncMode
from gossamer.node.network.identity import Identity, verify
from gossamer.node.network.transport import Transport
from gossamer.node.peers.chain_sync import ChainSync
from gossamer.node.peers.swarm import Swarm
from gossamer.node.rounds.evaluation import ModelSamples
from gossamer.node.rounds.round_driver import RoundDriver
from gossamer.node.storage.committed import CommittedState
from gossamer.node.storage.known_rounds import KnownRounds
from gossamer.node.storage.owner_files import LossFile
from gossamer.node.storage.work import Work
from gossamer.node.telemetry.metrics import Metrics
from gossamer.node.training.audit_data import AuditData
from gossamer.node.training.feed import Feed
from gossamer.node.training.local_training import LocalTrainings
from gossamer.node.training.more_data import AddedData
from gossamer.protocol.codecs.step_payloads import SignPayloads
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.policy.head_choice import HeadChoice
from gossamer.protocol.policy.membership import Awaited
from gossamer.protocol.policy.sum_audits import AuditSecrets, commitment_to, has_sum_audits
from gossamer.protocol.rounds.accusations import BASELESS
from gossamer.protocol.rounds.actions import Contested, LeftOut, Removed
from gossamer.protocol.rounds.attempt import SLOW, STALLED
from gossamer.protocol.rounds.roster import Ring, RoundHints, RoundRules
from gossamer.protocol.rounds.round import Round
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.state.sync_sets import SyncSet
from gossamer.protocol.wire.statements import Ready

log = structlog.get_logger("round")


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

    @property
    def secrets(self) -> AuditSecrets | None:
        """This node's secrets in a run whose sums are audited; None in others."""
        if not has_sum_audits(self.manifest):
            return None
        return AuditSecrets(self.manifest.run_id, self.identity.sign)


class OpenRound:
    """One round of this node, from its opening on."""

    def __init__(
        self,
        driver: RoundDriver,
        round_work: RoundWork,
        sync_set: SyncSet,
        hints: RoundHints,
        training_since_seconds: float,
        swarm: Swarm,
        work: Work,
        secrets: AuditSecrets | None = None,
    ) -> None:
        """
        Args:
            sync_set: what the round averages.
            hints: what the round before showed.
            training_since_seconds: local time at which the round's training began.
            secrets: this node's, behind the commitments in its `Ready`; None in a run without them.
        """
        self.driver = driver
        self.work = round_work
        self.sync_set = sync_set
        self.hints = hints
        self.training_since_seconds = training_since_seconds
        self._swarm = swarm
        self._account = work
        self._secrets = secrets

    def say_ready(self, promise: Promise, loss: float | None) -> None:
        """Hands this node's work to the round: the driver sends its `Ready`."""
        machine = self.driver.machine
        number = self._swarm.incarnation, self._swarm.new_sequence()
        secrets = self._secrets
        self.driver.ready(
            Ready(
                incarnation=number[0],
                sequence=number[1],
                round=machine.number,
                head=machine.head,
                tokens=promise.tokens,
                steps=promise.steps,
                loss=loss if loss is not None else 0.0,
                norm=promise.norm,
                spans=promise.spans,
                links=self._swarm.links(),
                root=promise.root,
                commitment=b"" if secrets is None else commitment_to(secrets.of(*number)),
            )
        )

    def took(self, seconds: float) -> None:
        """The round is committed here, and took so long."""
        usual_seconds = max(0.0, seconds - self.driver.machine.lost_seconds)
        self._swarm.admission.conduct.round_took(usual_seconds)

    def note_ring(self) -> None:
        """Tells the account of work which ring has the offer, be it committed or not."""
        ring_id, contribution = self.driver.ring_id, self.driver.contribution
        if ring_id is None:
            self._account.withdraw()
        elif contribution is not None:
            self._account.followed(ring_id, contribution, self.sync_set.first_chunk)


class _NodeHost:
    """The node around one round (a `RoundHost`)."""

    def __init__(self, context: NodeContext, heads: Heads, work: RoundWork) -> None:
        """`heads`: as they are at the beginning of the round; they hear of each ring."""
        self._context = context
        self._heads, self._recent_heads = heads, heads.recent()
        self._parent = context.committed.entry
        self._work = work
        self.outer_step = context.committed.compute
        self.reach = context.swarm.reach
        self.offence = context.swarm.offence
        self.awake_since = context.awake.awake_since
        self.transferred = context.speed.transfer
        self.contradicted = context.swarm.equivocations.found
        self.changed = work.machine_changed

    def upload_limit(self) -> float:
        """See `RoundHost`."""
        return self._context.limits.up.bytes_per_second

    def awaited(self) -> Awaited:
        """See `RoundHost`."""
        return self._context.swarm.awaited(
            self._recent_heads,
            self._parent.round,
            self._heads.is_lost,
            self._heads.near_rounds(),
        )

    def contribution_to(self, ring: Ring) -> Contribution:
        """See `RoundHost`."""
        self._heads.followed(ring.ring_id)
        return self._work.contribution(ring)

    def removed(self, removed: Removed) -> None:
        """See `Observer`."""
        log.warning(
            "a member is out of the ring",
            peer=removed.peer,
            reason=removed.reason,
            detail=removed.detail,
        )
        self._context.metrics.ring_skips.add(first_word(removed.reason))
        swarm = self._context.swarm
        swarm.admission.conduct.put_out(
            self._parent.round + 1,
            removed.accuser,
            removed.peer,
            removed.order,
            removed.votes,
            is_slow=SLOW in (removed.reason, removed.answers),
            is_gone=not swarm.is_connected(removed.peer),
            is_answer=removed.answers is not None,
            is_reply=removed.peer == self._context.me and removed.reason == BASELESS,
            alone_of=removed.alone_of,
            lost_seconds=removed.still_seconds if removed.reason == STALLED else 0.0,
            num_members=removed.num_members,
        )

    def contested(self, contested: Contested) -> None:
        """See `Observer`."""
        self._context.swarm.admission.conduct.contested(
            self._parent.round + 1, contested.accuser, contested.peer, contested.num_members
        )

    def left_out(self, left_out: LeftOut) -> None:
        """See `Observer`."""
        log.debug(
            "a roster leaves out peers that are ready",
            organiser=left_out.organiser,
            peers=len(left_out.peers),
            is_mended=left_out.is_mended,
        )
        self._context.swarm.admission.conduct.left_out(
            self._parent.round + 1, left_out.organiser, left_out.peers
        )

    def unsettled(self, organiser: PeerId) -> None:
        """See `Observer`."""
        log.warning("a member replaces its own rings again and again", peer=organiser)
        conduct = self._context.swarm.admission.conduct
        conduct.unsettled(self._parent.round + 1, organiser)


def mode_of(me: PeerId, committed: CommittedState, trainings: LocalTrainings) -> SyncMode:
    """The strategy of the run's sync mode, by what travels in its rings."""
    payloads = committed.payloads
    if isinstance(payloads, SignPayloads):
        return SharedSteps(me, committed, payloads, trainings)
    return PendingWork(me, committed, payloads, trainings)


class RoundOpener:
    """Opens this node's rounds. It lives as long as the node.

    It takes the whole context because a driver uses nearly all components.
    """

    def __init__(self, context: NodeContext, heads: Heads, mode: SyncMode, spawn: Spawn) -> None:
        self._context = context
        self._heads = heads
        self._mode = mode
        self._spawn = spawn

    def open(self, hints: RoundHints) -> OpenRound:
        """The round after the committed head; its driver is not running yet.

        Args:
            hints: what the round before showed.
        """
        context, committed = self._context, self._context.committed
        sync_set = committed.sync_sets.of_round(committed.entry.round + 1)
        since_seconds = self._mode.training_since_seconds
        if since_seconds is None:
            since_seconds = trio.current_time()
        conduct, number = context.swarm.admission.conduct, committed.entry.round + 1
        verdicts = context.swarm.verdicts
        machine = Round(
            me=context.me,
            run_id=context.manifest.run_id,
            parent=committed.parent,
            rules=self._rules(sync_set.plan),
            sign=context.identity.sign,
            verify=verify,
            now=since_seconds,
            hints=hints._replace(
                doubted=conduct.doubted(number),
                suspected=conduct.suspected(number),
                unfair=conduct.unfair(number),
                wronged=conduct.wronged(number),
                excused=frozenset() if verdicts is None else verdicts.leave_outs(),
            ),
        )
        round_work = self._mode.new_round(machine, sync_set, self._spawn)
        driver = self._driver(machine, round_work, sync_set.plan)
        return OpenRound(
            driver, round_work, sync_set, hints, since_seconds, context.swarm, context.work,
            context.secrets,
        )  # fmt: skip

    def _rules(self, plan: ChunkPlan) -> RoundRules:
        outer, rounds = self._context.manifest.outer, self._context.manifest.rounds
        in_ring = self._mode.ring_duration
        return RoundRules(
            self._context.committed.payloads,
            outer.chunk_elements,
            plan.num_chunks,
            rounds.gather_seconds,
            rounds.gather_fraction,
            rounds.attempt_seconds,
            in_ring.by_manifest,
            in_ring.as_measured,
            rounds.num_accusers,
        )

    def _driver(self, machine: Round, round_work: RoundWork, plan: ChunkPlan) -> RoundDriver:
        context = self._context
        return RoundDriver(
            machine,
            transport=context.transport,
            gossip=context.swarm.gossip,
            plan=plan,
            payloads=context.committed.payloads,
            run_in_thread=context.run_in_thread,
            host=_NodeHost(context, self._heads, round_work),
        )


def first_word(reason: str) -> str:
    """Returns the first word of a reason, under which the metrics count it."""
    return reason.replace(":", " ").split()[0] if reason.strip() else ""
