"""The signature of a member under an average that it finished, or under a partial sum that it
passed on (`rounds.ring`).

The bytes that are signed are those of a statement, so those of two averages can be a proof
(`policy.equivocation`). They are not sent: each receiver makes them from what it knows, and only
the signature travels with the chunk.
"""

from __future__ import annotations

import msgspec

from gossamer.protocol import limits
from gossamer.protocol.decoding import decoded
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import DIGEST_BYTES, Digest, PeerId
from gossamer.protocol.wire.envelopes import Verify, check_signature
from gossamer.protocol.wire.statements import Signed

_MASK_BYTES_MAX = (limits.RING_MEMBERS_MAX + 7) // 8


class FinishedAverage(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="average"
):
    """The author finished this average of a ring. It finishes each chunk of a ring once."""

    incarnation: int
    """As in the author's `Ready` in the ring."""
    sequence: int
    ring_id: bytes
    chunk: int
    contributors: bytes
    """Mask of the ring positions that are in it, big-endian, as long as the ring needs."""
    digest: bytes
    """Digest of the encoded average."""


class PassedSum(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="sum"
):
    """The author passed on this partial sum of a ring. The fields are as in `FinishedAverage`."""

    incarnation: int
    sequence: int
    ring_id: bytes
    chunk: int
    contributors: bytes
    digest: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(FinishedAverage)
_BEGINNING = _encoder.encode(FinishedAverage(0, 0, b"", 0, b"", b""))[: 1 + 1 + len("average")]
"""Header of the array, and the name as a string."""


def encode_finished(finished: FinishedAverage | PassedSum) -> bytes:
    """The bytes that the finisher of an average signs, or the sender of a partial sum."""
    return _encoder.encode(finished)


def check_finished(
    finished: FinishedAverage | PassedSum,
    author: PeerId,
    signature: bytes,
    run_id: Digest,
    verify: Verify,
) -> None:
    """Raises ForgedError if the author did not sign this average or sum for this run."""
    signed = Signed(author, encode_finished(finished), signature)
    check_signature(signed, run_id, verify)


def is_finished(payload: bytes) -> bool:
    """Returns whether the bytes of an envelope in a proof are those of an average."""
    return payload.startswith(_BEGINNING)


def decode_finished(payload: bytes) -> FinishedAverage:
    """The average that an envelope of a proof names.

    Raises:
        MalformedError: it names no average.
    """
    finished = decoded(_decoder, payload, "an average")
    if not (
        len(finished.ring_id) == len(finished.digest) == DIGEST_BYTES
        and 0 <= finished.incarnation <= limits.INCARNATION_MAX
        and 0 <= finished.sequence <= limits.SEQUENCE_MAX
        and 0 <= finished.chunk < limits.CHUNKS_MAX
        and 0 < len(finished.contributors) <= _MASK_BYTES_MAX
        and encode_finished(finished) == payload
    ):
        raise MalformedError("an average with values out of range")
    return finished
