"""The messages of a stream of ``/gossamer/run/1``, on which a newcomer fetches the manifest.

request: an empty frame
reply:   the `SignedManifest`, as the frame's payload
"""

from __future__ import annotations

import msgspec

from gossamer.protocol.errors import MalformedError
from gossamer.protocol.limits import MANIFEST_BYTES_MAX
from gossamer.protocol.manifest import SignedManifest

RUN_PROTOCOL = "/gossamer/run/1"

RUN_REPLY_BYTES_MAX = MANIFEST_BYTES_MAX
"""The frame's own limit: with its signature a manifest has to stay a little smaller."""

_decoder = msgspec.msgpack.Decoder(SignedManifest)


def encode_signed_manifest(signed: SignedManifest) -> bytes:
    """The msgpack of a reply."""
    return msgspec.msgpack.encode(signed)


def decode_signed_manifest(data: bytes | bytearray) -> SignedManifest:
    """A reply, whose manifest and signature are not yet checked.

    Raises:
        MalformedError: anything else.
    """
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedError(f"not a manifest: {error}") from error
