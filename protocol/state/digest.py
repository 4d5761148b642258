"""The state of a run as blocks: parameters and outer momentum, chunk by chunk.

The state digest is the digest of an index that lists the digest of every chunk's fp32 bytes
(little-endian), parameters first. So the index is itself a block whose address is the state
digest, and a newcomer checks every block that it fetches against it.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from gossamer.protocol import limits
from gossamer.protocol.decoding import ArrayStruct, decoded, to_msgpack
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import DIGEST_BYTES, Digest, digest_of
from gossamer.protocol.state.chunk_plan import ChunkPlan

FloatVector = npt.NDArray[np.float32]


class StateIndex(ArrayStruct, frozen=True):
    """Digests of the chunks of the parameters and of the momentum, in order."""

    parameters: tuple[bytes, ...]
    momentum: tuple[bytes, ...]

    @property
    def digest(self) -> Digest:
        return digest_of(to_msgpack(self))


_decoder = msgspec.msgpack.Decoder(StateIndex)


def decode_state_index(data: bytes, plan: ChunkPlan) -> StateIndex:
    """The index of a state. Raises MalformedError if the bytes are not the index of a state cut by
    `plan`."""
    index = decoded(_decoder, data, "a state index")
    for digests in (index.parameters, index.momentum):
        if len(digests) != plan.num_chunks or any(len(d) != DIGEST_BYTES for d in digests):
            raise MalformedError(f"state index that does not have {plan.num_chunks} chunks")
    return index


def chunk_bytes(vector: FloatVector, plan: ChunkPlan, chunk: int) -> memoryview:
    """A chunk's fp32 bytes (little-endian), without a copy on little-endian machines."""
    return float_bytes(vector[plan.range_of(chunk)])


def float_bytes(values: FloatVector) -> memoryview:
    """The fp32 bytes (little-endian) of a vector, without a copy on little-endian machines."""
    return np.ascontiguousarray(values, dtype="<f4").data.cast("B")


def index_of(parameters: FloatVector, momentum: FloatVector, plan: ChunkPlan) -> StateIndex:
    """The index of a state. Shapes: (num_elements,) each."""
    return StateIndex(
        tuple(digest_of(chunk_bytes(parameters, plan, c)) for c in range(plan.num_chunks)),
        tuple(digest_of(chunk_bytes(momentum, plan, c)) for c in range(plan.num_chunks)),
    )


def genesis_digest_of(parameters: FloatVector, chunk_elements: int) -> Digest:
    """The state digest of initial weights, with momentum 0."""
    plan = ChunkPlan(parameters.size, chunk_elements)
    assert plan.num_chunks <= limits.CHUNKS_MAX
    return index_of(parameters, np.zeros_like(parameters), plan).digest
