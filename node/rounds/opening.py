"""Puts one round together from the components of a node: the machine that decides, the driver that
acts, and the mode's work."""

from __future__ import annotations

import math
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
from gossamer.node.peers.chain.chain_sync import ChainSync
from gossamer.node.peers.swarm import Swarm
from gossamer.node.rounds.evaluation import ModelSamples
from gossamer.node.rounds.round_driver import RoundDriver
from gossamer.node.storage.chain.known_rounds import KnownRounds
from gossamer.node.storage.owner_files import LossFile
from gossamer.node.storage.state.committed import CommittedState
from gossamer.node.storage.work.own_work import Work
from gossamer.node.telemetry.metrics import Metrics
from gossamer.node.training.audit_data import AuditData
from gossamer.node.training.feed import Feed
from gossamer.node.training.local_training import LocalTrainings
from gossamer.node.training.more_data import AddedData
from gossamer.protocol import limits
from gossamer.protocol.codecs.step_payloads import SignPayloads
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.policy.auditing.sum_audits import AuditSecrets, commitment_to, has_sum_audits
from gossamer.protocol.policy.heads.head_choice import HeadChoice
from gossamer.protocol.policy.membership import Awaited
from gossamer.protocol.rounds.actions import (
    Contested,
    LeftOut,
    Observation,
    Removed,
    Signer,
    Unsettled,
)
from gossamer.protocol.rounds.ring.followed_ring import SLOW, STALLED
from gossamer.protocol.rounds.ring.ring_members import BASELESS
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
        context: NodeContext,
        driver: RoundDriver,
        work: RoundWork,
        sync_set: SyncSet,
        hints: RoundHints,
        training_since_seconds: float,
    ) -> None:
        """
        Args:
            sync_set: what the round averages.
            hints: what the round before showed.
            training_since_seconds: local time at which the round's training began.
        """
        self._context = context
        self.driver = driver
        self.work = work
        self.sync_set = sync_set
        self.hints = hints
        self.training_since_seconds = training_since_seconds

    def say_ready(self, promise: Promise, loss: float | None) -> None:
        """Hands this node's work to the round: the driver sends its `Ready`."""
        machine, swarm, secrets = self.driver.machine, self._context.swarm, self._context.secrets
        number = swarm.incarnation, swarm.new_sequence()
        self._context.work.signed(number[1])
        self.driver.ready(
            Ready(
                incarnation=number[0],
                sequence=number[1],
                round=machine.number,
                head=machine.head,
                tokens=promise.tokens,
                steps=promise.steps,
                loss=_sayable(loss),
                norm=promise.norm,
                spans=promise.spans,
                links=swarm.links(),
                root=promise.root,
                commitment=b"" if secrets is None else commitment_to(secrets.of(*number)),
            )
        )

    def took(self, seconds: float) -> None:
        """The round is committed here, and took so long."""
        usual_seconds = max(0.0, seconds - self.driver.machine.lost_seconds)
        self._context.swarm.admission.partners.conduct.round_took(usual_seconds)

    def note_ring(self) -> None:
        """Tells the account of work which ring has the offer, be it committed or not."""
        ring_id, contribution = self.driver.ring_id, self.driver.contribution
        if ring_id is None:
            self._context.work.withdraw()
        elif contribution is not None:
            self._context.work.followed(ring_id, contribution, self.sync_set.first_chunk)


