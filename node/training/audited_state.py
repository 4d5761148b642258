"""The vector of which the trainer tells losses in an audit, and how it is moved.

Rounds are read from their records on disk, so an audit needs no more than this one vector.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gossamer.node.base.threads import RunInThread
from gossamer.node.machine.trainer import Trainer
from gossamer.node.storage.state.committed import CommittedState
from gossamer.protocol.codecs.record_payloads import RecordPayloads
from gossamer.protocol.ids import PeerId
from gossamer.protocol.state.chain import ChunkAverage, Header


class AuditedRound(NamedTuple):
    """A round, as an audit needs it."""

    header: Header
    averages: tuple[ChunkAverage, ...]
    position: int
    """Of the audited member in the ring."""

    @classmethod
    def of(
        cls, header: Header, averages: tuple[ChunkAverage, ...], member: PeerId
    ) -> AuditedRound | None:
        """None if the member was not in the ring."""
        members = [each.peer_id for each in header.members]
        if member not in members:
            return None
        return cls(header, averages, members.index(member))


class AuditedState:
    """Parameters of this node's audit: the trainer's `audited`."""

    def __init__(
        self, committed: CommittedState, trainer: Trainer, run_in_thread: RunInThread
    ) -> None:
        self._committed = committed
        self._trainer = trainer
        self._run_in_thread = run_in_thread

    async def load(self) -> None:
        """Takes the parameters of the committed state."""
        parameters, audited = self._committed.parameters, self._trainer.audited
        await self._run_in_thread(lambda: audited.__setitem__(slice(None), parameters))

    async def add(self, part: AuditedRound, *, average: float = 0.0, own: float = 0.0) -> None:
        """Adds so many times a round's average, and the update of the audited member.

        Cancellation: the vector may be anything.

        Raises:
            CannotRebuildError: the disk does not have the round's records any more.
        """
        await self._run_in_thread(lambda: self._add(part, average, own))

    def _add(self, part: AuditedRound, average: float, own: float) -> None:
        payloads, audited = self._committed.payloads, self._trainer.audited
        assert isinstance(payloads, RecordPayloads)
        sync_set = self._committed.sync_sets.of_round(part.header.round)
        tokens = [member.tokens for member in part.header.members]
        for chunk, of_all in enumerate(part.averages):
            records = self._committed.blocks.read_average(part.header, of_all)
            num_elements, mask = sync_set.plan.elements_of(chunk), of_all.mask()
            change = np.zeros(num_elements, np.float32)
            if average:
                change += np.float32(average) * payloads.average(
                    records, num_elements, mask, tokens
                )
            block = payloads.block_of(records, num_elements, mask, part.position) if own else None
            if block is not None:
                change += np.float32(own) * payloads.decode(block, num_elements)
            for piece, of_chunk in sync_set.pieces_of(chunk):
                audited[piece] += change[of_chunk]
