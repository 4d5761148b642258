"""The payloads that travel in a world: what the run's way of averaging makes of real numbers.

Beside the work that can be counted (`arithmetic`) every chunk holds `ELEMENTS` fp32 values, and the
same code as in a node adds, finishes, checks and averages them, and takes the outer step. So what
peers hand to each other is what the mode's codec wrote, states are real bits, and rounding errors
(or what a sparse update left out) are carried into the next round. Only that errors outlive a
process, or come back with an abandoned round, is left to `tests/node/storage/test_work.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt

from gossamer.node.modes.sync_mode import Contribution
from gossamer.protocol.codecs.chunk_values import Buffer, Float32Array
from gossamer.protocol.codecs.contributions import split
from gossamer.protocol.codecs.payloads import (
    SPARSE,
    AveragedPayloads,
    SetPayloads,
    SumPayloads,
    payloads_named,
)
from gossamer.protocol.codecs.record_payloads import RecordPayloads
from gossamer.protocol.codecs.sparse_codec import SparseCodec, SparseVector
from gossamer.protocol.codecs.wide_codecs import WideningInt4Codec
from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.rounds.inventory import Average
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.state.digest import FloatVector
from gossamer.protocol.state.outer_step import nesterov
from tests.sim.simulator import arithmetic
from tests.sim.simulator.arithmetic import Sum
from tests.support.contributions import SignedRoots, contribution_of, root_of

ELEMENTS = 150
"""Of a chunk: a whole block of 128 and a part of one, for codecs that have blocks."""

OPEN_SUFFIX = "+open"
"""Ends the name of a way of averaging in which members sign their records."""

SUMS_SUFFIX = "+sums"
"""Ends the name of a way of averaging in which sparse parts of many members are a sum."""

ERROR_DECAY = 0.95
RATE, MU = 0.7, 0.9

Float64Array = npt.NDArray[np.float64]

_TOP_K = 512
"""Of 4096: some values of so short a block."""

_SUMS = WideningInt4Codec(members_of_four_bits=2)
"""So that sums of all widths are met in rings as small as these."""

_SET_MEMBERS_MAX = 2
"""So that sparse sets become sums there."""

_CLIPS = (0.1, 1.4)
"""Factors by which a sparse part may be in a sum: parts are clipped, and what a sum rounds is in
the factors that are found. A part that is missing has 0, and a part that is there twice has 2."""

_SEEN = 0.2
"""Least size of a part's values in a sum, as a part of the largest value. The levels of `int4` near
0 are 0.08 apart. The sums on the way and the final together take away, or add, up to 0.075 of the
largest value where the parts are small: a part of this size then seems to be in it by up to 1.38.
One of 0.15 seemed to be in it by 1.43."""

_ERROR_MAX = {"fp32": 2.0**-22, "fp16": 2.0**-11, "int8": 2.0**-8, "int4": 2.0**-4.5}
"""Of one encoding: root of the mean square, as a part of the largest magnitude."""


class WrongAverageError(AssertionError):
    """A final is not the average of those that its mask names."""


@dataclass(frozen=True)
class State:
    """What the outer step works on, all chunks of all fragments."""

    parameters: FloatVector
    momentum: FloatVector

    @cached_property
    def digest(self) -> Digest:
        return digest_of(self.parameters.tobytes(), self.momentum.tobytes())


class _SparseCodec(SparseCodec):
    """Remembers what it wrote and read: a block is looked at by everybody it comes to."""

    def __init__(self, k: int) -> None:
        super().__init__(k)
        self._written: dict[bytes, bytes] = {}
        self._read: dict[tuple[bytes, int], SparseVector] = {}

    def encode(self, values: Float32Array) -> bytes:
        """See `SparseCodec`."""
        key = values.tobytes()
        if key not in self._written:
            self._written[key] = super().encode(values)
        return self._written[key]

    def decode(self, data: Buffer, num_elements: int) -> SparseVector:
        """See `SparseCodec`."""
        key = (bytes(data), num_elements)
        if key not in self._read:
            self._read[key] = super().decode(data, num_elements)
        return self._read[key]


def _payloads_of(name: str) -> AveragedPayloads:
    codec_name = name.removesuffix(OPEN_SUFFIX)
    is_open = codec_name != name
    if codec_name == SPARSE:
        sparse = _SparseCodec(_TOP_K)
        return RecordPayloads(SPARSE, sparse) if is_open else SetPayloads(sparse)
    if codec_name == SPARSE + SUMS_SUFFIX:
        return SetPayloads(_SparseCodec(_TOP_K), _SUMS, _SET_MEMBERS_MAX)
    if codec_name == "int4" and not is_open:
        return SumPayloads(_SUMS)
    return payloads_named(codec_name, trust="open" if is_open else "members")


class Mode:
    """The way of averaging of one world."""

    def __init__(self, name: str, num_chunks: int, num_chunks_carried: int) -> None:
        """
        Args:
            name: a codec's, or that of sparse payloads.
            num_chunks: of a round.
            num_chunks_carried: of all rounds that have their turn one after the other.
        """
        self.payloads = _payloads_of(name)
        self.plan = ChunkPlan(num_chunks_carried * ELEMENTS, ELEMENTS)
        self._round_plan = ChunkPlan(num_chunks * ELEMENTS, ELEMENTS)
        zeros = np.zeros(self.plan.num_elements, np.float32)
        self.genesis = State(zeros, zeros)
        # The same bytes come to the same everywhere, so it is enough to look at them once.
        self._checked: set[tuple[bytes, int, int, tuple[bytes, ...], bool]] = set()

    def pending(self, peer: int, work: Sequence[int], residue: FloatVector) -> FloatVector:
        """The vector behind some work of a peer, which is an integer for each chunk."""
        chunks = [
            sum(
                (_unit_vector(peer, unit) for unit in arithmetic.units_in(each)),
                start=np.zeros(ELEMENTS, np.float32),
            )
            for each in work
        ]
        return np.concatenate(chunks) + residue

    def elements_of_round(self, first_chunk: int) -> slice:
        """Of a round whose chunks are these and the next ones."""
        start = first_chunk * ELEMENTS
        return slice(start, start + self._round_plan.num_elements)

    def contribution(self, pending: FloatVector, ring: Ring, me: PeerId) -> Contribution:
        """`pending`: what the round exchanges of it."""
        return contribution_of(pending, self._round_plan, self.payloads, ring, me, ERROR_DECAY)

    def root_of(self, pending: FloatVector) -> bytes:
        """The root that a peer signs for what the round exchanges of its work."""
        return root_of(pending, self._round_plan, self.payloads)

    def opened(self, work: FloatVector) -> bytes:
        """A chunk of a member's work as it opens it for an auditor."""
        if isinstance(self.payloads, SetPayloads):
            return self.payloads.coder.encode(work)
        return work.tobytes()

    def check(self, payload: Sum, mask: int, chunk: int, ring: Ring, *, is_average: bool) -> None:
        """What a node does with what comes. Raises RemoteProtocolError."""
        roots = tuple(ready.root for ready in ring.ready)
        key = (payload.encoded, mask, chunk, roots, is_average)
        if key not in self._checked:
            signed = SignedRoots(roots)
            self.payloads.check(
                payload.encoded, ELEMENTS, mask, chunk, signed, is_average=is_average
            )
            self._checked.add(key)

    def state_after(
        self, state: State, first_chunk: int, finals: Sequence[Average], tokens: Sequence[int]
    ) -> State:
        """The outer step, as a node takes it."""
        parameters, momentum = state.parameters.copy(), state.momentum.copy()
        for chunk, final in enumerate(finals, first_chunk):
            assert isinstance(final.payload, Sum)
            part = self.plan.range_of(chunk)
            average = self.payloads.average(final.payload.encoded, ELEMENTS, final.mask, tokens)
            nesterov(
                state.parameters[part],
                state.momentum[part],
                average,
                RATE,
                MU,
                parameters[part],
                momentum[part],
            )
        return State(parameters, momentum)

    def check_average(
        self, chunk: int, final: Average, pendings: Sequence[FloatVector], weights: Sequence[int]
    ) -> None:
        """Raises WrongAverageError unless a final is that of these vectors.

        Args:
            chunk: of the round.
            pendings: what the round exchanges, of those in the mask, in ring order.
            weights: their capped tokens.
        """
        assert isinstance(final.payload, Sum)
        encoded, part = final.payload.encoded, self._round_plan.range_of(chunk)
        if isinstance(self.payloads, RecordPayloads):
            block_bytes = self.payloads.part_bytes(ELEMENTS)
            for record, pending in zip(
                split(encoded, final.mask, block_bytes), pendings, strict=True
            ):
                sent = self.payloads.encode(pending[part])
                if record.block[: len(sent)] != sent:
                    raise WrongAverageError(f"chunk {chunk}: not what {record.position} has")
            return
        vectors = [pending[part].astype(np.float64) for pending in pendings]
        codec_name = self.payloads.name
        if isinstance(self.payloads, SetPayloads):
            coder = self.payloads.coder
            blocks = [coder.encode(pending[part]) for pending in pendings]
            if not self.payloads.is_sum(final.mask):
                records = split(encoded, final.mask, coder.encoded_bytes(ELEMENTS))
                for record, block in zip(records, blocks, strict=True):
                    if record.block != block:
                        raise WrongAverageError(f"chunk {chunk}: not what {record.position} has")
                return
            codec_name = _SUMS.name
            vectors = [
                coder.decode(block, ELEMENTS).dense(ELEMENTS).astype(np.float64) for block in blocks
            ]
        average = self.payloads.average(encoded, ELEMENTS, final.mask, ())
        shares = np.array(weights, np.float64) / sum(weights)
        if isinstance(self.payloads, SetPayloads):
            shares = shares * _clips_in(average, shares, vectors, chunk)
        error = np.sqrt(np.mean((shares @ np.stack(vectors) - average) ** 2))
        # Each adds its own, independent of the others'. Of a sum that has a small part of the
        # ring's tokens they are as small as the sum.
        encodings = np.sqrt(len(pendings) + 1)
        error_max = encodings * _ERROR_MAX[codec_name] * np.abs(vectors).max()
        if error > error_max:
            raise WrongAverageError(f"chunk {chunk}: wrong by {error:.3g}, not {error_max:.3g}")


def _clips_in(
    average: Float32Array, shares: Float64Array, parts: Sequence[Float64Array], chunk: int
) -> Float64Array:
    """The factors by which the members' parts are in an average of a sum, (members,).

    Raises WrongAverageError for a factor of a part that is missing or there twice. Parts of members
    with so little weight that a sum rounds their values away are not looked at.
    """
    columns = np.stack(parts, axis=1) * shares
    solved = np.linalg.lstsq(columns, average.astype(np.float64), rcond=None)
    factors: Float64Array = solved[0].astype(np.float64)
    low, high = _CLIPS
    is_seen = np.abs(columns).max(axis=0) > _SEEN * np.abs(average).max()
    if not ((factors > low) & (factors < high))[is_seen].all():
        raise WrongAverageError(f"chunk {chunk}: parts are in it by factors of {factors}")
    return factors


@cache
def _unit_vector(peer: int, unit: int) -> FloatVector:
    """The pseudo-gradient of one local round of a peer, in every chunk."""
    return np.random.default_rng((peer, unit)).standard_normal(ELEMENTS, np.float32)
