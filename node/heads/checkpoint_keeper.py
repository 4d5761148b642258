"""Makes the checkpoints of this node's chain, collects signatures under them, and lets old headers
go.

`protocol.policy.heads.chain_checkpoint` has the rules. Nothing here is urgent: a checkpoint lies
far behind the head, and headers that are not removed today are removed tomorrow.

After a rollback the members sign no checkpoint of a later round than the one from which the run
went on, and keep all headers since. So a newcomer can always tell whether a chain obeys.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import structlog
import trio

from gossamer.node.base.disk_health import DiskError
from gossamer.node.base.threads import RunInThread
from gossamer.node.heads.rollbacks import Rollbacks
from gossamer.node.network.identity import Identity
from gossamer.node.network.transport import OffenceHandler, Transport
from gossamer.node.peers.chain.chain_checkpoints import ChainCheckpoints, NoAnswerError, Pending
from gossamer.node.storage.chain.chain_start import ChainStart, start_after
from gossamer.node.storage.state.committed import CommittedState
from gossamer.protocol.errors import MalformedError, RemoteProtocolError, UnprovenError
from gossamer.protocol.ids import Digest, PeerId, short
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.policy.heads.chain_checkpoint import (
    checkpoint_of,
    due_round,
    kept_round,
    signing_bytes,
)
from gossamer.protocol.policy.heads.chain_summary import (
    CHECKPOINT_PERIOD,
    NO_SUMMARY,
    ChainSummary,
    extended,
    over_gap,
)
from gossamer.protocol.policy.heads.head_choice import HeadChoice
from gossamer.protocol.standing import STANDING_ROUNDS
from gossamer.protocol.state.chain import Header
from gossamer.protocol.wire.checkpoint_messages import CheckpointSignature

LOOK_SECONDS = 30.0
"""Time between two looks. A checkpoint is due every 256 rounds."""

ASKED_MAX = 8
"""Peers that are asked in one look: with 64 members a checkpoint has its signatures in a few
minutes, and fewer where others have collected them."""

log = structlog.get_logger("chain")


class CheckpointKeeper:
    """Keeps the checkpoints of one node's chain.

    It has more than 7 parameters: making, collecting and obeying a checkpoint each needs other
    parts of the node.
    """

    def __init__(
        self,
        manifest: Manifest,
        identity: Identity,
        transport: Transport,
        committed: CommittedState,
        choice: HeadChoice,
        rollbacks: Rollbacks,
        checkpoints: ChainCheckpoints,
        on_offence: OffenceHandler,
    ) -> None:
        self._manifest = manifest
        self._identity = identity
        self._transport = transport
        self._committed = committed
        self._choice = choice
        self._rollbacks = rollbacks
        self._checkpoints = checkpoints
        self._on_offence = on_offence
        self._turn = 0
        """Number of the next peer to be asked: all have their turn."""
        self._known: tuple[Digest, ChainSummary] | None = None
        """The newest summary that was computed, and its head."""

    async def run(self, run_in_thread: RunInThread) -> None:
        """Looks until cancelled."""
        while True:
            await trio.sleep(LOOK_SECONDS)
            await self.look(run_in_thread)

    async def look(self, run_in_thread: RunInThread) -> None:
        """Does what is due."""
        committed = self._committed
        if not committed.is_loaded or not committed.chain.follows_start(committed.head):
            return
        await self._make(run_in_thread)
        if self._checkpoints.pending is not None:
            await self._collect(run_in_thread)
        if committed.chain.gap_before(committed.head) is not None:
            await self._leave_gap_behind(run_in_thread)
        else:
            await self._let_go(run_in_thread)

    # The checkpoint

    def _bounded(self, round_number: int) -> int:
        """Returns the newest checkpoint's round up to a round and to all rollbacks."""
        bounded = min([round_number, *(each.round for each in self._rollbacks)])
        return bounded - bounded % CHECKPOINT_PERIOD

    async def _make(self, run_in_thread: RunInThread) -> None:
        checkpoints, entry = self._checkpoints, self._committed.entry
        rounds = self._manifest.rounds
        due = self._bounded(due_round(entry.round, rounds.checkpoint_rounds))
        head = self._ancestor(entry.head, due)
        if head is None or due <= checkpoints.last_round:
            return
        pending = checkpoints.pending
        if pending is not None and pending.checkpoint.head == head:
            return
        me, run_id = self._identity.peer_id, self._manifest.run_id
        is_alone = self._choice.stakes_at(head).keys() == {me}  # no thread may ask
        summary = await run_in_thread(lambda: self._summary_at(head, is_alone=is_alone))
        header = await run_in_thread(lambda: self._header(head))
        if summary is None or header is None or head not in self._committed.chain:
            return
        stakes, tokens = self._choice.stakes_at(head), self._choice.tokens_at(head)
        checkpoint = checkpoint_of(header, stakes, summary, tokens)
        signature = self._identity.sign(signing_bytes(run_id, checkpoint.digest))
        mine = {me: CheckpointSignature(me, signature)}
        checkpoints.pending = Pending(checkpoint, summary, mine)

    def _ancestor(self, head: Digest, round_number: int) -> Digest | None:
        """Returns the head of a round of a checkpoint on the way to a head; None if there is none,
        or if the chain that is kept begins later."""
        chain = self._committed.chain
        first = 0 if chain.start is None else chain.start.round
        if not max(1, first) <= round_number <= chain.entry(head).round:
            return None
        found = chain.ancestors(head, chain.entry(head).round - round_number)[-1]
        # Behind a missing record the ancestors end too early.
        return found if found in chain and chain.entry(found).round == round_number else None

    def _summary_at(self, head: Digest, *, is_alone: bool = False) -> ChainSummary | None:
        """The summary up to a head, from the newest one that is known on the way to it; None if a
        record on the way cannot be read. `is_alone`: whether this node has all stake at the
        head."""
        chain = self._committed.chain
        base, summary = chain.genesis, NO_SUMMARY
        if chain.start is not None:
            base, summary = Digest(chain.start.head), chain.start.decoded_summary()
        way = [head] if base == head else chain.path_between(base, head)
        if way is None:
            return self._summary_over_gaps(head, base, summary) if is_alone else None
        places = {each: place for place, each in enumerate(way, start=1)}
        place = len(way) if base == head else 0
        """The number of heads on the way that the summary has."""
        known, last = self._known, self._checkpoints.last
        if known is not None and known[0] in places:
            place, summary = places[known[0]], known[1]
        try:
            if last is not None and last.head in places and last.round >= summary.round:
                at = places[Digest(last.head)]
                own = extended(summary, self._headers(way[place:at]))
                place, summary = at, self._signed_or(own)
            result = extended(summary, self._headers(way[place:]))
        except _UnreadableError:
            return None
        self._known = head, result
        return result

    def _signed_or(self, own: ChainSummary) -> ChainSummary:
        """Returns the summary of the newest signed checkpoint, from which all members go on; or
        this node's own one if that gives a member more than the chain does.

        The two differ where the disk of the only signer had lost a record (`_summary_over_gaps`).
        """
        signed = self._checkpoints.last_summary
        tokens = {row.peer_id: row.tokens for row in own.rows}
        if signed is None or any(row.tokens > tokens.get(row.peer_id, 0) for row in signed.rows):
            return own
        return signed

    def _summary_over_gaps(
        self, head: Digest, base: Digest, summary: ChainSummary
    ) -> ChainSummary | None:
        """The summary up to a head behind missing records, where no other member can have them.

        The members of a run sign the same summary. So a node makes one of its own only where it
        has all stake: then the work of all newest rounds is its own, and a newcomer could not join
        without it. None: the missing record is among the rounds that say who has stake.
        """
        chain = self._committed.chain
        if len(chain.ancestors(head, STANDING_ROUNDS)) <= STANDING_ROUNDS:
            return None
        newest = base
        try:
            for piece in chain.pieces_to(head):
                for header in self._headers(piece):
                    if header.parent != newest:
                        summary = over_gap(summary, header)
                    summary = extended(summary, [header])
                    newest = header.digest
        except (_UnreadableError, MalformedError):
            return None
        return summary

    async def _leave_gap_behind(self, run_in_thread: RunInThread) -> None:
        """Begins the chain at the newest signed checkpoint if the missing record lies before it."""
        committed, chain = self._committed, self._committed.chain
        mine = committed.head
        start = await run_in_thread(lambda: chain.start_behind_gap(mine))
        if start is None:
            return
        try:
            await run_in_thread(lambda: chain.write_start(start))
        except DiskError as error:
            log.warning("the chain keeps its damaged beginning", problem=str(error))
            return
        if chain.path_between(Digest(start.head), committed.head) is None:
            return  # the node has left that branch meanwhile
        chain.begin_at(start)
        await run_in_thread(chain.remove_leftover)
        log.info("the missing record is not needed any more", round=start.round)

    def _headers(self, heads: Iterable[Digest]) -> Iterable[Header]:
        for head in heads:
            header = self._header(head)
            if header is None:
                raise _UnreadableError
            yield header

    def _header(self, head: Digest) -> Header | None:
        try:
            return self._committed.chain.header(head)
        except (KeyError, OSError, RemoteProtocolError) as error:
            log.warning("an old header cannot be read", head=short(head), error=str(error))
            return None

    # Signatures

    async def _collect(self, run_in_thread: RunInThread) -> None:
        checkpoints = self._checkpoints
        is_new = checkpoints.take_if_proven()
        for peer in self._next_peers():
            if is_new:
                break
            try:
                await checkpoints.ask_signatures(peer)
                is_new = checkpoints.take_if_proven() or await self._take_path_of(peer)
            except (NoAnswerError, UnprovenError) as error:
                # Nodes whose rolls differ may count differently for a while.
                log.debug("no signatures of a chain checkpoint", problem=str(error))
            except RemoteProtocolError as error:
                self._on_offence(peer, error)
        if is_new:
            await run_in_thread(checkpoints.write)
            log.info("a checkpoint of the chain is signed", round=checkpoints.last_round)

    def _next_peers(self) -> list[PeerId]:
        peers = sorted(self._transport.peers())
        chosen = list(itertools.islice(itertools.cycle(peers), self._turn, self._turn + ASKED_MAX))
        self._turn = (self._turn + ASKED_MAX) % max(1, len(peers))
        return list(dict.fromkeys(chosen))

    async def _take_path_of(self, peer: PeerId) -> bool:
        """Takes the path of a peer whose newest checkpoint is on this node's chain and newer than
        its own: this node missed one on the way."""
        checkpoints = self._checkpoints
        path = await checkpoints.ask_path(peer)
        if not path or path[-1].checkpoint.round <= checkpoints.last_round:
            return False
        last = path[-1].checkpoint
        if self._ancestor(self._committed.head, last.round) != last.head:
            return False
        summary = await checkpoints.ask_summary(peer, Digest(last.summary_digest))
        if last.round <= checkpoints.last_round:
            return False  # a newer path has come meanwhile
        checkpoints.take_path(path, summary)
        checkpoints.pending = None
        return True

    # Old headers

    async def _let_go(self, run_in_thread: RunInThread) -> None:
        """Removes the headers that nobody needs any more, if there is a checkpoint for those that
        would."""
        committed, chain = self._committed, self._committed.chain
        if chain.start is not None and chain.has_unlinked:
            chain.begin_at(chain.start)  # the head that was left is not needed any more
        await run_in_thread(chain.remove_leftover)
        round_number = self._round_to_keep()
        first = 0 if chain.start is None else chain.start.round
        head = self._ancestor(committed.head, round_number)
        if round_number <= first or head is None or chain.problem is not None:
            return
        start = await run_in_thread(lambda: self._start_at(head))
        # Only from a head that follows the start, or a round under way would lose its parent.
        if start is None or self._ancestor(committed.head, round_number) != head:
            return
        try:
            await run_in_thread(lambda: chain.write_start(start))
        except DiskError as error:
            log.warning("old headers stay on the disk", problem=str(error))
            return
        if self._ancestor(committed.head, round_number) != head:
            return  # it counts from the next start on, or is replaced
        chain.begin_at(start)
        num_removed = await run_in_thread(chain.remove_leftover)
        log.info("old headers are removed", round=round_number, removed=num_removed)

    def _round_to_keep(self) -> int:
        committed, manifest = self._committed, self._manifest
        rounds = manifest.rounds
        kept = kept_round(committed.entry.round, rounds.checkpoint_rounds, manifest.stale_rounds)
        bounds = [kept, self._checkpoints.last_round]
        bounds += [entry.round for entry in committed.checkpoints]
        return self._bounded(min(bounds))

    def _start_at(self, head: Digest) -> ChainStart | None:
        """The start at a checkpoint of the own chain; in a thread."""
        chain = self._committed.chain
        summary = self._summary_at(head)
        before = chain.ancestors(head, STANDING_ROUNDS)
        if summary is None or len(before) <= STANDING_ROUNDS:
            return None
        entry, passed = chain.entry(before[-1]), chain.passed_on_way(head)
        return start_after(summary.round, head, entry.head, entry.tokens_total, summary, passed)


class _UnreadableError(Exception):
    """A header on the way cannot be read."""
