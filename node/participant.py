"""The life of a node in its run: get the state, then train, average and commit, round after round.

    joining -> syncing -> training -> averaging -> training ...
                  ^          |            |
                  +----------+------------+   a heavier head was seen: take it over
    paused: no trainer, but heads are followed and blocks served.   leaving: one last round, then out.

One task runs this loop; everything that arrives from outside only leaves a note and wakes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import structlog
import trio

from gossamer.node.chain_sync import BehindError, ChainSync
from gossamer.node.committed import (
    CannotRebuildError,
    CommittedState,
    Replayed,
    chunks_with,
)
from gossamer.node.data_feed import DataFeed
from gossamer.node.identity import Identity, verify
from gossamer.node.metrics import Metrics
from gossamer.node.residual import settle
from gossamer.node.ring_link import RING_PROTOCOL, TokenHandler
from gossamer.node.round_driver import HELLO_SECONDS, RoundDriver, RunInThread
from gossamer.node.state_dir import DiskFullError
from gossamer.node.status import LastRound, LossHistory, LossPoint, Outcome
from gossamer.node.swarm import Swarm
from gossamer.node.training import Trainer
from gossamer.node.transport import Transport
from gossamer.node.work import Work
from gossamer.protocol.chain import Commit, Header, is_heavier, spans_taken
from gossamer.protocol.errors import ForgedError, MalformedError, RemoteProtocolError
from gossamer.protocol.ids import Digest, PeerId, short
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.messages import Phase, Ready, Roster, Signed, Statement, open_signed
from gossamer.protocol.round import Committed, Round, RoundRules
from gossamer.trainer.messages import Finished, Step

FIRST_CONTACT_SECONDS = 3.0
"""A node with a seed waits this long for the swarm's announcements before it starts alone."""

OVERTAKEN_SECONDS = 5.0
"""A ring member that hears of the commit by others finishes within this, or fetches."""

NEAR_ROUNDS = 2
"""Rounds that a peer may be behind the head and still be waited for. Without it a newcomer would run
after a swarm of quick rounds for ever."""

AVOID_SECONDS = 20.0
"""A head that could not be reached is left alone this long."""

POLL_SECONDS = 0.25

LEAVE_SECONDS = 20.0
"""An orderly leave gives its last round this long; then the work stays on disk as residual."""

SAVE_SECONDS = 30.0
"""Residual that is only rounding error, and the inner optimiser, are written at most this often."""

EVALUATION_SHARE = 0.02
"""Part of the wall time that evaluating on held-out text may take."""

EVALUATION_TOKENS_MAX = 65_536

log = structlog.get_logger("node")


class LeaveRequested(Exception):
    """The node was asked to leave, at a point where there is nothing to finish."""


@dataclass
class Evaluation:
    """When held-out text is evaluated, so that it takes no more than its share."""

    next_seconds: float = -math.inf

    def done(self, started_seconds: float, now: float) -> None:
        self.next_seconds = now + (now - started_seconds) / EVALUATION_SHARE


