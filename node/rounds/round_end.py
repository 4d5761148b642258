"""The work after a round at this node: install its result, settle, save, evaluate, report.

`Settlement` makes the account of this node's work follow the chain: what committed rounds took is
not carried. `WorkSaver` writes carried work and the trainer's own state to disk between rounds, in
a small share of the time.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence

import structlog
import trio

from gossamer.node.base.disk_health import DiskError, DiskHealth
from gossamer.node.base.threads import RunInThread
from gossamer.node.heads.heads import Heads
from gossamer.node.machine.trainer import Trainer
from gossamer.node.modes.sync_mode import SyncMode
from gossamer.node.network.transport import Transport
from gossamer.node.peers.chain_records import BehindError
from gossamer.node.peers.chain_sync import ChainSync
from gossamer.node.peers.swarm import Swarm
from gossamer.node.rounds.auditing import Auditor
from gossamer.node.rounds.evaluation import HeldoutLoss, ModelSamples
from gossamer.node.rounds.opening import OpenRound
from gossamer.node.rounds.sum_auditing import SumAuditing
from gossamer.node.storage.committed import CommittedState
from gossamer.node.storage.state_blocks import CannotRebuildError
from gossamer.node.storage.work import Work
from gossamer.node.telemetry.metrics import Metrics
from gossamer.node.telemetry.progress import Progress
from gossamer.node.telemetry.status import LastRound, Outcome
from gossamer.node.training.local_training import LocalTrainings
from gossamer.protocol.accounting.work_records import ROLLED_BACK, Offered, mask_of, offered_by
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import Digest, short
from gossamer.protocol.rounds.actions import Committed
from gossamer.protocol.state.chain import ChunkAverage, Header, lost_members, spans_taken
from gossamer.protocol.wire.ring_messages import RING_PROTOCOL

LISTS_SECONDS = 15.0
"""Time for fetching lists of contributors: a few KiB each, for the one or two rounds that may have
taken work of an offer. The next round waits meanwhile."""

SAVE_SECONDS = 30.0
"""Carried rounding errors, and the trainer's own state (the inner optimiser, or the momentum of
shared steps), are written at most this often."""

SAVE_SHARE = 0.02
"""Upper bound on the part of the wall time in which the trainer writes and does not train. It
writes one or two vectors of the model's size, perhaps to a slow disk."""

log = structlog.get_logger("node")


