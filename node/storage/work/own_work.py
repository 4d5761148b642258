"""This node's own work: the account, `pending`, and the vectors of offers.

`protocol/accounting/work_account.py` has the rules. This module applies them to the vectors
(`pending_vector`), the files (`work_files`, `work_journal`) and the metrics.

The journal names the `pending` that it goes on from. So a new life knows what the earlier one had
trained, which part of it is on disk, and that the rest is lost. The journal and the offers are not
synced: they are whole after a kill. After a power cut they may be old. Then the account is that of
`pending`, and what the chain says after it counts.

Work that a committed round took is kept as long as the manifest lets work be stale. If the swarm
turns out to have gone another way (a split that healed), it is carried again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from gossamer.node.storage.work.dropped_work import LostRounds, say_dropped
from gossamer.node.storage.work.pending_vector import OfferedTo, PendingVector, RoundingErrors
from gossamer.node.storage.work.work_files import WorkFiles
from gossamer.node.storage.work.work_journal import VERSION, FileHeader, Journal, copy_of
from gossamer.node.telemetry.metrics import Metrics
from gossamer.node.telemetry.status import WorkStatus
from gossamer.protocol.accounting.work_account import WorkAccount
from gossamer.protocol.accounting.work_records import (
    EXCESS,
    STALE,
    Offer,
    Offered,
    Settlement,
)
from gossamer.protocol.ids import Digest
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.state.digest import FloatVector
from gossamer.protocol.wire.statements import Span

VECTORS_MAX = 16
"""Limit of the vectors of offers on disk, each as large as the model. There are fewer if work is
stale sooner."""

log = structlog.get_logger("work")


@dataclass
class _OpenOffer:
    """The newest offer, while `pending` is what was offered."""

    offer: Offer
    ring: OfferedTo | None = None
    """The ring that it went into last."""


class Work:
    """The account with its files and metrics.

    Calls may come from a thread, one at a time. Only `stepped` and `status` may be called by the
    event loop meanwhile: an inner step changes no more of the account than the tokens under way.

    It has more than 15 public methods: each event in the life of work is one. It has more than 7
    parameters and 12 attributes, for it keeps vector, files, journal and metrics true to one
    account.
    """

    def __init__(
        self,
        directory: Path,
        pending: FloatVector,
        plan: ChunkPlan,
        stale_rounds: int,
        metrics: Metrics,
        *,
        tokens_max: int,
        clock: Callable[[], float] = time.monotonic,
        life: Callable[[], int] = lambda: 0,
    ) -> None:
        """
        Args:
            pending: (num_elements,), shared memory of this node. Other code adds to it between
                `close_offer` and `trained` only.
            plan: the chunks of `pending`.
            tokens_max: the most that one offer may have (`WorkBounds.tokens_max`).
            clock: local seconds.
            life: number of the node's present life, as its `Ready` says it.
        """
        self.directory = directory
        """Where its files lie."""
        self._life = life
        self._files = WorkFiles(directory, pending.size)
        self._journal = Journal(self._files.journal_path, clock)
        self._pending = PendingVector(pending, plan)
        self._plan = plan
        self._num_chunks = plan.num_chunks
        self._stale_rounds = stale_rounds
        self._tokens_max = tokens_max
        self._metrics = metrics
        self.account = WorkAccount(plan.num_chunks, stale_rounds)
        self._dropped: dict[str, int] = {}
        """Tokens by reason that the metrics know to be dropped, and those of earlier lives."""
        self._saved_number = 0
        self._event = 0
        self._open: _OpenOffer | None = None
        self._sequence = 0
        """Number of a `Ready` whose offer is still to come; 0: there is none."""
        self._lost = LostRounds()
        """The rounds `abandoned` on the way to the next head."""
        self.status = WorkStatus()
        """The sums of the account as of its newest event. Replaced at once."""

    @property
    def is_damaged(self) -> bool:
        """Returns whether `load` found a file that it could not read. The chain knows this node's
        work in it."""
        return self._files.is_damaged

    @property
    def head(self) -> Digest | None:
        """The committed head up to which the account is true; None before the first."""
        return Digest(self.account.state.head) if self.account.state.head else None

    # Training

    def stepped(self, tokens: int) -> None:
        """Notes an inner step. The event loop may call it at any time."""
        self.account.stepped(tokens)
        self._journal.stepped(self.account.state.under_way)

    def trained(
        self, head: Digest, round_number: int, tokens: int, spans: tuple[Span, ...]
    ) -> None:
        """Notes that a local round ended and its work is in `pending`."""
        self.account.trained(head, round_number, tokens, spans)
        self._note()

    def spoilt(self, tokens: int, reason: str) -> None:
        """A local round ended, and its work is not used: `pending` is as it was."""
        self.account.spoilt(tokens, reason)
        self._count_dropped()
        self._note()

    # Rounds

    def offer(self, head: Digest, round_number: int, spans: Sequence[Span] | None = None) -> Offer:
        """Returns all carried work as an offer, for a `Ready`. There has to be some."""
        self.account.state.drop_excess(self._tokens_max)
        if dropped := self._count_dropped():
            say_dropped(dropped, EXCESS)
        sequence, self._sequence = self._sequence, 0
        offer = self.account.offer(head, round_number, spans, self._life(), sequence)
        assert offer is not None
        self._open = _OpenOffer(offer)
        self._note()
        return offer

    def signed(self, sequence: int) -> None:
        """Notes the number of the `Ready` for the newest offer, or for the next one where the work
        is done in the ring. It tells two offers with as many tokens on one head from each other."""
        if self._open is None or self._open.offer.sequence:
            self._sequence = sequence
        else:
            self._open.offer.sequence = sequence
            self._note()

    def followed(self, ring_id: Digest, errors: RoundingErrors, first_chunk: int = 0) -> None:
        """Notes the ring that the newest offer went into last.

        Args:
            first_chunk: number in `pending` of the ring's chunk 0.
        """
        if (opened := self._open) is not None:
            opened.ring = OfferedTo(ring_id, errors, first_chunk)

    def withdraw(self) -> None:
        """Notes that the newest offer went into no ring."""
        if self._open is not None:
            self.account.withdraw(self._open.offer.number)
            self._open = None
            self._note()

    def close_offer(self) -> None:
        """Writes the newest offer to disk, because `pending` is about to change and a ring may take
        the offer."""
        if self._open is None:
            return
        self._write_offer(self._open.offer.number, self._pending.offered(self._open.ring))
        self._open = None

    def committed_by(
        self,
        head: Digest,
        parent: bytes,
        ring_id: bytes,
        tokens: int,
        chunks: int | None,
        *,
        counts_spans: bool,
        exchanged: int | None = None,
        offered: Offered | None = None,
    ) -> None:
        """Applies a header, now the newest of the chain, that took `tokens` of this node's work.

        Args:
            parent, ring_id: of the header.
            tokens: 0 if it took nothing.

        See `WorkAccount.committed_by` for the others.
        """
        settled = self.account.committed_by(
            head,
            parent,
            tokens,
            chunks,
            counts_spans=counts_spans,
            exchanged=exchanged,
            offered=offered,
        )
        self._metrics.tokens_committed.add("on_time", settled.on_time)
        self._metrics.tokens_committed.add("late", settled.late)
        if self._open is not None and settled.offer == self._open.offer.number:
            self._take_open(self._open, settled, ring_id)
        elif settled.taken or settled.zeroed:
            self.close_offer()
            self._take_old(settled)
        self._count_dropped()

    def _take_open(self, opened: _OpenOffer, settled: Settlement, ring_id: bytes) -> None:
        """Removes work that was taken while `pending` is the vector that was offered. The own
        rounding error stays."""
        is_of_ring = opened.ring is not None and opened.ring.ring_id == ring_id
        errors = opened.ring if is_of_ring else None
        self._write_offer(opened.offer.number, self._pending.take_out(errors, settled.taken))
        self._pending.clear(settled.zeroed)
        self._open = None

    def _take_old(self, settled: Settlement) -> None:
        """Removes work that was taken of an older offer: `pending` has changed since."""
        vector = self._files.read_offer(settled.offer) if settled.taken else None
        if vector is None:  # a loss is better than work that counts twice
            self.account.vector_missing(settled.taken)
            self._pending.clear(settled.taken)
        else:
            self._pending.subtract(vector, settled.taken)
        self._pending.clear(settled.zeroed)

    def abandoned(
        self, head: Digest, parent: bytes, tokens: int, next_round: int, reason: str = ""
    ) -> None:
        """Carries the work again that a header took which is not in the chain any more.

        See `WorkAccount.abandoned`. The work is in memory only, until it is saved.
        """
        self.close_offer()
        offer = self.account.offer_behind(head)
        vector = self._files.read_offer(None if offer is None else offer.number)
        reclaim = self.account.abandoned(
            head, parent, tokens, next_round, has_vector=vector is not None, reason=reason
        )
        if vector is not None:
            self._pending.add(vector, reclaim.chunks)
        self._metrics.tokens_reclaimed.add("on_time", reclaim.on_time)
        self._metrics.tokens_reclaimed.add("late", reclaim.late)
        self._lost = self._lost.and_one(self._count_dropped(), reclaim.carried)

    def moved_to(self, head: Digest) -> None:
        """Notes that all `abandoned` and `committed_by` on the way to a head are done."""
        self._lost.say()
        self._lost = LostRounds()
        self.account.state.head = head
        self._note()

    # Giving up

    def drop(self, reason: str, spans: Sequence[Span] = ()) -> None:
        """Gives up the carried work. See `WorkAccount.drop`."""
        tokens = self.account.drop(reason, spans)
        if tokens:
            say_dropped(tokens, reason)
        self._pending.vector[:] = 0.0
        self._open = None
        self._count_dropped()
        self._note()

    def drop_stale(self, next_round: int) -> bool:
        """Gives up work that missed too many rounds. Returns whether no carried work is left."""
        chunks, tokens = self.account.drop_stale(next_round)
        if not chunks:
            return False
        if tokens:  # not where it was dropped with its round
            say_dropped(tokens, STALE)
        self._pending.clear(chunks)
        self.close_offer()
        self._count_dropped()
        self._note()
        return tokens > 0 and self.account.carried == 0

    def forget_data(self) -> None:
        """The data that no round has counted goes back to the pool: no `Ready` names it again."""
        self.account.state.spans = []
        self._note()

    def _count_dropped(self) -> int:
        """Counts what was dropped since the last call, and returns how many tokens that are."""
        before, self._dropped = self._dropped, dict(self.account.state.dropped)
        more = {n: max(0, tokens - before.get(n, 0)) for n, tokens in self._dropped.items()}
        for reason, tokens in more.items():
            self._metrics.tokens_dropped.add(reason, tokens)
        return sum(more.values())

    def _write_offer(self, number: int, pieces: Iterable[FloatVector]) -> None:
        """Keeps the vector of an offer for the case that its round is abandoned."""
        numbers = sorted(offer.number for offer in self.account.state.offers)
        header = FileHeader(VERSION, self._saved_number, self._event, None)
        kept = numbers[-min(self._stale_rounds + 1, VECTORS_MAX) :]
        self._files.write_offer(number, header, pieces, kept)

    # Files

    @property
    def must_save(self) -> bool:
        """Returns whether a kill would lose work."""
        return not self.account.state.is_saved

    def save(self) -> None:
        """Writes `pending` and the account. DiskError leaves both files as they were."""
        self._event += 1
        copy = copy_of(self.account.state)
        WorkAccount(self._num_chunks, self._stale_rounds, copy).saved()
        header = FileHeader(VERSION, self._saved_number + 1, self._event, copy)
        self._files.write_pending(header, self._pending.vector)
        self._saved_number += 1
        self.account.saved()
        self._note()

    def load(self) -> None:
        """Takes over the work of an earlier life. A damaged file is reported and left out."""
        left = self._files.read_left_behind()
        if left is None:
            return
        header = left.header
        assert header.state is not None
        self._saved_number = max(header.pending, left.pending_number)
        self._event = header.event
        lost = header.state.lost
        waited = header.state.has_grown and any(header.state.since)
        self.account = WorkAccount(self._num_chunks, self._stale_rounds, header.state)
        restart = self.account.restarted(has_saved=left.fits)
        self._dropped = dict(header.state.dropped)
        if left.vector is not None:
            self._pending.vector[:] = left.vector
        self._pending.clear(~restart.chunks)
        renewed = dict(restart.offers)
        for offer in self.account.state.offers[-1:]:
            # The process was killed before the vector of its last offer was written, or the disk
            # was full. What a header took is not in `pending` any more.
            if offer.taking is None and not self._files.has_offer(offer.number):
                renewed[offer.number] = (1 << self._num_chunks) - 1
        for number in sorted(renewed):
            self._renew_offer(number, renewed[number])
        if self.account.state.lost > lost:
            log.info("work was lost with the process", tokens=self.account.state.lost - lost)
        elif waited:
            log.info("work that waited for the round of its fragment was lost with the process")
        self._note()

    def _renew_offer(self, number: int, chunks: int) -> None:
        """Writes the vector of an offer anew: it is `pending` in the chunks of a mask."""
        if chunks == (1 << self._num_chunks) - 1:
            self._write_offer(number, (self._pending.vector,))
        elif (vector := self._files.read_offer(number)) is not None:
            renewed = PendingVector(vector.copy(), self._plan)
            renewed.clear(chunks)
            renewed.add(self._pending.vector, chunks)
            self._write_offer(number, (renewed.vector,))

    def _note(self) -> None:
        """Publishes the account after an event: status, metrics and journal."""
        self._event += 1
        state = self.account.state
        self.status = WorkStatus(
            trained=state.trained,
            committed_on_time=state.committed_on_time,
            committed_late=state.committed_late,
            dropped=self.account.dropped,
            lost=state.lost,
            carried=self.account.carried,
        )
        self._metrics.set_work(self.status)
        self._metrics.late_work_tokens.set(self.account.late)
        self._journal.note(self._saved_number, self._event, state)
