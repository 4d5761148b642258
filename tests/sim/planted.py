"""Six bugs on purpose, to show that the simulator would find them.

Each is one wrong rule: five in one machine each, one in the dispatcher that nodes share with the
simulator. `planted(name)` is a context in which all peers have it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

from gossamer.node.rounds.dispatcher import RoundDispatcher
from gossamer.protocol.accounting.work_account import WorkAccount
from gossamer.protocol.accounting.work_records import Settlement
from gossamer.protocol.ids import Digest
from gossamer.protocol.rounds.actions import Contributed, RingAction, RingEvent
from gossamer.protocol.rounds.inventory import ArrivedSum, Average
from gossamer.protocol.rounds.ring.ring import RingReduce

_partial_sum_received = RingReduce.partial_sum_received
_advance = RingReduce._advance
_committed_by = WorkAccount.committed_by
_ring_event = RoundDispatcher.ring_event


def _double_count(self: RingReduce, chunk: int, arrived: ArrivedSum) -> list[RingAction]:
    """A member does not look whether it is in a sum already."""
    others = arrived.mask & ~(1 << self._members.position)
    return _partial_sum_received(self, chunk, arrived._replace(mask=others or arrived.mask))


def _lost_partial_sum(self: RingReduce, chunk: int) -> list[RingAction]:
    """A member keeps no copy of what it passed on."""
    actions = _advance(self, chunk)
    if self._chunks[chunk].copy_receiver is not None:
        self._chunks[chunk].copy = None
    return actions


def _dead_starter(self: RingReduce, chunk: int) -> list[RingAction]:
    """A finisher waits for the part of the member that was to start the chunk, dead or not."""
    members = self._members.members
    starter = chunk % len(members)
    is_missing = not self._chunks[chunk].copy_mask >> starter & 1
    if is_missing and members[starter] not in self.living:
        return []
    return _advance(self, chunk)


def _first_come(self: Average, other: Average | None) -> bool:
    """Of two finals of a chunk the one that came first is kept."""
    return other is None


def _residual_twice(self: WorkAccount, *args: object, **kwargs: object) -> Settlement:
    """A residual stays in `pending` when a round took it."""
    settlement = _committed_by(self, *args, **kwargs)  # type: ignore[arg-type]
    return replace(settlement, taken=0) if settlement.late else settlement


def _answer_for_another_ring(
    self: RoundDispatcher, now: float, ring_id: Digest, event: RingEvent
) -> None:
    """A sum for a ring that was replaced meanwhile is taken for one of the present ring."""
    is_sum = isinstance(event, Contributed)
    _ring_event(self, now, self.ring_id or ring_id if is_sum else ring_id, event)


BUGS: dict[str, tuple[type, str, Callable[..., object]]] = {
    "double count": (RingReduce, "partial_sum_received", _double_count),
    "lost token": (RingReduce, "_advance", _lost_partial_sum),
    "a finisher that ignores a dead starter": (RingReduce, "_advance", _dead_starter),
    "a merge that depends on message order": (Average, "is_better_than", _first_come),
    "a residual applied twice": (WorkAccount, "committed_by", _residual_twice),
    "an answer for another ring": (RoundDispatcher, "ring_event", _answer_for_another_ring),
}


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """While it is entered, every peer has this bug; None: no bug."""
    if name is None:
        yield
        return
    kind, method, wrong = BUGS[name]
    with patch.object(kind, method, wrong):
        yield