class Settlement:
    """Settles the account of work with the committed chain."""

    def __init__(
        self,
        committed: CommittedState,
        work: Work,
        chain_sync: ChainSync,
        swarm: Swarm,
        trainings: LocalTrainings,
        is_void: Callable[[Digest], bool],
    ) -> None:
        """`is_void`: whether a round on the way to a known head was taken back."""
        self._is_void = is_void
        self._committed = committed
        self._work = work
        self._chain_sync = chain_sync
        self._swarm = swarm
        self._trainings = trainings
        self._averages: dict[Digest, tuple[ChunkAverage, ...]] = {}
        """Contributors of rounds that are not settled yet; `settle` clears it."""

    async def install(self, outcome: Committed) -> None:
        """Makes the result of a round the committed state, in memory and on disk."""
        payloads = [average.payload for average in outcome.averages]
        await self._trainings.trainer.base_is_read()
        await self._trainings.run_in_thread(
            lambda: self._committed.install(outcome.commit, outcome.proposal, payloads)
        )

    async def drop_out_of_range(self) -> None:
        """Drops all work that is carried, because a value of it turned out of range in a ring."""
        await self._trainings.drop_out_of_range()

    async def take(self, outcome: Committed) -> None:
        """Settles with a round that was just installed, and publishes its commit."""
        self.note(outcome.proposal.header, outcome.proposal.update.averages)
        await self.settle()
        num_members = len(outcome.proposal.header.members)
        self._swarm.gossip.publish_commit(outcome.commit, num_members)

    def note(self, header: Header, averages: tuple[ChunkAverage, ...]) -> None:
        """Keeps a new round's contributors until `settle`: the disk may lack them."""
        self._averages[header.digest] = averages

    async def settle(self) -> None:
        """Brings the account from the head of its last call to the committed head.

        Work that was taken by a round which left the chain is carried again. Work that was taken by
        a round which is new in the chain is not. Nothing happens if both heads are the same.
        """
        run_in_thread, work = self._trainings.run_in_thread, self._work
        if not self._committed.is_loaded or work.head == self._committed.head:
            return
        since = work.head
        is_void = since is not None and since in self._committed.chain and self._is_void(since)
        await self._fetch_contributors(await run_in_thread(self._unknown_with_mine))
        has_left_rounds = await run_in_thread(lambda: self._settle(ROLLED_BACK if is_void else ""))
        self._averages.clear()
        if is_void and has_left_rounds:
            # It was done on parameters that the founder does not want.
            await run_in_thread(lambda: work.drop(ROLLED_BACK))
            await self._trainings.return_data()
        elif has_left_rounds:
            # On the other branch the data is consumed to other positions.
            await self._trainings.return_data(work.account.state.spans)

    def _unknown_with_mine(self) -> list[Header]:
        """New rounds that took work of this node's offers and whose contributors are not known: a
        checkpoint skipped these rounds."""
        chain = self._committed.chain
        since = self._work.head or chain.genesis
        newest = self._committed.head
        while newest in self._averages:
            newest = chain.entry(newest).parent
        if newest == since or not self._is_way_known(since):
            return []  # nearly always: the rest would walk through the whole chain
        offered = {offer.head for offer in self._work.account.state.offers}
        headers = [
            self._header(new)
            for new in chain.only_in(self._committed.head, since)
            if new not in self._averages and chain.entry(new).parent in offered
        ]
        return [header for header in headers if header is not None and self._mine(header)[1]]

    async def _fetch_contributors(self, headers: Sequence[Header]) -> None:
        """Fetches the contributors of these rounds from peers that still know them.

        Without them the whole offer would have to be given up, even if a round took one chunk.
        """
        with trio.move_on_after(LISTS_SECONDS):
            for header in headers:
                try:
                    await self._chain_sync.fetch_update_index(header, self._swarm.sources)
                    self._averages[header.digest] = self._committed.averages_of(header)
                except (BehindError, CannotRebuildError, DiskError) as error:
                    log.debug("the contributors of an old round are not known", problem=str(error))

    def _settle(self, reason: str) -> bool:
        """Says whether rounds have left the chain. `reason`: see `WorkAccount.abandoned`."""
        work, chain, head = self._work, self._committed.chain, self._committed.head
        since = work.head
        if since is None and not work.is_damaged:
            work.moved_to(head)  # a new node: no round has taken any of its work
            return False
        since = since or chain.genesis
        if not self._is_way_known(since):
            log.warning("an old header is gone: what the rounds since took is not known")
            work.moved_to(head)
            return False
        next_round = self._committed.entry.round + 1
        work.account.branch_left(chain.entry(since).round, next_round)
        abandoned = chain.only_in(since, head)
        for lost in abandoned:
            header = self._header(lost)
            if header is not None:
                _, tokens = self._mine(header)
                work.abandoned(lost, header.parent, tokens, next_round, reason)
        for new in reversed(chain.only_in(head, since)):
            header = self._header(new)
            if header is not None:
                self._take_out(new, header)
        work.moved_to(head)
        return bool(abandoned)

    def _is_way_known(self, since: Digest) -> bool:
        """Returns whether all rounds between a head and the committed one can be told. Otherwise
        rounds that are still in the chain would count as left."""
        chain, head = self._committed.chain, self._committed.head
        if since not in chain or not chain.follows_start(since):
            return False
        gap = chain.gap_before(head)
        return gap is None or chain.entry(since).round > gap

    def _header(self, head: Digest) -> Header | None:
        try:
            return self._committed.header(head)
        except CannotRebuildError as error:
            log.warning("what an old round took is not known", problem=str(error))
            return None

    def _mine(self, header: Header) -> tuple[int, int]:
        """This node's position in a header and its tokens there; 0 tokens if it is not a member."""
        me = self._swarm.me
        for position, member in enumerate(header.members):
            if member.peer_id == me:
                return position, member.tokens
        return 0, 0

    def _take_out(self, head: Digest, header: Header) -> None:
        position, tokens = self._mine(header)
        taken: list[bool] | None = None
        if tokens:
            try:
                averages = self._averages.get(head) or self._committed.averages_of(header)
                taken = [each.has(position) for each in averages]
            except CannotRebuildError:
                log.warning("which chunks an old round took is not known", round=header.round)
        sync_set = self._committed.sync_sets.of_round(header.round)
        # Nearly always there is one, and its record need not be read again.
        is_ambiguous = tokens and len(self._work.account.state.open_offers_on(header.parent)) > 1
        self._work.committed_by(
            head,
            header.parent,
            header.ring_id,
            tokens,
            None if taken is None else mask_of(taken) << sync_set.first_chunk,
            counts_spans=taken is not None and spans_taken(sum(taken), len(taken)),
            exchanged=sync_set.mask,
            offered=self._offered(head) if is_ambiguous else None,
        )

    def _offered(self, head: Digest) -> Offered | None:
        try:
            return offered_by(self._swarm.me, self._committed.chain.commit(head))
        except (KeyError, OSError, RemoteProtocolError) as error:
            log.warning("which of its offers an old round took is not known", problem=str(error))
            return None

    async def drop_if_stale(self) -> None:
        """Drops work that missed too many rounds. If that was all work, its data is returned, and
        so is data that no round would count."""
        next_round, work = self._committed.entry.round + 1, self._work
        if await self._trainings.run_in_thread(lambda: work.drop_stale(next_round)):
            await self._trainings.return_data()
        await self._trainings.return_uncounted_data()


