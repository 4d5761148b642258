"""The messages of the two streams of a newcomer.

``/gossamer/run/1``, on which it fetches the manifest:

request: an empty frame
reply:   the `SignedManifest`, as the frame's payload

``/gossamer/admit/1``, the only protocol that a peer is served which the run does not admit:

request: an empty frame
reply:   `Admitted`, as the frame's message
"""

from __future__ import annotations

import msgspec

from gossamer.protocol.decoding import ArrayStruct, decoded
from gossamer.protocol.limits import MANIFEST_BYTES_MAX
from gossamer.protocol.manifest import SignedManifest

RUN_PROTOCOL = "/gossamer/run/1"
ADMIT_PROTOCOL = "/gossamer/admit/1"

RUN_REPLY_BYTES_MAX = MANIFEST_BYTES_MAX
"""The frame's own limit: with its signature a manifest has to stay a little smaller."""

ADMIT_REPLY_BYTES_MAX = 64
"""A name and a truth value have 11 bytes; later versions may say a little more."""


class Admitted(ArrayStruct, frozen=True, tag="admitted"):
    """Whether the run admits the peer that asks. The answer says nothing else about the run."""

    is_admitted: bool


_decoder = msgspec.msgpack.Decoder(SignedManifest)
_admitted_decoder = msgspec.msgpack.Decoder(Admitted)


def decode_signed_manifest(data: bytes | bytearray) -> SignedManifest:
    """A reply, whose manifest and signature are not yet checked. Raises MalformedError for anything
    else."""
    return decoded(_decoder, data, "a manifest")


def decode_admitted(data: bytes | bytearray) -> Admitted:
    """A reply of ``/gossamer/admit/1``. Raises MalformedError for anything else."""
    return decoded(_admitted_decoder, data, "an answer about admission")
