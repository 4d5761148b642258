"""The exchange by which two members compare what they hold of a kind of signed pieces.

    request: the digest of all that the caller holds, as the message
    reply:   an empty message if it is the same, which ends the exchange; or else the digests of the
             single pieces, 32 bytes each, as the payload
    request: the digests of the pieces that are wanted, as the payload
    reply:   a page with these pieces as the message

Each kind has a protocol of its own, a page, and a bound on the digests of one exchange:
`invitation_messages` for the roll, `expulsion_messages` for votes.
"""

from __future__ import annotations

from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import DIGEST_BYTES, Digest


def decode_digests(data: bytes | bytearray, pieces_max: int) -> list[Digest]:
    """The digests in a payload. Raises MalformedError if it does not have whole digests, or more
    than `pieces_max`."""
    if len(data) % DIGEST_BYTES or len(data) > pieces_max * DIGEST_BYTES:
        raise MalformedError(f"digests in {len(data)} bytes; at most {pieces_max} whole ones")
    return [Digest(bytes(data[at : at + DIGEST_BYTES])) for at in range(0, len(data), DIGEST_BYTES)]
