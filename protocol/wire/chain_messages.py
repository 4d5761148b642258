"""The messages of a stream of ``/gossamer/chain/2``, on which a peer fetches commit records.

request: [head, after round]
reply:   encoded commit records on the way to `head`, oldest first, at most
         `limits.HEADERS_PER_REPLY_MAX`; empty if the serving side does not know the head
"""

from __future__ import annotations

import msgspec

from gossamer.protocol import limits
from gossamer.protocol.decoding import ArrayStruct, decoded
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import DIGEST_BYTES

CHAIN_PROTOCOL = "/gossamer/chain/2"
"""Peers that ask by the first version, which had records in whole form alone, are not answered."""

CHAIN_REQUEST_BYTES_MAX = 64
"""Bound on a request: a digest, a number, and a few bytes of msgpack."""


class ChainRequest(ArrayStruct, frozen=True):
    """A question for the commit records between a round and a head."""

    head: bytes
    after_round: int


_request_decoder = msgspec.msgpack.Decoder(ChainRequest)
_reply_decoder = msgspec.msgpack.Decoder(list[bytes])


def decode_chain_request(message: bytes | bytearray) -> ChainRequest:
    """A request. Raises MalformedError for anything else."""
    request = decoded(_request_decoder, message, "a chain request")
    if len(request.head) != DIGEST_BYTES:
        raise MalformedError("chain request for something that is no head")
    return request


def decode_chain_reply(message: bytes | bytearray) -> list[bytes]:
    """Encoded commit records, not yet decoded. Raises MalformedError for anything else, or too many
    records."""
    records = decoded(_reply_decoder, message, "commit records")
    if len(records) > limits.HEADERS_PER_REPLY_MAX:
        raise MalformedError(f"{len(records)} commit records in one reply")
    return records
