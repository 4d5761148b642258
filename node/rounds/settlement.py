"""The account of this node's work, which follows the chain: what committed rounds took is not
carried.

`WorkSaver` writes carried work and the trainer's own state to disk between rounds, in a small share
of the time.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Awaitable, Callable, Sequence

import structlog
import trio

from gossamer.node.base.disk_health import DiskError, DiskHealth
from gossamer.node.modes.sync_mode import SyncMode
from gossamer.node.peers.chain.chain_records import BehindError
from gossamer.node.peers.chain.chain_sync import ChainSync
from gossamer.node.peers.swarm import Swarm
from gossamer.node.storage.state.committed import CommittedState
from gossamer.node.storage.state.state_blocks import CannotRebuildError
from gossamer.node.training.local_training import LocalTrainings
from gossamer.protocol.accounting.work_records import ROLLED_BACK, Offered, mask_of, offered_by
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import Digest
from gossamer.protocol.rounds.actions import Committed
from gossamer.protocol.state.chain import ChunkAverage, Header, spans_taken

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
        chain_sync: ChainSync,
        swarm: Swarm,
        trainings: LocalTrainings,
        is_void: Callable[[Digest], bool],
    ) -> None:
        """`is_void`: whether a round on the way to a known head was taken back."""
        self._is_void = is_void
        self._committed = committed
        self._work = trainings.work
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
        left_after = await run_in_thread(lambda: self._settle(ROLLED_BACK if is_void else ""))
        self._averages.clear()
        if left_after is None:
            return
        self._trainings.progress.went_back(left_after)
        if is_void:
            # It was done on parameters that the founder does not want.
            await run_in_thread(lambda: work.drop(ROLLED_BACK))
            await self._trainings.return_data()
        else:
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
                    update = self._committed.blocks.update_index(header)
                    self._averages[header.digest] = update.averages
                except (BehindError, CannotRebuildError, DiskError) as error:
                    log.debug("the contributors of an old round are not known", problem=str(error))

    def _settle(self, reason: str) -> int | None:
        """Returns the round after which rounds have left the chain; None if none have.

        `reason`: see `WorkAccount.abandoned`.
        """
        work, chain, head = self._work, self._committed.chain, self._committed.head
        since = work.head
        if since is None and not work.is_damaged:
            work.moved_to(head)  # a new node: no round has taken any of its work
            return None
        since = since or chain.genesis
        if not self._is_way_known(since):
            log.warning("an old header is gone: what the rounds since took is not known")
            work.moved_to(head)
            return None
        next_round = self._committed.entry.round + 1
        work.account.branch_left(chain.entry(since).round, next_round)
        abandoned = chain.only_in(since, head)
        num_unread = 0
        for lost in abandoned:
            header = self._header(lost)
            if header is None:
                num_unread += 1
            else:
                _, tokens = self._mine(header)
                work.abandoned(lost, header.parent, tokens, next_round, reason)
        unknown: list[int] = []
        for new in reversed(chain.only_in(head, since)):
            header = self._header(new)
            if header is None:
                num_unread += 1
            elif not self._take_out(new, header):
                unknown.append(header.round)
        # One line each: an account that was damaged has all rounds of the chain to go through.
        if num_unread:
            log.warning(
                "records of old rounds cannot be read, so what these took of this node's work is "
                "not known: check the disk",
                num_rounds=num_unread,
            )
        if unknown:
            log.warning(
                "which chunks some old rounds took is not known",
                num_rounds=len(unknown),
                oldest_round=unknown[0],
                newest_round=unknown[-1],
            )
        work.moved_to(head)
        return min(chain.entry(lost).round for lost in abandoned) - 1 if abandoned else None

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
            return self._committed.blocks.header(head)
        except CannotRebuildError as error:
            log.debug("what an old round took is not known", problem=str(error))
            return None

    def _mine(self, header: Header) -> tuple[int, int]:
        """This node's position in a header and its tokens there; 0 tokens if it is not a member."""
        me = self._swarm.me
        for position, member in enumerate(header.members):
            if member.peer_id == me:
                return position, member.tokens
        return 0, 0

    def _take_out(self, head: Digest, header: Header) -> bool:
        """Takes out the work that a round took. Returns whether it is known which chunks it
        took."""
        position, tokens = self._mine(header)
        taken: list[bool] | None = None
        if tokens:
            with contextlib.suppress(CannotRebuildError):
                averages = self._averages.get(head)
                averages = averages or self._committed.blocks.update_index(header).averages
                taken = [each.has(position) for each in averages]
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
        return taken is not None or not tokens

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
        trainings: LocalTrainings,
        mode: SyncMode,
        health: DiskHealth,
        save_losses: Callable[[], Awaitable[None]],
    ) -> None:
        """`save_losses`: writes the curve of losses; raises DiskError."""
        self._committed = committed
        self._work = trainings.work
        self._trainer = trainings.trainer
        self._mode = mode
        self._health = health
        self._run_in_thread = trainings.run_in_thread
        self._save_losses = save_losses
        self._due_seconds = -math.inf
        """Local time of the next regular save."""
        self._retry_seconds = -math.inf

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

    async def retry(self) -> None:
        """Brings to the disk what it has not taken, now and then: a node that trains tries at the
        end of each round."""
        is_on_disk, now = self._committed.is_on_disk, trio.current_time()
        if now < self._retry_seconds or (is_on_disk and not self._health.problem_of("work")):
            return
        self._retry_seconds = now + SAVE_SECONDS
        await self.save(now=True)
        if not is_on_disk:
            with self._health.writing("state"):
                await self._run_in_thread(self._committed.write_missing)

    async def _save_trainer(self, *, wait: bool) -> None:
        if wait:
            await self._trainer.is_saved()  # an earlier save may be under way
        await self._trainer.save(await self._mode.place())
        if wait:
            await self._trainer.is_saved()
