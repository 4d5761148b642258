"""The messages of a stream of ``/gossamer/blocks/1``.

The fetching side sends a `BlockRequest` a frame, without payload; several may be on their way at
once. The serving side answers each in order with a `BlockReply`, and where it has the block, with
the block as the frame's payload. Either side may end the stream between two frames.
"""

from __future__ import annotations

import msgspec

from gossamer.protocol.decoding import ArrayStruct, decoded, to_msgpack
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import DIGEST_BYTES, Digest

BLOCKS_PROTOCOL = "/gossamer/blocks/1"
# Both messages are a digest and a few bytes of msgpack.
BLOCK_MESSAGE_BYTES_MAX = 64


class BlockRequest(ArrayStruct, frozen=True):
    """The fetching side asks for the block with this digest."""

    digest: bytes


class BlockReply(ArrayStruct, frozen=True):
    """The block follows as payload (`found`), or the sender does not have it."""

    digest: bytes
    found: bool


_request_decoder = msgspec.msgpack.Decoder(BlockRequest)
_reply_decoder = msgspec.msgpack.Decoder(BlockReply)


def encode_request(digest: Digest) -> bytes:
    """A `BlockRequest`'s bytes."""
    return to_msgpack(BlockRequest(digest))


def decode_request(message: bytes | bytearray) -> Digest:
    """The digest that is asked for. Raises MalformedError for anything but a `BlockRequest`."""
    request = decoded(_request_decoder, message, "a block request")
    return _digest(request.digest)


def encode_reply(digest: Digest, *, found: bool) -> bytes:
    """A `BlockReply`'s bytes."""
    return to_msgpack(BlockReply(digest, found))


def decode_reply(message: bytes | bytearray) -> tuple[Digest, bool]:
    """Returns (digest, found). Raises MalformedError for anything but a `BlockReply`."""
    reply = decoded(_reply_decoder, message, "a block reply")
    return _digest(reply.digest), reply.found


def _digest(value: bytes) -> Digest:
    if len(value) != DIGEST_BYTES:
        raise MalformedError(f"a digest has {DIGEST_BYTES} bytes, not {len(value)}")
    return Digest(value)
