"""This node's own work on disk: the account, `pending`, and the vectors behind what was offered.

`protocol/accounting/work_account.py` has the rules; here are the files, the vectors and the
metrics.

    work/journal       the account as of its newest event; of inner steps it may miss half a second
    work/pending       `pending` and the account as of then, when there is something carried
    work/offers/<n>    the vector of offer n: what left, or would leave, `pending`

The journal names the `pending` that it goes on from. So a new life knows what the earlier one had
trained, which part of it is on disk, and that the rest is lost. The journal and the offers are not
synced: a killed process leaves them whole. After a power cut they may be old; then the account is
that of `pending`, and what the chain says on top of it counts.

What a committed round took is kept as long as the manifest lets work be stale: if the swarm turns
out to have gone another way (a split that healed), it is carried again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
import structlog

from gossamer.node.base.disk_health import remove_quietly, write_atomically
from gossamer.node.storage.work_journal import VERSION, FileHeader, Journal, copy_of, encoded
from gossamer.node.telemetry.metrics import Metrics
from gossamer.node.telemetry.status import WorkStatus
from gossamer.protocol.accounting.work_account import LATE, STALE, Settlement, WorkAccount
from gossamer.protocol.accounting.work_records import Offer
from gossamer.protocol.ids import DIGEST_BYTES, Digest, digest_of
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.state.digest import FloatVector
from gossamer.protocol.wire.statements import Span

VECTORS_MAX = 16
"""Vectors of offers on disk, each as large as the model; fewer if work is stale sooner."""

log = structlog.get_logger("work")


class RoundingErrors(Protocol):
    """What this peer's own encoding in a ring left out (`Contribution`). To be asked while
    `pending` is what was offered."""

    def error_of(self, chunk: int) -> FloatVector | None: ...


@dataclass(frozen=True)
class _OpenRing:
    """Where the newest offer went."""

    ring_id: Digest
    errors: RoundingErrors
    first_chunk: int

    def error_of(self, chunk: int) -> FloatVector | None:
        """By the chunk's number here."""
        return self.errors.error_of(chunk - self.first_chunk)


