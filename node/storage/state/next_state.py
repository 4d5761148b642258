"""The state that the round under way leads to.

The outer step is elementwise, so the next state is not held. One vector has the average of the
round, and the step is taken twice: chunk by chunk for the digests that the members vote for, and in
place once the round is committed. That is 4 bytes a parameter less than the next state has.

All members wait for the digests, and each trainer for the step in place. So threads share the
chunks (`map_pieces`). No operation crosses chunks but the sum of inner products, which is taken in
their order: the bits do not depend on the threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gossamer.node.base.threads import map_pieces, num_piece_threads
from gossamer.node.storage.state.shared_parameters import NO_ROUND, SharedParameters, sign_payloads
from gossamer.node.storage.state.state_blocks import StateVectors
from gossamer.protocol.codecs.payloads import AveragedPayloads, payloads_of
from gossamer.protocol.codecs.record_payloads import RecordPayloads
from gossamer.protocol.codecs.step_payloads import SignPayloads
from gossamer.protocol.ids import digest_of
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.rounds.inventory import Payload
from gossamer.protocol.rounds.roster import RingRules
from gossamer.protocol.standing import Standing
from gossamer.protocol.state.chain import Member
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.state.digest import FloatVector, StateIndex, float_bytes, index_of
from gossamer.protocol.state.outer_momentum import OuterRates, Products, tuned_rates
from gossamer.protocol.state.outer_step import nesterov
from gossamer.protocol.state.sync_sets import SyncSet, SyncSets
from gossamer.protocol.sync_modes import SYNC_MODES


class _Step(NamedTuple):
    """The outer step of a part of the parameters."""

    part: slice
    learning_rate: float
    momentum: float


class _Average(NamedTuple):
    """The average of a part of the parameters, which is in its place."""

    part: slice
    num_members: int
    products: Products
    """With the momentum before the step; zeros where the round does not choose its momentum."""


def payloads_for(manifest: Manifest) -> AveragedPayloads | SignPayloads:
    """Returns the kind of what travels for a chunk in a run. VersionError for a codec that this
    version does not know."""
    if SYNC_MODES[manifest.sync].shares_steps:
        return sign_payloads(manifest.model, manifest.outer, manifest.trust)
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
        self._num_threads = num_piece_threads(base.size)
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
            self.shared_parameters.lead(
                round_number, present.parameters, averages, self.spare, standing
            )
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

        def take(step: _Step) -> None:
            of_part = present.parameters[step.part], present.momentum[step.part]
            rate, mu = step.learning_rate, step.momentum
            nesterov(*of_part, self.spare[step.part], rate, mu, *of_part)

        for _ in map_pieces(take, self._steps, self._num_threads):
            pass
        return index

    def forget(self) -> None:
        """Drops the next state."""
        self.index = self._before = None

    def begin_anew(self, parameters: FloatVector) -> None:
        """The present state is another one, with these parameters. A round of which shared steps
        were taken does not go on from it, though the next one may have the same number."""
        self.forget()
        if self.shared_parameters is not None:
            self.shared_parameters.begin(NO_ROUND, parameters)

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
        tokens = [member.tokens for member in members]

        def take(chunk: int) -> list[_Average]:
            num_elements, mask = sync_set.plan.elements_of(chunk), masks[chunk]
            values = self._decoded(averages[chunk], num_elements, mask, tokens)
            taken = []
            for part, of_chunk in sync_set.pieces_of(chunk):
                np.copyto(self.spare[part], values[of_chunk])
                products = Products()
                if outer.displacement:
                    products = Products.of_piece(values[of_chunk], present.momentum[part])
                taken.append(_Average(part, mask.bit_count(), products))
            return taken

        assert len(averages) == len(masks) == sync_set.plan.num_chunks
        chunks = range(sync_set.plan.num_chunks)
        taken = [each for some in map_pieces(take, chunks, self._num_threads) for each in some]
        self.tuned = None
        tuned: OuterRates | None = None
        if outer.displacement:
            norms = [member.norm for member in members if member.tokens]
            total_steps = self._manifest.inner.total_steps
            products = Products.of_pieces(each.products for each in taken)
            tuned = tuned_rates(outer, total_steps, round_number, products, norms)
            if tuned.scale != 1.0:
                for each in taken:
                    np.copyto(self.spare[each.part], tuned.of_average(self.spare[each.part]))
        self._steps = []
        for part, num_members, _ in taken:
            rate, mu = outer.rates_of(round_number, num_members)
            if tuned is not None and num_members > 1:
                self.tuned, (rate, mu, _) = tuned, tuned
            self._steps.append(_Step(part, rate, mu))

    def _decoded(
        self, payload: Payload, num_elements: int, mask: int, tokens: Sequence[int]
    ) -> FloatVector:
        """The average of a chunk, (num_elements,)."""
        assert not isinstance(self.payloads, SignPayloads)
        if isinstance(self.payloads, RecordPayloads):
            return self.payloads.average(payload, num_elements, mask, tokens, self._standing)
        return self.payloads.average(payload, num_elements, mask, tokens)

    def _index_after(self, present: StateVectors) -> StateIndex:
        """Returns the index of the next state; only blocks in which something is new are
        digested."""
        assert present.index is not None
        parameters, momentum = list(present.index.parameters), list(present.index.momentum)
        steps = self._steps_by_chunk()

        def digests(chunk: int) -> tuple[bytes, bytes]:
            where = self._plan.range_of(chunk)
            new = present.parameters[where].copy(), present.momentum[where].copy()
            for part, rate, mu in steps[chunk]:
                place = slice(part.start - where.start, part.stop - where.start)
                of_part = new[0][place], new[1][place]
                nesterov(*of_part, self.spare[part], rate, mu, *of_part)
            return digest_of(float_bytes(new[0])), digest_of(float_bytes(new[1]))

        found = map_pieces(digests, steps, self._num_threads)
        for chunk, of_chunk in zip(steps, found, strict=True):
            parameters[chunk], momentum[chunk] = of_chunk
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
