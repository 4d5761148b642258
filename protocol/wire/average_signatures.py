"""The signature of a member under an average that it finished, under a partial sum that it passed
on, or under its own parts of a shared step (`rounds.ring.ring`).

The bytes that are signed are those of a statement, so those of two averages can be a proof
(`policy.conduct.equivocation`). They are not sent: each receiver makes them from what it knows, and
only the signature travels with the chunk.
"""

from __future__ import annotations

import msgspec

from gossamer.protocol import limits
from gossamer.protocol.decoding import ArrayStruct, decoded, to_msgpack
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import DIGEST_BYTES, Digest, PeerId
from gossamer.protocol.wire.envelopes import Verify, check_signature
from gossamer.protocol.wire.statements import Signed

_MASK_BYTES_MAX = (limits.RING_MEMBERS_MAX + 7) // 8


class _OfChunk(ArrayStruct, frozen=True):
    """A chunk of a ring, with the work of some members in it."""

    incarnation: int
    """As in the author's `Ready` in the ring."""
    sequence: int
    ring_id: bytes
    chunk: int
    contributors: bytes
    """Mask of the ring positions that are in it, big-endian, as long as the ring needs."""
    digest: bytes
    """Digest of the encoded chunk."""


class FinishedAverage(_OfChunk, frozen=True, tag="average"):
    """The author finished this average of a ring. It finishes each chunk of a ring once."""


class PassedSum(_OfChunk, frozen=True, tag="sum"):
    """The author passed on this partial sum of a ring."""


class SignedStep(ArrayStruct, frozen=True, tag="step"):
    """The author gave these parts to all chunks of a shared step of a ring."""

    incarnation: int
    """As in the author's `Ready` in the ring."""
    sequence: int
    ring_id: bytes
    step: int
    root: bytes
    """Root over the parts (`codecs.record_tree`)."""


_decoder: msgspec.msgpack.Decoder[FinishedAverage | SignedStep] = msgspec.msgpack.Decoder(
    FinishedAverage | SignedStep
)
_BEGINNINGS = (
    to_msgpack(FinishedAverage(0, 0, b"", 0, b"", b""))[: 1 + 1 + len("average")],
    to_msgpack(SignedStep(0, 0, b"", 0, b""))[: 1 + 1 + len("step")],
)
"""Header of the array, and the name as a string."""


def check_finished(
    finished: FinishedAverage | PassedSum | SignedStep,
    author: PeerId,
    signature: bytes,
    run_id: Digest,
    verify: Verify,
) -> None:
    """Raises ForgedError if the author did not sign this average, sum or step for this run."""
    signed = Signed(author, to_msgpack(finished), signature)
    check_signature(signed, run_id, verify)


def is_of_ring(payload: bytes) -> bool:
    """Returns whether the bytes of an envelope in a proof are those of an average or of a step."""
    return payload.startswith(_BEGINNINGS)


def decode_of_ring(payload: bytes) -> FinishedAverage | SignedStep:
    """The average or the step that an envelope of a proof names. Raises MalformedError if it names
    neither."""
    signed = decoded(_decoder, payload, "an average or a step")
    if isinstance(signed, FinishedAverage):
        number, digest = signed.chunk, signed.digest
        is_good = 0 < len(signed.contributors) <= _MASK_BYTES_MAX
    else:
        number, digest, is_good = signed.step, signed.root, True
    if not (
        is_good
        and len(signed.ring_id) == len(digest) == DIGEST_BYTES
        and 0 <= signed.incarnation <= limits.INCARNATION_MAX
        and 0 <= signed.sequence <= limits.SEQUENCE_MAX
        and 0 <= number < limits.CHUNKS_MAX
        and to_msgpack(signed) == payload
    ):
        raise MalformedError("an average or a step with values out of range")
    return signed