class Work:
    """The account with its files and metrics.

    Calls may come from a thread, one at a time. Only `stepped` and `status` may be called meanwhile
    by the event loop: an inner step changes nothing of the account but the tokens under way.
    """

    def __init__(
        self,
        directory: Path,
        pending: FloatVector,
        plan: ChunkPlan,
        stale_rounds: int,
        metrics: Metrics,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`pending` is shared: others add to it between `close_offer` and `trained` only. `plan`
        cuts it."""
        self._journal = Journal(directory / "journal", clock)
        self._pending_path = directory / "pending"
        self._offers_path = directory / "offers"
        self._pending = pending
        self._plan = plan
        self._stale_rounds = stale_rounds
        self._metrics = metrics
        self.account = WorkAccount(plan.num_chunks, stale_rounds)
        self._saved_number = 0
        self._event = 0
        self._open: Offer | None = None
        """The newest offer, while `pending` is what was offered."""
        self._open_ring: _OpenRing | None = None
        self._status = WorkStatus()
        self.is_damaged = False
        """Whether `load` found something that it could not read: the chain knows what this node
        has in it."""
        self._offers_path.mkdir(parents=True, exist_ok=True)

    @property
    def status(self) -> WorkStatus:
        """As of the newest event."""
        return self._status

    @property
    def head(self) -> Digest | None:
        """The committed head up to which the account is true; None before the first."""
        return Digest(self.account.state.head) if self.account.state.head else None

    # Training

    def stepped(self, tokens: int) -> None:
        """An inner step was done. The event loop may call it at any time."""
        self.account.stepped(tokens)
        self._journal.stepped(self.account.state.under_way)

    def trained(
        self, head: Digest, round_number: int, tokens: int, spans: tuple[Span, ...]
    ) -> None:
        """A local round ended, and its work is in `pending`."""
        self.account.trained(head, round_number, tokens, spans)
        self._note()

    def spoilt(self, tokens: int, reason: str) -> None:
        """A local round ended, and its work is not used: `pending` is as it was."""
        dropped = dict(self.account.state.dropped)
        self.account.spoilt(tokens, reason)
        self._count_dropped(dropped)
        self._note()

    # Rounds

    def offer(self, head: Digest, round_number: int, spans: Sequence[Span] | None = None) -> Offer:
        """All that is carried, for a `Ready`. Something has to be carried."""
        offer = self.account.offer(head, round_number, spans)
        assert offer is not None
        self._open, self._open_ring = offer, None
        self._note()
        return offer

    def followed(self, ring_id: Digest, errors: RoundingErrors, first_chunk: int = 0) -> None:
        """The newest offer went into this ring, last. `first_chunk` is the number here of the
        ring's chunk 0."""
        self._open_ring = _OpenRing(ring_id, errors, first_chunk)

    def withdraw(self) -> None:
        """The newest offer went into no ring."""
        if self._open is not None:
            self.account.withdraw(self._open.number)
            self._open = self._open_ring = None
            self._note()

    def close_offer(self) -> None:
        """`pending` is about to change: what was offered goes to disk, should a ring have it."""
        if self._open is None:
            return
        vector = self._pending.copy()
        for chunk in range(self._plan.num_chunks):
            error = None if self._open_ring is None else self._open_ring.error_of(chunk)
            if error is not None:
                vector[self._plan.range_of(chunk)] -= error
        self._write_offer(self._open.number, vector)
        self._open = self._open_ring = None

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
    ) -> None:
        """A header that is now the newest of the chain took `tokens` (0: nothing) of this node's.

        See `WorkAccount.committed_by`; `ring_id` is the header's.
        """
        settled = self.account.committed_by(
            head, parent, tokens, chunks, counts_spans=counts_spans, exchanged=exchanged
        )
        self._metrics.tokens_committed.add("on_time", settled.on_time)
        self._metrics.tokens_committed.add("late", settled.late)
        if self._open is not None and settled.offer == self._open.number:
            self._take_open(self._open, settled, ring_id)
        elif settled.taken or settled.zeroed:
            self.close_offer()
            self._take_old(settled)

    def _take_open(self, offer: Offer, settled: Settlement, ring_id: bytes) -> None:
        """`pending` is what was offered: of what was taken only the own rounding error is left."""
        errors = None
        if self._open_ring is not None and self._open_ring.ring_id == ring_id:
            errors = self._open_ring
        vector = self._pending.copy()
        for chunk in self._chunks(settled.taken):
            part = self._plan.range_of(chunk)
            error = None if errors is None else errors.error_of(chunk)
            self._pending[part] = 0.0 if error is None else error
            if error is not None:
                vector[part] -= error
        self._clear(settled.zeroed)
        self._write_offer(offer.number, vector)
        self._open = self._open_ring = None

    def _take_old(self, settled: Settlement) -> None:
        """`pending` has changed since that offer."""
        vector = self._read_offer(settled.offer) if settled.taken else None
        for chunk in self._chunks(settled.taken):
            part = self._plan.range_of(chunk)
            if vector is None:  # rather lost than counted twice
                self._pending[part] = 0.0
            else:
                self._pending[part] -= vector[part]
        self._clear(settled.zeroed)

    def abandoned(self, head: Digest, parent: bytes, tokens: int, next_round: int) -> None:
        """A header is not in the chain after all: its part of ours is carried again.

        See `WorkAccount.abandoned`. What came back is in memory only, until it is saved.
        """
        self.close_offer()
        dropped = dict(self.account.state.dropped)
        number = next(
            (o.number for o in self.account.state.offers if o.taking and o.taking.head == head),
            None,
        )
        vector = self._read_offer(number)
        reclaim = self.account.abandoned(
            head, parent, tokens, next_round, has_vector=vector is not None
        )
        if vector is not None:
            for chunk in self._chunks(reclaim.chunks):
                part = self._plan.range_of(chunk)
                self._pending[part] += vector[part]
        self._metrics.tokens_reclaimed.add("on_time", reclaim.on_time)
        self._metrics.tokens_reclaimed.add("late", reclaim.late)
        self._count_dropped(dropped)
        if reclaim.on_time + reclaim.late:
            log.info("work of a lost round is carried again", tokens=reclaim.carried)

    def moved_to(self, head: Digest) -> None:
        """After all `abandoned` and `committed_by` on the way to a head."""
        self.account.state.head = head
        self._note()

    # Giving up

    def drop(self, reason: str, spans: Sequence[Span] = ()) -> None:
        """What is carried will not be taken. See `WorkAccount.drop`."""
        dropped = dict(self.account.state.dropped)
        tokens = self.account.drop(reason, spans)
        log.log(
            logging.DEBUG if reason == LATE else logging.WARNING,
            "work is dropped",
            tokens=tokens,
            reason=reason,
        )
        self._pending[:] = 0.0
        self._open = self._open_ring = None
        self._count_dropped(dropped)
        self._note()

    def drop_stale(self, next_round: int) -> bool:
        """Gives up what missed too many rounds; says whether all that was carried went with it."""
        dropped = dict(self.account.state.dropped)
        chunks, tokens = self.account.drop_stale(next_round)
        if not chunks:
            return False
        log.warning("work is dropped", tokens=tokens, reason=STALE)
        self._clear(chunks)
        self.close_offer()
        self._count_dropped(dropped)
        self._note()
        return tokens > 0 and self.account.carried == 0

    def _count_dropped(self, before: dict[str, int]) -> None:
        for reason, tokens in self.account.state.dropped.items():
            self._metrics.tokens_dropped.add(reason, max(0, tokens - before.get(reason, 0)))

    # Vectors

    def _clear(self, chunks: int) -> None:
        for chunk in self._chunks(chunks):
            self._pending[self._plan.range_of(chunk)] = 0.0

    def _chunks(self, mask: int) -> Iterator[int]:
        return (chunk for chunk in range(self._plan.num_chunks) if mask >> chunk & 1)

    def _write_offer(self, number: int, vector: FloatVector) -> None:
        """Keeps the vector of an offer. Without room for it a split may cost the work behind it."""
        numbers = sorted(offer.number for offer in self.account.state.offers)
        kept = {str(n) for n in numbers[-min(self._stale_rounds + 1, VECTORS_MAX) :]}
        path = self._offers_path / str(number)
        try:
            for old in self._offers_path.iterdir():
                if old.name not in kept:
                    old.unlink()
            header = FileHeader(VERSION, self._saved_number, self._event, None)
            with open(path, "wb") as file:
                for part in encoded(header, vector):
                    file.write(part)
        except OSError as error:
            remove_quietly(path)
            log.warning("what was offered to a round is in no file", problem=str(error))

    def _read_offer(self, number: int | None) -> FloatVector | None:
        if number is None:
            return None
        try:
            return self._read(self._offers_path / str(number))[1]
        except FileNotFoundError:
            log.debug("the vector of an offer is not kept any more", offer=number)
        except (OSError, ValueError) as error:
            log.warning("the vector of an offer is damaged on disk", problem=str(error))
        return None

    # Files

    @property
    def must_save(self) -> bool:
        """Whether a kill would lose work."""
        return not self.account.is_saved

    def save(self) -> None:
        """Writes `pending` and the account. Raises DiskError; both files are as before then."""
        self._event += 1
        copy = copy_of(self.account.state)
        WorkAccount(self._plan.num_chunks, self._stale_rounds, copy).saved()
        header = FileHeader(VERSION, self._saved_number + 1, self._event, copy)
        write_atomically(self._pending_path, *encoded(header, self._pending))
        self._saved_number += 1
        self.account.saved()
        self._note()

    def load(self) -> None:
        """Takes over what an earlier life left behind; a damaged file is reported and left out."""
        self._leave_out_first_version()
        journal, _ = self._read_file(self._journal.path)
        saved, vector = self._read_file(self._pending_path)
        if saved is not None and (journal is None or journal.event < saved.event):
            header, fits = saved, True
        elif journal is not None:
            header, fits = journal, journal.pending == (0 if saved is None else saved.pending)
        else:
            return
        assert header.state is not None
        self._saved_number = max(header.pending, 0 if saved is None else saved.pending)
        self._event = header.event
        lost = header.state.lost
        waited = header.state.has_grown and any(header.state.since)
        self.account = WorkAccount(self._plan.num_chunks, self._stale_rounds, header.state)
        restart = self.account.restarted(has_saved=fits)
        if vector is not None:
            self._pending[:] = vector
        self._clear(~restart.chunks)
        numbers = set(restart.offers)
        newest = self.account.state.offers[-1:]
        # The process was killed before the vector of its last offer was written.
        numbers |= {o.number for o in newest if not (self._offers_path / str(o.number)).exists()}
        for number in sorted(numbers):
            self._write_offer(number, self._pending)
        if self.account.state.lost > lost:
            log.info("work was lost with the process", tokens=self.account.state.lost - lost)
        elif waited:
            log.info("work that waited for the turn of its fragment was lost with the process")
        self._note()

    def _leave_out_first_version(self) -> None:
        """Version 0 had one file, and what it calls committed may have been abandoned since."""
        old = self._journal.path.with_name("account")
        if old.exists():
            self.is_damaged = True
            log.warning("the account of work is an older version's; what it carried is left out")
            for path in (*old.with_name("taken").glob("*"), old):
                remove_quietly(path)

    def _read_file(self, path: Path) -> tuple[FileHeader | None, FloatVector | None]:
        try:
            return self._read(path)
        except FileNotFoundError:
            return None, None
        except (OSError, ValueError) as error:
            self.is_damaged = True
            log.warning("the account of work on disk is damaged and left out", problem=str(error))
            return None, None

    def _read(self, path: Path) -> tuple[FileHeader, FloatVector]:
        """What `encoded` gave. OSError, FileNotFoundError; ValueError for a damaged file."""
        content = memoryview(path.read_bytes())
        data = content[DIGEST_BYTES:]
        if bytes(content[:DIGEST_BYTES]) != digest_of(data):
            raise ValueError(f"{path} does not fit its digest")
        end = 4 + int.from_bytes(data[:4])
        header = msgspec.msgpack.decode(data[4:end], type=FileHeader)  # its error is a ValueError
        if header.version != VERSION:
            raise ValueError(f"{path} is of version {header.version}, not {VERSION}")
        vector = np.frombuffer(data[end:], dtype="<f4")
        if vector.size == 0:
            return header, np.zeros_like(self._pending)
        if vector.size != self._pending.size or not np.isfinite(vector).all():
            raise ValueError(f"{path} is of another model or damaged")
        return header, vector.astype(np.float32, copy=False)

    def _note(self) -> None:
        """An event is over: everybody may see it."""
        self._event += 1
        state = self.account.state
        self._status = WorkStatus(
            trained=state.trained,
            committed_on_time=state.committed_on_time,
            committed_late=state.committed_late,
            dropped=self.account.dropped,
            lost=state.lost,
            carried=self.account.carried,
        )
        self._metrics.set_work(self._status)
        self._journal.note(self._saved_number, self._event, state)
