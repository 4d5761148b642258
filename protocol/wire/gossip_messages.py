"""Statements as messages of gossip, without what the receiver has already.

The author of a message is known, so an envelope of its own goes out without the author. And a
roster has the signed `Ready` of every member in it, which nearly every peer that it goes to has
heard before. So its message names each by the first `TAG_BYTES` bytes of its digest, and the
receiver puts the roster together from what it has, byte for byte: the organiser's signature is over
the whole roster. The idea is that of compact blocks (Bitcoin, BIP 152).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gossamer.protocol import limits
from gossamer.protocol.decoding import ArrayStruct, decoded, to_msgpack
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import PeerId
from gossamer.protocol.wire.statements import TAG_BYTES, Roster, Signed


class OwnEnvelope(ArrayStruct, frozen=True):
    """An envelope whose author is that of the message."""

    payload: bytes
    signature: bytes


class CompactRoster(ArrayStruct, frozen=True):
    """A roster that the author of the message signed, with tags in the place of its members'
    `Ready`."""

    signature: bytes
    round: int
    head: bytes
    attempt: int
    codec: str
    chunk_elements: int
    tags: bytes
    """`TAG_BYTES` for each member, in ring order."""


_own_decoder = msgspec.msgpack.Decoder(OwnEnvelope)
_compact_decoder = msgspec.msgpack.Decoder(CompactRoster)


def encode_own(signed: Signed) -> bytes:
    """An envelope of the author of the message."""
    return to_msgpack(OwnEnvelope(signed.payload, signed.signature))


def decode_own(author: PeerId, data: bytes) -> Signed:
    """The envelope of which nothing is checked.

    Args:
        author: of the message.

    Raises:
        MalformedError: it is no envelope.
    """
    own = decoded(_own_decoder, data, "an envelope of its author")
    return Signed(author, own.payload, own.signature)


def encode_compact(signed: Signed, roster: Roster) -> bytes:
    """A sealed roster as a message."""
    return to_msgpack(
        CompactRoster(
            signed.signature,
            roster.round,
            roster.head,
            roster.attempt,
            roster.codec,
            roster.chunk_elements,
            b"".join(member.digest[:TAG_BYTES] for member in roster.members),
        )
    )


def decode_compact(data: bytes) -> CompactRoster:
    """A message whose number of members is checked, and nothing else. Raises MalformedError if it
    is no compact roster, or one of too many members."""
    compact = decoded(_compact_decoder, data, "a compact roster")
    num_members, rest = divmod(len(compact.tags), TAG_BYTES)
    if rest or not 1 <= num_members <= limits.RING_MEMBERS_MAX:
        raise MalformedError(f"compact roster with tags of {len(compact.tags)} bytes")
    return compact


def put_together(
    author: PeerId, compact: CompactRoster, found: Mapping[bytes, Signed]
) -> Signed | None:
    """The roster of which nothing is checked; None: a `Ready` in it is not here.

    Args:
        author: of the message.
        found: the `Ready` that are here, by tag.
    """
    tags, members = compact.tags, []
    for start in range(0, len(tags), TAG_BYTES):
        member = found.get(tags[start : start + TAG_BYTES])
        if member is None:
            return None
        members.append(member)
    roster = Roster(
        compact.round,
        compact.head,
        compact.attempt,
        tuple(members),
        compact.codec,
        compact.chunk_elements,
    )
    return Signed(author, to_msgpack(roster), compact.signature)
