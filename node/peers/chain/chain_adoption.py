"""Begins a chain at a signed checkpoint, where the headers before it are gone.

A node that is new, or was away for longer than headers are kept, finds no round that a peer's chain
follows. Then it asks this peer for its checkpoints. They are proven from the stakes at this node's
own head: for a newcomer, the founder's (`protocol.policy.heads.chain_checkpoint`). A node that was
led astray compares its own chain with the path, where they part. The headers that the checkpoint
needs are fetched and checked like all others.

A node that stands on an older head keeps it until it has the state of a newer one. Nothing changes
if anything of this fails, and after a crash the disk has the chain before or after it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

import structlog
import trio

from gossamer.node.base.disk_health import DiskError
from gossamer.node.base.threads import RunInThread
from gossamer.node.peers.chain.chain_checkpoints import ChainCheckpoints, NoAnswerError
from gossamer.node.peers.chain.chain_records import BehindError, ChainRecords, OpenedCommit
from gossamer.node.storage.chain.chain_start import ChainStart, start_after
from gossamer.node.storage.state.committed import CommittedState
from gossamer.protocol.errors import MalformedError, UnprovenError
from gossamer.protocol.ids import Digest, PeerId, short
from gossamer.protocol.policy.heads.chain_checkpoint import (
    ChainCheckpoint,
    OpenedCheckpoint,
    follow_path,
)
from gossamer.protocol.policy.heads.chain_summary import ChainSummary, is_mark, marks_of
from gossamer.protocol.policy.heads.head_choice import HeadChoice
from gossamer.protocol.standing import STANDING_ROUNDS
from gossamer.protocol.state.chain import check_follows
from gossamer.protocol.wire.chain_messages import ChainRequest

log = structlog.get_logger("sync")


class ChainAdoption:
    """Begins the chain of one node at a checkpoint."""

    def __init__(
        self,
        committed: CommittedState,
        records: ChainRecords,
        checkpoints: ChainCheckpoints,
        choice: HeadChoice,
        run_in_thread: RunInThread,
    ) -> None:
        self._committed = committed
        self._checkpoints = checkpoints
        self._records = records
        self._choice = choice
        self._run_in_thread = run_in_thread
        self.rolled_back: Callable[[], Iterable[int]] = tuple
        """Returns the rounds from which the run went on after rollbacks."""
        self._adopting = trio.Lock()

    async def adopt(self, peer: PeerId) -> bool:
        """Begins this node's chain at the newest checkpoint of a peer.

        Returns:
            False if the peer has none that is newer than the start of this node's own chain, or
            its newest is on that chain, or it shows none: then the peer has the headers that this
            node asked for, if they exist.

        Raises:
            BehindError: its checkpoint is none for this node, or the disk does not take it.
            RemoteProtocolError: it sent something malformed or forged.
        """
        try:
            return await self._adopt(peer)
        except NoAnswerError as error:
            log.debug("no checkpoint of the chain", peer=peer, problem=str(error))
            return False
        except UnprovenError as error:
            raise BehindError(
                f"{short(peer)} does not keep old headers, and too few members that this node "
                "knows have signed what came before. If the others are the run, stop this node "
                "and join again with a new --state-dir"
            ) from error
        except DiskError as error:
            raise BehindError(f"the disk does not take the chain's checkpoint: {error}") from error

    async def _adopt(self, peer: PeerId) -> bool:
        path = await self._checkpoints.ask_path(peer)
        if not path or not self._is_newer(path[-1].checkpoint):
            return False
        newest = path[-1].checkpoint
        summary = await self._checkpoints.ask_summary(peer, Digest(newest.summary_digest))
        checkpoint, _ = self._proven(path, summary)
        rounds = await self._fetch_rounds(peer, checkpoint)
        # Peers are asked side by side, so that one that answers slowly holds up no other.
        async with self._adopting:
            if not self._is_newer(checkpoint):
                return False
            return await self._begin_after(path, summary, rounds)

    def _is_newer(self, checkpoint: ChainCheckpoint) -> bool:
        """Returns whether this node's chain neither begins there or later nor has that round."""
        chain = self._committed.chain
        first_round = 0 if chain.start is None else chain.start.round
        return checkpoint.round > first_round and not chain.is_whole(Digest(checkpoint.head))

    async def _begin_after(
        self,
        path: Sequence[OpenedCheckpoint],
        summary: ChainSummary,
        rounds: Sequence[OpenedCommit],
    ) -> bool:
        """Begins the chain with these rounds if their checkpoint still wins: this node may have
        committed rounds, or heard of a rollback, while they came. Raises UnprovenError if it does
        not win any more, BehindError if the run took back rounds before it."""
        checkpoint, common = self._proven(path, summary)
        if any(rolled_back < checkpoint.round for rolled_back in self.rolled_back()):
            raise BehindError("the run took back rounds before the checkpoint of this chain")
        oldest = rounds[0][1]
        before_tokens = oldest.tokens_total - oldest.tokens
        before = Digest(oldest.parent)
        head = Digest(checkpoint.head)
        passed = self._committed.chain.passed_on_way(common)
        start = start_after(checkpoint.round, head, before, before_tokens, summary, passed)
        await self._begin(start, rounds)
        try:
            self._checkpoints.take_path(path, summary)
        except UnprovenError:
            # It is proven from this node's own rounds. Other newcomers ask other members.
            log.info("the chain's checkpoint is proven here, and not from the run's beginning")
        else:
            await self._run_in_thread(self._checkpoints.write)
        log.info(
            "the chain begins at a signed checkpoint here; older headers are gone",
            round=checkpoint.round,
            head=short(Digest(checkpoint.head)),
        )
        return True

    def _proven(
        self, path: Sequence[OpenedCheckpoint], summary: ChainSummary
    ) -> tuple[ChainCheckpoint, Digest]:
        """The last checkpoint of a path, if it wins over this node's own chain, and the head of
        this node's chain from which it is proven; else raises UnprovenError.

        The path may go on from this node's head. Or it parts from its chain after a round that the
        summary names. Then the stakes there decide, as between any two branches.
        """
        choice, branch_of = self._choice, self._checkpoints.branch_of
        chain, mine = self._committed.chain, self._committed.entry
        try:
            newest = follow_path(path, choice.stakes_at(mine.head), mine.round, branch_of)
            return newest, mine.head
        except UnprovenError:
            if chain.start is not None or not mine.round:
                raise
        marks = marks_of(summary)
        way = chain.ancestors(mine.head, mine.round)
        common = next((head for head in way if head in marks), chain.genesis)
        round_number = chain.entry(common).round
        # They part before the next round that the summary would name. Up to there this node's chain
        # may be the others' as well.
        apart = next(n for n in itertools.count(round_number + 1) if is_mark(n))
        parted = way[max(0, mine.round - apart)]
        signers = frozenset().union(
            *(each.signers for each in path if each.checkpoint.round > round_number)
        )
        own = choice.signers_since(parted, mine.head)
        if choice.stake_of(common, signers) <= choice.stake_of(common, own):
            raise UnprovenError("no more stake than this node's own chain has where they part")
        return follow_path(path, choice.stakes_at(common), round_number, branch_of), common

    async def _fetch_rounds(self, peer: PeerId, checkpoint: ChainCheckpoint) -> list[OpenedCommit]:
        """The `STANDING_ROUNDS` up to a checkpoint, checked. Raises BehindError if the peer does
        not have them any more, MalformedError if they do not lead to the checkpoint."""
        rounds: list[OpenedCommit] = []
        for _ in range(STANDING_ROUNDS):  # each reply brings one at least
            after = rounds[-1][1].round if rounds else checkpoint.round - STANDING_ROUNDS
            if after >= checkpoint.round:
                break
            page = await self._records.request(peer, ChainRequest(checkpoint.head, after))
            if not page:
                raise BehindError(f"{short(peer)} has not the rounds before its checkpoint")
            for commit, header in page:
                if rounds:
                    last = rounds[-1][1]
                    check_follows(header, last.digest, last.round, last.tokens_total)
                elif header.round != after + 1:
                    raise MalformedError("the rounds before a checkpoint begin too late")
                rounds.append((commit, header))
        newest = rounds[-1][1]
        if len(rounds) != STANDING_ROUNDS or newest.digest != checkpoint.head:
            raise MalformedError("rounds that do not lead to the chain's checkpoint")
        if newest.tokens_total != checkpoint.tokens_total:
            raise MalformedError("a chain checkpoint with other tokens than its header")
        return rounds

    async def _begin(self, start: ChainStart, rounds: Sequence[OpenedCommit]) -> None:
        """Puts the rounds on the disk, then the start, and begins there."""
        chain = self._committed.chain
        for commit, header in rounds:
            chain.add(commit, header)
        if chain.problem is not None:
            raise chain.problem
        await self._run_in_thread(lambda: chain.write_start(start))
        # All that is known stays for now: this node may be committing a round on its old head.
        chain.begin_at(start, chain.tips())
