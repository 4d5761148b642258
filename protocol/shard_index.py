"""The shards of a corpus: a block that the manifest names, as canonical as the manifest itself."""

from __future__ import annotations

import msgspec

from gossamer.protocol import limits
from gossamer.protocol.decoding import ArrayStruct, decoded
from gossamer.protocol.errors import MalformedError, OversizedError
from gossamer.protocol.ids import DIGEST_BYTES

PROMPT_BIT = 1 << 31
"""Set in a token of four bytes that the model reads and is not trained to write: in a run whose
data are conversations, all tokens but the assistant's."""


class ShardInfo(ArrayStruct, frozen=True):
    """One shard: BLAKE3 of its compressed bytes, its length in tokens and in compressed bytes."""

    digest: bytes
    num_tokens: int
    num_bytes: int


class ShardIndex(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All shards of a corpus in their order, and the held-out shards that are never trained on."""

    shards: tuple[ShardInfo, ...]
    heldout: tuple[ShardInfo, ...]


_decoder = msgspec.msgpack.Decoder(ShardIndex)


def decode_index(data: bytes) -> ShardIndex:
    """Raises MalformedError if the bytes are not a valid shard index."""
    index = decoded(_decoder, data, "a shard index")
    if len(index.shards) + len(index.heldout) > limits.SHARDS_MAX:
        raise OversizedError(f"shard index of more than {limits.SHARDS_MAX} shards")
    for shard in (*index.shards, *index.heldout):
        if (
            len(shard.digest) != DIGEST_BYTES
            or not 0 < shard.num_tokens <= limits.SHARD_TOKENS_MAX
            or not 0 < shard.num_bytes <= limits.BLOCK_BYTES_MAX
        ):
            raise MalformedError("shard index with a shard out of range")
    return index