class WorkSaver:
    """Saves the work that a kill would lose."""

    def __init__(
        self,
        committed: CommittedState,
        work: Work,
        trainer: Trainer,
        mode: SyncMode,
        health: DiskHealth,
        run_in_thread: RunInThread,
        save_losses: Callable[[], Awaitable[None]],
    ) -> None:
        """`save_losses`: writes the curve of losses; raises DiskError."""
        self._committed = committed
        self._work = work
        self._trainer = trainer
        self._mode = mode
        self._health = health
        self._run_in_thread = run_in_thread
        self._save_losses = save_losses
        self._due_seconds = -math.inf
        """Local time of the next regular save."""

    async def save(self, *, now: bool = False) -> None:
        """Saves what is due; with `now` everything, and waits until the trainer has written."""
        if not self._committed.is_loaded:
            return  # nothing is carried yet, and the disk may hold what has not been read
        is_due = now or trio.current_time() > self._due_seconds
        if not (is_due or self._work.must_save):
            return
        with self._health.writing("work"):
            await self._run_in_thread(self._work.save)
            if is_due:
                await self._save_losses()
                await self._save_trainer(wait=now)
                pause_seconds = max(SAVE_SECONDS, self._trainer.save_seconds / SAVE_SHARE)
                self._due_seconds = trio.current_time() + pause_seconds

    async def _save_trainer(self, *, wait: bool) -> None:
        if wait:
            await self._trainer.is_saved()  # an earlier save may be under way
        await self._trainer.save(await self._mode.place())
        if wait:
            await self._trainer.is_saved()


