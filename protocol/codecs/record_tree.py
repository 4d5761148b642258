"""The Merkle tree over a member's records of one round, whose root is signed before the ring.

A *record* is one chunk of a member's work, encoded. The tree has a leaf for each chunk, and a
member signs the root in its `Ready`. Each record travels with its *path*: the digests beside the
way from its leaf to the root. So a holder of the root can tell a member's record of a chunk from
any other bytes, without the records of the other chunks.

    leaf of chunk c   BLAKE3("gossamer record:" + c (4 bytes, big-endian) + block)
    node              BLAKE3("gossamer node:" + left + right)
    no chunk          32 zero bytes

The tree always has 2**15 leaves, for as many chunks as a round may have. So all paths are equally
long, and the length of a record does not depend on the number of chunks.
"""

from __future__ import annotations

from collections.abc import Sequence

from gossamer.protocol import limits
from gossamer.protocol.codecs.chunk_values import Buffer
from gossamer.protocol.ids import DIGEST_BYTES, Digest, digest_of

DEPTH = 15
PATH_BYTES = DEPTH * DIGEST_BYTES
assert 1 << DEPTH == limits.CHUNKS_MAX

_NOTHING = Digest(bytes(DIGEST_BYTES))


def leaf_of(chunk: int, block: Buffer) -> Digest:
    """The leaf of an encoded chunk."""
    return digest_of(b"gossamer record:", chunk.to_bytes(4, "big"), block)


def _node(left: Digest, right: Digest) -> Digest:
    return digest_of(b"gossamer node:", left, right)


def _empty_subtrees() -> tuple[Digest, ...]:
    """The roots of trees without chunks, by height."""
    empty = [_NOTHING]
    for _ in range(DEPTH):
        empty.append(_node(empty[-1], empty[-1]))
    return tuple(empty)


_EMPTY = _empty_subtrees()


class RecordTree:
    """The tree of one member's records in one round."""

    def __init__(self, leaves: Sequence[Digest]) -> None:
        """`leaves`: of all chunks of the round, in order."""
        if not 0 < len(leaves) <= limits.CHUNKS_MAX:
            raise ValueError(f"a tree of {len(leaves)} records")
        self._levels = [tuple(leaves)]
        for height in range(DEPTH):
            level = self._levels[-1]
            if len(level) % 2:
                level = (*level, _EMPTY[height])
            pairs = zip(level[::2], level[1::2], strict=True)
            self._levels.append(tuple(_node(left, right) for left, right in pairs))

    @property
    def root(self) -> Digest:
        return self._levels[-1][0]

    def leaf(self, chunk: int) -> Digest:
        """Returns the leaf of a chunk."""
        return self._levels[0][chunk]

    def path(self, chunk: int) -> bytes:
        """The digests beside the way from a chunk's leaf to the root, the lowest first."""
        path = []
        for height, level in enumerate(self._levels[:-1]):
            place = chunk >> height ^ 1
            path.append(level[place] if place < len(level) else _EMPTY[height])
        return b"".join(path)


def root_over(chunk: int, block: Buffer, path: Buffer) -> Digest:
    """The root of the tree in which this block is the record of this chunk.

    Args:
        path: `PATH_BYTES` bytes.
    """
    digest, siblings = leaf_of(chunk, block), bytes(path)
    for height in range(DEPTH):
        sibling = Digest(siblings[height * DIGEST_BYTES : (height + 1) * DIGEST_BYTES])
        is_right = chunk >> height & 1
        digest = _node(sibling, digest) if is_right else _node(digest, sibling)
    return digest
