"""The state that the round under way leads to: the outer step, into vectors of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gossamer.node.storage.shared_parameters import SharedParameters, sign_payloads
from gossamer.protocol.codecs.payloads import AveragedPayloads, SignPayloads, payloads_of
from gossamer.protocol.ids import digest_of
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.rounds.ring import Payload
from gossamer.protocol.state.chain import Member
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.state.digest import FloatVector, StateIndex, chunk_bytes, index_of
from gossamer.protocol.state.outer_momentum import OuterRates, tuned_rates
from gossamer.protocol.state.outer_step import nesterov
from gossamer.protocol.state.sync_sets import SyncSet, SyncSets


@dataclass
class StateVectors:
    """Parameters and outer momentum, each (num_parameters,), and the digests of their blocks."""

    parameters: FloatVector
    momentum: FloatVector
    index: StateIndex | None = None
    """Digests of the blocks; None if the vectors are no state yet."""


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
        self.payloads: AveragedPayloads | SignPayloads
        self.shared_parameters: SharedParameters | None = None
        if manifest.sync == "distro":
            self.payloads = sign_payloads(manifest.model, manifest.outer)
            self.shared_parameters = SharedParameters(manifest, self.payloads, base)
        else:
            self.payloads = payloads_of(manifest.sync, manifest.outer, manifest.trust)
        self.vectors = StateVectors(np.empty_like(base), np.empty_like(base))
        """The vectors of the next state; without an index they hold nothing that means
        something."""
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
    ) -> StateIndex:
        """Takes the outer step from `present` to `vectors`.

        Args:
            averages: of all the round's chunks.
            masks: contributors of each average, bit i for ring position i.
            members: by ring position, as the round's header has them.

        Raises:
            MalformedError: an average that is not one.
        """
        self.vectors.index = None  # until they are whole again
        if self.shared_parameters is not None:
            np.copyto(self.vectors.momentum, present.momentum)  # the peers' own, and zero here
            parameters = self.vectors.parameters
            self.shared_parameters.lead(round_number, present.parameters, averages, parameters)
            index = index_of(parameters, self.vectors.momentum, self._plan)
        else:
            sync_set = self.sync_sets.of_round(round_number)
            self._take_averages(present, sync_set, round_number, averages, masks, members)
            index = self._index_after(present, sync_set)
        self.vectors.index = index
        return index

    def _take_averages(
        self,
        present: StateVectors,
        sync_set: SyncSet,
        round_number: int,
        averages: Sequence[Payload],
        masks: Sequence[int],
        members: Sequence[Member],
    ) -> None:
        new, outer = self.vectors, self._manifest.outer
        self.tuned = None
        if sync_set is not self.sync_sets.whole:
            np.copyto(new.parameters, present.parameters)
            np.copyto(new.momentum, present.momentum)
        tuned: OuterRates | None = None
        if outer.displacement:
            decoded = self._decoded_averages(sync_set, averages, masks, members)
            pieces = ((values, present.momentum[part]) for part, values, _ in decoded)
            norms = [member.norm for member in members if member.tokens]
            total_steps = self._manifest.inner.total_steps
            tuned = tuned_rates(outer, total_steps, round_number, pieces, norms)
        for part, values, mask in self._decoded_averages(sync_set, averages, masks, members):
            rate, mu = outer.rates_of(round_number, mask.bit_count())
            if tuned is not None:
                values = tuned.of_average(values)
                if mask.bit_count() > 1:
                    self.tuned, (rate, mu, _) = tuned, tuned
            nesterov(
                present.parameters[part],
                present.momentum[part],
                values,
                rate,
                mu,
                new.parameters[part],
                new.momentum[part],
            )

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
            values = self.payloads.average(payload, num_elements, mask, tokens)
            for part, of_chunk in sync_set.pieces_of(chunk):
                yield part, values[of_chunk], mask

    def _index_after(self, present: StateVectors, sync_set: SyncSet) -> StateIndex:
        """Returns the index of the next state; only blocks in which something is new are
        digested."""
        plan, size = self._plan, self._plan.chunk_elements
        new = {
            chunk
            for part in sync_set.ranges
            for chunk in range(part.start // size, -(-part.stop // size))
        }

        def digests(vector: FloatVector, present: Sequence[bytes]) -> tuple[bytes, ...]:
            return tuple(
                digest_of(chunk_bytes(vector, plan, chunk)) if chunk in new else present[chunk]
                for chunk in range(plan.num_chunks)
            )

        before = present.index or StateIndex((), ())
        return StateIndex(
            digests(self.vectors.parameters, before.parameters),
            digests(self.vectors.momentum, before.momentum),
        )