class RoundEnd:
    """Ends this node's rounds. It lives as long as the node."""

    def __init__(
        self,
        settlement: Settlement,
        saver: WorkSaver,
        heldout: HeldoutLoss,
        samples: ModelSamples,
        heads: Heads,
        transport: Transport,
        metrics: Metrics,
        progress: Progress,
        auditor: Auditor | None = None,
        sums: SumAuditing | None = None,
    ) -> None:
        """`auditor`, `sums`: None in a run without such audits."""
        self.metrics = metrics
        self.progress = progress
        self._settlement = settlement
        self._saver = saver
        self._heldout = heldout
        self._samples = samples
        self._heads = heads
        self._transport = transport
        self._auditor = auditor
        self._sums = sums

    def ring_traffic(self) -> tuple[int, int]:
        """Bytes sent and received by all rings so far."""
        return self._transport.traffic().get(RING_PROTOCOL, (0, 0))

    async def evaluate(self, opened: OpenRound) -> None:
        """Evaluates on held-out text, and audits a member, if that is due."""
        if self._auditor is not None:
            await self._auditor.measure()
        await self._heldout.evaluate(trio.current_time() - opened.training_since_seconds)

    async def sample(self, opened: OpenRound, round_number: int) -> None:
        """Has the model write for its owner, if that is due. `round_number`: of its state."""
        seconds = trio.current_time() - opened.training_since_seconds
        await self._samples.take(round_number, seconds)

    async def missed(self, opened: OpenRound) -> None:
        """The round has no commit at this node: its work is settled without one."""
        opened.driver.leave()
        better = self._heads.better()
        if self._sums is not None and better is not None:
            first = self._heads.first_of(better.head)
            if first is not None:
                await self._sums.opened_chunks.keep(opened, first)
        await opened.work.missed()
        if opened.driver.is_spoilt:
            await self._settlement.drop_out_of_range()
        await self._saver.save()

    async def committed(self, opened: OpenRound, outcome: Committed) -> None:
        """Makes the round's result the committed state, and settles its work with it."""
        started = trio.current_time()
        if self._auditor is not None:
            await self._auditor.note(outcome)
        if self._sums is not None:
            await self._sums.note(opened, outcome)
        await self._settlement.install(outcome)
        await opened.work.rebase()
        await self._settlement.take(outcome)
        # Two parts of a ring that lost each other may be at two heads, and have to say so.
        is_whole = not lost_members(outcome.commit)
        self._heads.note_new(outcome.proposal.header if is_whole else None)
        opened.work.settled()
        await self._settlement.drop_if_stale()
        await self._saver.save()
        self.metrics.observe_round_phase("committing", trio.current_time() - started)
        if not opened.work.is_ahead:
            await self.evaluate(opened)
            if opened.work.trains_in_ring:
                await self.sample(opened, outcome.proposal.header.round)  # no time is better
        opened.work.go_on()

    def report(
        self,
        opened: OpenRound,
        outcome: Committed | None,
        started_seconds: float,
        traffic: tuple[int, int],
    ) -> None:
        """Shows a round that is over in status, metrics and log.

        Args:
            outcome: None for a round without a commit at this node.
            started_seconds: local time at its start.
            traffic: `ring_traffic` at its start.
        """
        machine, progress = opened.driver.machine, self.progress
        members = machine.ring.members if machine.ring is not None else ()
        result: Outcome = "missed" if outcome is None else "committed"
        contributors: tuple[str, ...] = ()
        if outcome is not None:
            header = outcome.proposal.header
            contributors = tuple(m.peer_id for m in header.members if m.tokens > 0)
        seconds = trio.current_time() - started_seconds
        if outcome is not None:
            opened.took(seconds)
        sent, received = self.ring_traffic()
        progress.last_round = LastRound(
            round=machine.number,
            members=tuple(members),
            contributors=contributors,
            duration_seconds=seconds,
            bytes_sent=sent - traffic[0],
            bytes_received=received - traffic[1],
            outcome=result,
        )
        self.metrics.end_round(result, len(members))
        progress.add_point(self._heldout.point(machine.number))
        log.info(
            f"round {machine.number} {result}",
            peers=len(members),
            loss=None if progress.loss is None else round(progress.loss, 3),
            seconds=round(seconds, 2),
            head=short(self._heads.mine),
            fields={"event": "round ended", "round": machine.number, "outcome": result},
        )
