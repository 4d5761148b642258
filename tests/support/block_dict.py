"""Blocks in memory, for what only puts them."""

from __future__ import annotations

from gossamer.protocol.ids import Digest, digest_of


class BlockDict(dict[bytes, bytes]):
    """The blocks by their digest."""

    def put(self, data: bytes) -> Digest:
        digest = digest_of(data)
        self[digest] = data
        return digest
