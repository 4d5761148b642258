"""The messages of a stream of ``/gossamer/ring/3``, from a ring member to its successor.

    sender   -> ["hello", Signed(Roster)]     first frame: which ring this is
    receiver -> ["held"]                      once; the payload is the receiver's inventory
    sender   -> ["token", chunk, contributors, finisher or nil, signature]
                                              the payload is the encoded chunk
    receiver -> ["ack", chunks received, bytes of the next one]   on receipt, and in between

The tag of a chunk's message is "token" for historical reasons. The payload is a partial sum, or
with the ring position of its finisher an average. `signature` is the finisher's under an average,
and the sender's under a partial sum that can be audited.
"""

from __future__ import annotations

import msgspec

from gossamer.protocol.decoding import ArrayStruct, decoded
from gossamer.protocol.wire.statements import Signed

RING_PROTOCOL = "/gossamer/ring/3"

RING_MESSAGE_BYTES_MAX = 256
"""A message of a chunk, or an answer, without its payload: a mask of 32 bytes, a signature of 64
bytes, and some numbers."""


class Hello(ArrayStruct, frozen=True, tag="hello"):
    """The ring that the sender follows."""

    roster: Signed


class ChunkMessage(ArrayStruct, frozen=True, tag="token"):
    """The head of one chunk's payload."""

    chunk: int
    contributors: bytes
    """Mask of the ring positions that are in the payload, big-endian."""
    finisher: int | None
    """Ring position of the member that finished the average; None for a partial sum."""
    signature: bytes = b""
    """The finisher's, or the sender's under a partial sum (`average_signatures`). Empty in a run
    with `trust = "open"`, and under the partial sums of sets."""


class HeldChunks(ArrayStruct, frozen=True, tag="held"):
    """The head of the receiver's inventory, which is the payload."""


class Ack(ArrayStruct, frozen=True, tag="ack"):
    """A receipt."""

    received: int
    """Number of chunk messages that were received in whole."""
    next_bytes: int = 0
    """Bytes of the next chunk's payload that were received."""


_to_receiver: msgspec.msgpack.Decoder[Hello | ChunkMessage] = msgspec.msgpack.Decoder(
    Hello | ChunkMessage
)
_to_sender: msgspec.msgpack.Decoder[HeldChunks | Ack] = msgspec.msgpack.Decoder(HeldChunks | Ack)


def decode_to_receiver(message: bytes | bytearray) -> Hello | ChunkMessage:
    """A message of the sender. Raises MalformedError for anything else."""
    return decoded(_to_receiver, message, "a ring message")


def decode_to_sender(message: bytes | bytearray) -> HeldChunks | Ack:
    """A message of the receiver. Raises MalformedError for anything else."""
    return decoded(_to_sender, message, "an answer of a ring member")