class _NodeHost:
    """The node around one round (a `RoundHost`)."""

    def __init__(self, context: NodeContext, heads: Heads, work: RoundWork) -> None:
        """`heads`: as they are at the beginning of the round; they hear of each ring."""
        self._context = context
        self._heads, self._recent_heads = heads, heads.branches.recent()
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
        found = self._context.swarm.awaited(
            self._recent_heads,
            self._parent.round,
            self._heads.is_lost,
            self._heads.near_rounds(),
        )
        return found._replace(stakes=self._heads.stakes)

    def contribution_to(self, ring: Ring) -> Contribution:
        """See `RoundHost`."""
        self._heads.branches.followed(ring.ring_id)
        return self._work.contribution(ring)

    def observed(self, observation: Observation) -> None:
        """See `Observer`."""
        number, swarm = self._parent.round + 1, self._context.swarm
        conduct = swarm.admission.partners.conduct
        match observation:
            case Removed():
                self._removed(observation)
            case Contested():
                accuser, peer = observation.accuser, observation.peer
                conduct.contested(number, accuser, peer, observation.num_members)
            case LeftOut(organiser, peers, is_mended):
                log.debug(
                    "a roster leaves out peers that are ready",
                    organiser=organiser,
                    peers=len(peers),
                    is_mended=is_mended,
                )
                conduct.left_out(number, organiser, peers)
            case Unsettled(organiser):
                log.warning("a member replaces its own rings again and again", peer=organiser)
                conduct.unsettled(number, organiser)

    def _removed(self, removed: Removed) -> None:
        if removed.peer == self._context.me:
            log.warning(
                "this node is out of the ring: what the round did not take of its work is offered "
                "to a later one",
                reason=removed.reason,
                detail=removed.detail,
            )
        else:  # nothing that the owner of this node could mend
            log.info(
                "a member is out of the ring",
                peer=removed.peer,
                reason=removed.reason,
                detail=removed.detail,
            )
        self._context.metrics.ring_skips.add(first_word(removed.reason))
        swarm = self._context.swarm
        swarm.admission.partners.conduct.put_out(
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


def mode_of(me: PeerId, committed: CommittedState, trainings: LocalTrainings) -> SyncMode:
    """The strategy of the run's sync mode, by what travels in its rings."""
    payloads = committed.payloads
    if isinstance(payloads, SignPayloads):
        return SharedSteps(me, committed, payloads, trainings)
    return PendingWork(me, committed, payloads, trainings)


def open_round(
    context: NodeContext, heads: Heads, mode: SyncMode, hints: RoundHints, spawn: Spawn
) -> OpenRound:
    """The round after the committed head; its driver is not running yet.

    It takes the whole context because a driver uses nearly all components.

    Args:
        hints: what the round before showed.
    """
    committed, conduct = context.committed, context.swarm.admission.partners.conduct
    number, verdicts = committed.entry.round + 1, context.swarm.verdicts
    sync_set = committed.sync_sets.of_round(number)
    since_seconds = mode.training_since_seconds
    if since_seconds is None:
        since_seconds = trio.current_time()
    machine = Round(
        signer=Signer(context.me, context.manifest.run_id, context.identity.sign),
        parent=committed.parent,
        rules=_rules(context, mode, sync_set.plan, number),
        verify=verify,
        now=since_seconds,
        hints=hints._replace(
            missed=tuple(peer for peer in hints.missed if peer not in heads.newest_credits),
            doubted=conduct.doubted(number),
            suspected=conduct.suspected(number),
            unfair=conduct.unfair(number),
            wronged=conduct.wronged(number),
            excused=frozenset() if verdicts is None else verdicts.leave_outs(),
        ),
    )
    work = mode.new_round(machine, sync_set, spawn)
    driver = RoundDriver(
        machine,
        transport=context.transport,
        gossip=context.swarm.gossip,
        plan=sync_set.plan,
        payloads=committed.payloads,
        run_in_thread=context.run_in_thread,
        host=_NodeHost(context, heads, work),
    )
    return OpenRound(context, driver, work, sync_set, hints, since_seconds)


def _sayable(loss: float | None) -> float:
    """The loss that a `Ready` says. A model that diverges may have one that no peer takes, and that
    may be another member's doing."""
    most = math.nextafter(limits.LOSS_MAX, 0.0)
    return 0.0 if loss is None else min(max(loss, -most), most)


def _rules(context: NodeContext, mode: SyncMode, plan: ChunkPlan, number: int) -> RoundRules:
    manifest, in_ring = context.manifest, mode.ring_duration
    inner, outer, rounds = manifest.inner, manifest.outer, manifest.rounds
    steps = 0 if context.committed.payloads.are_steps else outer.inner_steps_of(number)
    return RoundRules(
        context.committed.payloads,
        outer.chunk_elements,
        plan.num_chunks,
        rounds.gather_seconds,
        rounds.gather_fraction,
        rounds.attempt_seconds,
        in_ring.by_manifest,
        in_ring.as_measured,
        rounds.num_accusers,
        rounds.round_seconds,
        steps * inner.sequences_per_step * manifest.model.context,
        steps,
    )


def first_word(reason: str) -> str:
    """Returns the first word of a reason, under which the metrics count it."""
    return reason.replace(":", " ").split()[0] if reason.strip() else ""
