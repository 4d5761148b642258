"""The state that the round under way leads to.

The outer step is elementwise, so the next state is not held. One vector has the average of the
round, and the step is taken twice: chunk by chunk for the digests that the members vote for, and in
place once the round is committed. That is 4 bytes a parameter less than the next state has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gossamer.node.storage.shared_parameters import SharedParameters, sign_payloads
from gossamer.protocol.codecs.payloads import AveragedPayloads, SignPayloads, payloads_of
from gossamer.protocol.codecs.record_payloads import RecordPayloads
from gossamer.protocol.ids import digest_of
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.rounds.commit_proof import RingRules
from gossamer.protocol.rounds.inventory import Payload
from gossamer.protocol.standing import Standing
from gossamer.protocol.state.chain import Member
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.state.digest import FloatVector, StateIndex, float_bytes, index_of
from gossamer.protocol.state.outer_momentum import OuterRates, tuned_rates
from gossamer.protocol.state.outer_step import nesterov
from gossamer.protocol.state.sync_sets import SyncSet, SyncSets
from gossamer.protocol.sync_modes import SYNC_MODES


@dataclass(frozen=True)
class StateVectors:
    """Parameters and outer momentum, each (num_parameters,), and the digests of their blocks."""

    parameters: FloatVector
    momentum: FloatVector
    index: StateIndex | None
    """Digests of the blocks; None if the vectors are no state yet."""


class _Step(NamedTuple):
    """The outer step of a part of the parameters."""

    part: slice
    learning_rate: float
    momentum: float


def payloads_for(manifest: Manifest) -> AveragedPayloads | SignPayloads:
    """Returns the kind of what travels for a chunk in a run. VersionError for a codec that this
    version does not know."""
    if SYNC_MODES[manifest.sync].shares_steps:
        return sign_payloads(manifest.model, manifest.outer)
    return payloads_of(manifest.sync, manifest.outer, manifest.trust)


def ring_rules_of(manifest: Manifest, payloads: AveragedPayloads | SignPayloads) -> RingRules:
    """Returns the values that a manifest demands of every roster.

    Args:
        payloads: those of the manifest (`payloads_for`).
    """
    chunk_elements = manifest.outer.chunk_elements
    members_max = payloads.members_max(chunk_elements)
    accusers = manifest.rounds.num_accusers
    return RingRules(payloads.name, chunk_elements, members_max, accusers)


class NextState:
    """Computes the state that a round's averages lead to, as the manifest says.

    Used by one thread at a time: the lock is the committed state's.
    """

    def __init__(self, manifest: Manifest, plan: ChunkPlan, base: FloatVector) -> None:
        """
        Args:
            plan: of the state's blocks.
            base: (num_parameters,), what the trainer works from; with shared steps those write it.
        """
        self._manifest, self._plan = manifest, plan
        self.sync_sets = SyncSets(manifest.model, manifest.outer, manifest.sync)
        self.payloads = payloads_for(manifest)
        self.shared_parameters: SharedParameters | None = None
        if isinstance(self.payloads, SignPayloads):
            self.shared_parameters = SharedParameters(manifest, self.payloads, base)
        self.spare: FloatVector = np.empty_like(base)
        """The average of the round in the places of its parameters; with shared steps, the next
        parameters. Others may use it after `forget`."""
        self._standing: Standing | None = None
        """Of the members of the round that is computed."""
        self._steps: list[_Step] = []
        self._before: StateIndex | None = None
        self.index: StateIndex | None = None
        """Digests of the next state; None without one."""
        self.tuned: OuterRates | None = None
        """The rates that the round chose; None where it took those of the manifest, or the work of
        a lone peer."""

    def compute(
        self,
        present: StateVectors,
        round_number: int,
        averages: Sequence[Payload],
        masks: Sequence[int],
        members: Sequence[Member],
        standing: Standing | None = None,
    ) -> StateIndex:
        """Takes the outer step from `present`, which stays as it is; see `apply`.

        Args:
            averages: of all the round's chunks.
            masks: contributors of each average, bit i for ring position i.
            members: by ring position, as the round's header has them.
            standing: of the members, in a run with a probation.

        Raises:
            MalformedError: an average that is not one.
        """
        self.forget()
        self._standing = standing
        if self.shared_parameters is not None:
            self.shared_parameters.lead(round_number, present.parameters, averages, self.spare)
            self._steps = []
            index = index_of(self.spare, present.momentum, self._plan)
        else:
            sync_set = self.sync_sets.of_round(round_number)
            self._take_averages(present, sync_set, round_number, averages, masks, members)
            index = self._index_after(present)
        self._before, self.index = present.index, index
        return index

    def apply(self, present: StateVectors) -> StateIndex:
        """Makes `present` the state that `compute` told the index of, in place."""
        index = self.index
        assert index is not None
        assert self._before is present.index, "the step was computed from another state"
        self.forget()
        if self.shared_parameters is not None:  # the momentum is the peers' own, and zero here
            np.copyto(present.parameters, self.spare)
        parameters, momentum = present.parameters, present.momentum
        for part, rate, mu in self._steps:
            of_part = parameters[part], momentum[part]
            nesterov(*of_part, self.spare[part], rate, mu, *of_part)
        return index

    def forget(self) -> None:
        """Drops the next state."""
        self.index = self._before = None

    def _take_averages(
        self,
        present: StateVectors,
        sync_set: SyncSet,
        round_number: int,
        averages: Sequence[Payload],
        masks: Sequence[int],
        members: Sequence[Member],
    ) -> None:
        outer = self._manifest.outer
        self.tuned = None
        tuned: OuterRates | None = None
        if outer.displacement:
            decoded = self._decoded_averages(sync_set, averages, masks, members)
            pieces = ((values, present.momentum[part]) for part, values, _ in decoded)
            norms = [member.norm for member in members if member.tokens]
            total_steps = self._manifest.inner.total_steps
            tuned = tuned_rates(outer, total_steps, round_number, pieces, norms)
        self._steps = []
        for part, values, mask in self._decoded_averages(sync_set, averages, masks, members):
            rate, mu = outer.rates_of(round_number, mask.bit_count())
            if tuned is not None:
                values = tuned.of_average(values)
                if mask.bit_count() > 1:
                    self.tuned, (rate, mu, _) = tuned, tuned
            np.copyto(self.spare[part], values)
            self._steps.append(_Step(part, rate, mu))

    def _decoded_averages(
        self,
        sync_set: SyncSet,
        averages: Sequence[Payload],
        masks: Sequence[int],
        members: Sequence[Member],
    ) -> Iterator[tuple[slice, FloatVector, int]]:
        """Yields piece by piece its place in the flat vectors, the average there, and the mask of
        its contributors."""
        assert not isinstance(self.payloads, SignPayloads)
        tokens = [member.tokens for member in members]
        for chunk, (payload, mask) in enumerate(zip(averages, masks, strict=True)):
            num_elements = sync_set.plan.elements_of(chunk)
            if isinstance(self.payloads, RecordPayloads):
                values = self.payloads.average(payload, num_elements, mask, tokens, self._standing)
            else:
                values = self.payloads.average(payload, num_elements, mask, tokens)
            for part, of_chunk in sync_set.pieces_of(chunk):
                yield part, values[of_chunk], mask

    def _index_after(self, present: StateVectors) -> StateIndex:
        """Returns the index of the next state; only blocks in which something is new are
        digested."""
        plan = self._plan
        assert present.index is not None
        parameters, momentum = list(present.index.parameters), list(present.index.momentum)
        for chunk, steps in self._steps_by_chunk().items():
            where = plan.range_of(chunk)
            new = present.parameters[where].copy(), present.momentum[where].copy()
            for part, rate, mu in steps:
                place = slice(part.start - where.start, part.stop - where.start)
                of_part = new[0][place], new[1][place]
                nesterov(*of_part, self.spare[part], rate, mu, *of_part)
            parameters[chunk], momentum[chunk] = (digest_of(float_bytes(each)) for each in new)
        return StateIndex(tuple(parameters), tuple(momentum))

    def _steps_by_chunk(self) -> dict[int, list[_Step]]:
        """Returns the steps of each of the state's chunks, cut where a chunk ends."""
        size = self._plan.chunk_elements
        found: dict[int, list[_Step]] = {}
        for part, rate, mu in self._steps:
            for chunk in range(part.start // size, -(-part.stop // size)):
                start, stop = max(part.start, chunk * size), min(part.stop, (chunk + 1) * size)
                found.setdefault(chunk, []).append(_Step(slice(start, stop), rate, mu))
        return found
