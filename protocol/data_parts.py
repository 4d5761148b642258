"""Parts of the data that the founder adds while the run goes on.

The manifest names the first shards of a run. A founder whose corpus takes hours to cut adds others
behind them: it signs a statement (`wire.statements.MoreData`) with the digest of a block, the
`PartList`. This block names all parts that were added so far, in their order, and each of them is a
block too: a `ShardIndex` without held-out shards.
"""

from __future__ import annotations

import msgspec

from gossamer.protocol import limits
from gossamer.protocol.decoding import ArrayStruct, decoded
from gossamer.protocol.errors import MalformedError, OversizedError
from gossamer.protocol.ids import DIGEST_BYTES
from gossamer.protocol.shard_index import ShardIndex, decode_index


class DataPart(ArrayStruct, frozen=True):
    """One part: the block with its `ShardIndex`, its shards and their tokens."""

    index_digest: bytes
    num_shards: int
    num_tokens: int


class PartList(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All parts that were added to the data of the manifest, in their order."""

    parts: tuple[DataPart, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens of all parts together."""
        return sum(part.num_tokens for part in self.parts)

    def continues(self, earlier: PartList) -> bool:
        """Returns whether this list is an earlier one with parts added behind it."""
        return self.parts[: len(earlier.parts)] == earlier.parts


_decoder = msgspec.msgpack.Decoder(PartList)


def decode_parts(data: bytes) -> PartList:
    """Raises MalformedError if the bytes are not a list of parts, OversizedError if it is too
    long."""
    found = decoded(_decoder, data, "a list of data parts")
    if not 0 < len(found.parts) <= limits.DATA_PARTS_MAX:
        raise OversizedError(
            f"list of {len(found.parts)} data parts; allowed: 1 to {limits.DATA_PARTS_MAX}"
        )
    for part in found.parts:
        if (
            len(part.index_digest) != DIGEST_BYTES
            or not 0 < part.num_shards <= limits.SHARDS_MAX
            or not 0 < part.num_tokens <= limits.TOKENS_MAX
        ):
            raise MalformedError("list of data parts with a part out of range")
    if sum(part.num_shards for part in found.parts) > limits.SHARDS_MAX:
        raise OversizedError(f"data parts of more than {limits.SHARDS_MAX} shards")
    return found


def decode_part(data: bytes, part: DataPart) -> ShardIndex:
    """Returns the shards of a part. Raises MalformedError if the bytes are not the index of this
    part."""
    index = decode_index(data)
    tokens = sum(shard.num_tokens for shard in index.shards)
    if index.heldout or (len(index.shards), tokens) != (part.num_shards, part.num_tokens):
        raise MalformedError("index of a data part that does not fit the list of parts")
    return index