class Participant:
    """One node in one run."""

    def __init__(
        self,
        *,
        manifest: Manifest,
        identity: Identity,
        transport: Transport,
        committed: CommittedState,
        chain_sync: ChainSync,
        trainer: Trainer,
        feed: DataFeed,
        swarm: Swarm,
        work: Work,
        metrics: Metrics,
        run_in_thread: RunInThread,
        heldout_paths: Callable[[], list[str]],
    ) -> None:
        self.manifest = manifest
        self._identity = identity
        self._me = identity.peer_id
        self._transport = transport
        self.committed = committed
        self._sync = chain_sync
        self.trainer = trainer
        self.feed = feed
        self.swarm = swarm
        self.work = work
        self._metrics = metrics
        self._run_in_thread = run_in_thread
        self._heldout_paths = heldout_paths
        self._rules = RoundRules(
            manifest.outer.codec,
            manifest.outer.chunk_elements,
            committed.plan.num_chunks,
            manifest.rounds.gather_seconds,
            manifest.rounds.attempt_seconds,
        )
        self.phase: Phase = "joining"
        self.problem: str | None = None
        self.heldout_loss: float | None = None
        self.loss: float | None = None
        self.last_round: LastRound | None = None
        self.history = LossHistory()
        self._driver: RoundDriver | None = None
        self._news = trio.Event()
        self._pause_wanted = False
        self._leave_wanted = False
        self._avoid: dict[Digest, float] = {}
        self._better_since: tuple[Digest, float] | None = None
        self._evaluation = Evaluation()
        self._saved_seconds = -math.inf
        self._fresh_heldout_loss: float | None = None
        self.inner_step = 0
        self.inner_steps = 0
        self.has_bootstrap = False
        """Whether there is anybody to hear of before starting alone."""

    # Orders and events from outside

    def pause(self) -> None:
        self._pause_wanted = True
        self._wake()

    def resume(self) -> None:
        self._pause_wanted = False
        self._wake()

    def leave(self) -> None:
        """Leave in order: `run` returns when that is done."""
        self._leave_wanted = True
        self._wake()

    def fail(self, problem: str) -> None:
        """The node cannot train any more; it goes on serving what it has."""
        self.problem = problem
        self._set_phase("failed")
        log.error("failed", problem=problem)

    def stepped(self, step: Step) -> None:
        """The trainer did an inner step."""
        self.inner_step += 1
        if not step.skipped:
            self.loss = step.loss

    def heard(self, signed: Signed, statement: Statement) -> None:
        """A statement about some round."""
        if self._driver is not None:
            self._driver.heard(signed, statement)

    def heard_commit(self, commit: Commit, header: Header) -> None:
        """A checked commit record."""
        chain = self.committed.chain
        driver = self._driver
        if driver is not None and driver.is_running and driver.commit_received(commit):
            return
        if Digest(header.parent) in chain:
            entry = chain.entry(Digest(header.parent))
            if (
                header.round == entry.round + 1
                and header.tokens_total == entry.tokens_total + header.tokens
            ):
                try:
                    chain.add(commit, header)
                except DiskFullError as error:
                    log.error("a committed header is in memory only", problem=str(error))
        self._wake()

    def disconnected(self, peer: PeerId) -> None:
        if self._driver is not None:
            self._driver.disconnected(peer)

    def members_changed(self) -> None:
        if self._driver is not None and self._driver.is_running:
            self._driver.tick()
        self._wake()

    async def replayed(self, replayed: Replayed) -> None:
        """A committed round was taken over from its blocks; it may contain this node's work."""
        header = replayed.header
        members = [member.peer_id for member in header.members]
        driver = self._driver
        # Without a driver this node has just started: what it carries is from its earlier life.
        is_mine = driver is None or driver.ring_id == header.ring_id
        if self._me in members and is_mine:
            taken = chunks_with(replayed.update.finals, members.index(self._me))
            await self._settle(header, taken)

    async def greeted(self, peer: PeerId, envelope: Signed) -> TokenHandler | None:
        """A ring member opened its stream to us."""
        statement = open_signed(envelope, self.manifest.run_id, verify)
        if not isinstance(statement, Roster):
            raise MalformedError("ring stream without a roster")
        with trio.move_on_after(HELLO_SECONDS):
            while True:
                driver = self._driver
                if driver is not None and driver.is_running:
                    if driver.machine.head == statement.head:
                        return await driver.greeted(envelope, statement)
                    if statement.round < driver.machine.number:
                        return None
                await self._news.wait()
        return None

    def _wake(self) -> None:
        self._news.set()
        self._news = trio.Event()

    # The loop

    async def run(self) -> None:
        """Takes part in the run until asked to leave. Then returns, with everything on disk."""
        async with trio.open_nursery() as rounds:
            try:
                await self._get_first_state()
                while not self._leave_wanted:
                    if self._pause_wanted:
                        await self._paused()
                        continue
                    await self._catch_up()
                    await self._one_round(rounds)
            except LeaveRequested:
                pass
            await self._leave()
            rounds.cancel_scope.cancel()

    def _set_phase(self, phase: Phase) -> None:
        if phase != self.phase:
            self.phase = phase
            self._metrics.set_phase(phase)
        self.swarm.announce()
        self._wake()

    async def _get_first_state(self) -> None:
        self._set_phase("joining")
        await self._run_in_thread(self.work.load)
        restored = await self._run_in_thread(self.committed.restore)
        if restored:
            await self._settle_earlier_rounds()
            entry = self.committed.entry
            log.info("state found on disk", round=entry.round, head=short(entry.head))
        self._set_phase("syncing")
        if self.has_bootstrap:
            # In a swarm that has rounds behind it, nobody should begin again with the first one.
            with trio.move_on_after(FIRST_CONTACT_SECONDS):
                while not self.swarm.living():
                    await self._news.wait()
        while not self.committed.is_loaded:
            self._check_leave()
            if self._better_head() is not None:
                await self._catch_up()
                continue
            await self._begin_at_genesis()

    async def _settle_earlier_rounds(self) -> None:
        """Takes out of the carried work what rounds took after it was last written to disk."""
        committed = self.committed
        since = Digest(self.work.account.head)
        path = committed.chain.path_between(since, committed.head) if since else None
        for head in path or ():
            try:
                header = committed.chain.header(head)
                finals = committed.finals_of(header)
            except (CannotRebuildError, OSError, RemoteProtocolError) as error:
                log.warning("an old round is damaged; its share is not settled", error=str(error))
                continue
            members = [member.peer_id for member in header.members]
            if self._me in members:
                await self._settle(header, chunks_with(finals, members.index(self._me)))

    async def _begin_at_genesis(self) -> None:
        await self.trainer.genesis()
        initial = np.array(self.trainer.base)
        try:
            await self._run_in_thread(lambda: self.committed.set_genesis(initial))
            return
        except ForgedError:
            log.info("this machine draws other initial weights; they are fetched from peers")
        try:
            await self._sync.follow(self.committed.chain.genesis, self.swarm.sources)
        except BehindError as error:
            log.warning("no peer has the initial state yet", error=str(error))
            await self._pause_for_news(2.0)

    def _check_leave(self) -> None:
        if self._leave_wanted:
            raise LeaveRequested

    async def _pause_for_news(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await self._news.wait()

    # Heads

    def _better_head(self) -> tuple[Digest, int] | None:
        """The heaviest head known that wins over mine, with its tokens; None if mine is best."""
        now = trio.current_time()
        chain = self.committed.chain
        mine = self.committed.entry
        best: tuple[Digest, int] | None = None
        known = [(Digest(a.head), a.tokens_total) for a in self.swarm.living().values()]
        known += [(head, 0) for head in chain.tips()]
        for head, claimed_tokens in known:
            tokens = chain.entry(head).tokens_total if head in chain else claimed_tokens
            if self._avoid.get(head, -math.inf) > now:
                continue
            if is_heavier(tokens, head, mine.tokens_total, mine.head) and (
                best is None or is_heavier(tokens, head, best[1], best[0])
            ):
                best = (head, tokens)
        if best is None:
            self._better_since = None
        elif self._better_since is None:
            self._better_since = (best[0], now)
        return best

    async def _catch_up(self) -> None:
        """Takes over the heaviest head, if there is one that wins over mine."""
        while (better := self._better_head()) is not None:
            self._check_leave()
            head, _ = better
            if self.phase != "paused":
                self._set_phase("training" if self._is_near(head) else "syncing")
            try:
                await self._take_over(head)
            except (BehindError, RemoteProtocolError) as error:
                log.warning(
                    "a heavier head could not be taken over", head=short(head), error=str(error)
                )
                now = trio.current_time()
                self._avoid = {h: t for h, t in self._avoid.items() if t > now}
                self._avoid[head] = now + AVOID_SECONDS
                continue
            self._note_new_head()
            entry = self.committed.entry
            log.info("at the swarm's head", round=entry.round, head=short(entry.head))
            self._drop_if_stale()

    def _is_near(self, head: Digest) -> bool:
        """Whether I am so few rounds behind a head that the others may wait for me."""
        chain = self.committed.chain
        return self.committed.is_loaded and (
            head not in chain or self.committed.head in chain.ancestors(head, NEAR_ROUNDS)
        )

    async def _take_over(self, head: Digest) -> None:
        chain = self.committed.chain
        if head not in chain or chain.path_between(chain.genesis, head) is None:
            holders = [p for p, a in self.swarm.living().items() if a.head == head]
            if not holders:
                raise BehindError("nobody who has it is connected")
            for holder in holders:
                try:
                    await self._sync.learn(head, holder)
                    break
                except BehindError:
                    if holder == holders[-1]:
                        raise
                except RemoteProtocolError as error:
                    self.swarm.offence(holder, error)
                    raise
        mine = self.committed.head
        if self.committed.is_loaded and not chain.is_heavier(head, mine):
            raise BehindError("it is lighter than was said")
        await self._sync.follow(head, self.swarm.sources)
        for lost in chain.only_in(mine, head):
            await self._run_in_thread(lambda lost=lost: self.work.reclaim(lost))  # type: ignore[misc]

    def _note_new_head(self) -> None:
        entry = self.committed.entry
        self._better_since = None
        self._metrics.round.set(entry.round)
        board = self.swarm.gossip.board
        board.age()
        board.keep(
            lambda _signed, statement: (
                not isinstance(statement, Ready | Roster) or statement.round > entry.round
            )
        )
        self.swarm.announce()

    # One round

    def _new_driver(self) -> RoundDriver:
        machine = Round(
            me=self._me,
            run_id=self.manifest.run_id,
            parent=self.committed.parent,
            rules=self._rules,
            sign=self._identity.sign,
            verify=verify,
        )
        recent_heads = self.committed.chain.ancestors(machine.head, NEAR_ROUNDS)
        return RoundDriver(
            machine,
            me=self._me,
            transport=self._transport,
            gossip=self.swarm.gossip,
            plan=self.committed.plan,
            pending=self.trainer.pending,
            codec_name=self.manifest.outer.codec,
            compute=self.committed.compute,
            run_in_thread=self._run_in_thread,
            on_offence=self.swarm.offence,
            on_removed=lambda _peer, reason: self._metrics.ring_skips.add(reason.split(":")[0]),
            expected=lambda: self.swarm.expected(recent_heads),
            reach=self.swarm.reach,
        )

    async def _one_round(self, rounds: trio.Nursery) -> None:
        """Trains and averages once, or until something better is known. Not when paused."""
        driver = self._new_driver()
        self._driver = driver
        rounds.start_soon(driver.run)
        self._wake()
        started = trio.current_time()
        sent, received = self._transport.traffic().get(RING_PROTOCOL, (0, 0))
        try:
            await self._train(driver)
            trained = trio.current_time()
            self._metrics.observe_round_phase("training", trained - started)
            if self.work.account.carried > 0 and self._better_head() is None:
                driver.ready(self._ready(driver.machine.number))
                self._set_phase("averaging")
            outcome = await self._outcome(driver)
        except BaseException:
            driver.cancel()
            raise
        if outcome is None:
            driver.leave()
        else:
            self._metrics.observe_round_phase("averaging", trio.current_time() - trained)
            await self._commit(outcome)
        ring = driver.machine.ring
        if ring is None and outcome is None:
            return
        now_sent, now_received = self._transport.traffic().get(RING_PROTOCOL, (0, 0))
        self._report_round(
            driver, outcome, trio.current_time() - started, now_sent - sent, now_received - received
        )

    async def _train(self, driver: RoundDriver) -> None:
        """Inner steps, until done or there is a reason to stop; the work is in `pending`."""
        outer, inner = self.manifest.outer, self.manifest.inner
        number = driver.machine.number
        steps = outer.inner_steps_of(number)
        self.inner_steps, self.inner_step = steps, 0
        self.feed.want(steps * inner.sequences_per_step * self.manifest.model.context)
        self._set_phase("training")
        if self.feed.give_up_lost_claims():
            await self.trainer.forget()
            self.feed.requeue()
        finished: list[Finished] = []

        async def train() -> None:
            finished.append(
                await self.trainer.train(
                    number,
                    outer.first_inner_step_of(number),
                    steps,
                    self.manifest.rounds.round_seconds,
                )
            )
            self._wake()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(train)
            stopped = False
            while not finished:
                await self._pause_for_news(POLL_SECONDS)
                if not stopped and not finished and self._should_stop_training(driver):
                    stopped = True
                    await self.trainer.stop()
        await self._take_work(number, finished[0])

    def _should_stop_training(self, driver: RoundDriver) -> bool:
        if self._leave_wanted or self._pause_wanted or self._better_head() is not None:
            return True
        deadline = driver.machine.stop_training_seconds
        return deadline is not None and trio.current_time() >= deadline

    async def _take_work(self, number: int, finished: Finished) -> None:
        self.work.trained(number, finished.tokens, self.feed.consumed(finished.spans))
        if finished.tokens and math.isfinite(finished.loss_mean):
            self.loss = finished.loss_mean
        pending = self.trainer.pending
        if not await self._run_in_thread(lambda: bool(np.isfinite(pending).all())):
            self.work.drop("nonfinite")
            await self._retrain_dropped()

    async def _retrain_dropped(self) -> None:
        """The data behind dropped work goes back to the pool, from where we may take it again."""
        await self.trainer.forget()
        self.feed.forget_progress()

    def _ready(self, number: int) -> Ready:
        account = self.work.account
        return Ready(
            round=number,
            head=self.committed.head,
            tokens=account.carried,
            steps=self.inner_step,
            loss=self.loss if self.loss is not None else 0.0,
            spans=tuple(account.spans),
        )

    async def _outcome(self, driver: RoundDriver) -> Committed | None:
        """Waits for the commit here; None when the round is not to be waited for any more."""
        leave_seconds = math.inf
        while driver.committed is None:
            if self._leave_wanted:
                leave_seconds = min(leave_seconds, trio.current_time() + LEAVE_SECONDS)
            if self._is_overtaken(driver) or trio.current_time() > leave_seconds:
                return None
            if not driver.machine.is_ready and self._better_head() is None:
                # No work of mine: without a peer that goes on, train again.
                return None
            with trio.move_on_after(POLL_SECONDS):
                await driver.finished.wait()
        return driver.committed

    def _is_overtaken(self, driver: RoundDriver) -> bool:
        """Whether a head is committed elsewhere that this round's own result would not win over."""
        better = self._better_head()
        if better is None or better[1] < driver.machine.attainable_tokens:
            return False
        assert self._better_since is not None
        in_ring = driver.machine.successor is not None
        patience = OVERTAKEN_SECONDS if in_ring else 0.0
        return trio.current_time() >= self._better_since[1] + patience

    async def _commit(self, committed: Committed) -> None:
        started = trio.current_time()
        payloads = [final.payload for final in committed.finals]
        proposal = committed.proposal
        await self._run_in_thread(
            lambda: self.committed.install(committed.commit, proposal, payloads)
        )
        members = [member.peer_id for member in proposal.header.members]
        position = members.index(self._me)
        await self._settle(proposal.header, chunks_with(proposal.update.finals, position))
        self.swarm.gossip.publish_commit(committed.commit)
        self._note_new_head()
        self._drop_if_stale()
        await self._save()
        self._metrics.observe_round_phase("committing", trio.current_time() - started)
        await self._evaluate()

    async def _settle(self, header: Header, taken: list[bool]) -> None:
        """My share of a committed round leaves `pending` and the account."""
        pending, plan = self.trainer.pending, self.committed.plan
        contribution = None if self._driver is None else self._driver.contribution
        tokens = next(m.tokens for m in header.members if m.peer_id == self._me)
        counted = spans_taken(sum(taken), len(taken))

        def take() -> None:
            went = settle(pending, plan, taken, contribution)
            self.work.committed(header.digest, header.round, tokens, counted, went)

        await self._run_in_thread(take)

    def _drop_if_stale(self) -> None:
        next_round = self.committed.entry.round + 1
        if self.work.is_stale(next_round):
            self.work.drop("stale")
            self.feed.forget_progress()

    def _report_round(
        self,
        driver: RoundDriver,
        outcome: Committed | None,
        seconds: float,
        bytes_sent: int,
        bytes_received: int,
    ) -> None:
        ring = driver.machine.ring
        members = ring.members if ring is not None else ()
        contributors: tuple[str, ...] = ()
        result: Outcome = "missed" if outcome is None else "committed"
        if outcome is not None:
            header = outcome.proposal.header
            contributors = tuple(m.peer_id for m in header.members if m.tokens > 0)
        self.last_round = LastRound(
            round=driver.machine.number,
            members=tuple(members),
            contributors=contributors,
            duration_seconds=seconds,
            bytes_sent=bytes_sent,
            bytes_received=bytes_received,
            outcome=result,
        )
        self._metrics.end_round(result, len(members))
        self.history.add(
            LossPoint(
                round=driver.machine.number, loss=self.loss, heldout_loss=self._new_heldout_loss()
            )
        )
        log.info(
            f"round {driver.machine.number} {result}",
            peers=len(members),
            loss=None if self.loss is None else round(self.loss, 3),
            seconds=round(seconds, 2),
            head=short(self.committed.head),
        )

    # Besides

    def _new_heldout_loss(self) -> float | None:
        loss, self._fresh_heldout_loss = self._fresh_heldout_loss, None
        return loss

    async def _evaluate(self) -> None:
        """Loss on held-out text, if it is its turn."""
        started = trio.current_time()
        paths = self._heldout_paths()
        if started < self._evaluation.next_seconds or not paths:
            return
        evaluated = await self.trainer.evaluate(paths, EVALUATION_TOKENS_MAX)
        self._evaluation.done(started, trio.current_time())
        if evaluated is not None and math.isfinite(evaluated.loss):
            self.heldout_loss = self._fresh_heldout_loss = evaluated.loss
            self._metrics.heldout_loss.set(evaluated.loss)

    async def _save(self, *, now: bool = False) -> None:
        """Residual and inner optimiser to disk, where it is time."""
        due = trio.current_time() - self._saved_seconds > SAVE_SECONDS
        if not (now or due or self.work.must_save):
            return
        try:
            head = self.committed.head
            await self._run_in_thread(lambda: self.work.save(head))
            if now or due:
                self._saved_seconds = trio.current_time()
                await self.trainer.save()
        except (DiskFullError, OSError) as error:
            log.error("the residual was not written", problem=str(error))

    async def _paused(self) -> None:
        """The device is free; heads are followed, blocks are served."""
        log.info("paused; the device is free")
        await self._save(now=True)
        await self.trainer.suspend()
        self._set_phase("paused")
        while self._pause_wanted and not self._leave_wanted:
            await self._catch_up()
            await self._pause_for_news(POLL_SECONDS)
        log.info("resumed")
        self.trainer.resume()
        self.feed.requeue()

    async def _leave(self) -> None:
        """Everything to disk, and good-bye."""
        self._set_phase("leaving")
        await self._save(now=True)
        if self.committed.is_loaded:
            try:
                await self._run_in_thread(self.committed.checkpoint)
            except DiskFullError as error:
                log.error("the last state was not written as a checkpoint", problem=str(error))
        self.swarm.announce()
        await trio.sleep(POLL_SECONDS)  # the good-bye is on its way out
        log.info("left in order", round=self.committed.entry.round)
