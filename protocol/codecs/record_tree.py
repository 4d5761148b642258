"""The Merkle tree over a member's records of one round or one shared step, whose root it signs.

A *record* is one chunk of a member's work, encoded. The tree has a leaf for each chunk, and a
member signs the root in its `Ready`. Each record travels with its *path*: the digests beside the
way from its leaf to the root. So a holder of the root can tell a member's record of a chunk from
any other bytes, without the records of the other chunks.

    leaf of chunk c   BLAKE3("gossamer record:" + c (4 bytes, big-endian) + block)
    node              BLAKE3("gossamer node:" + left + right)
    no chunk          32 zero bytes

The tree of a round always has 2**15 leaves, for as many chunks as a round may have. So all paths
are equally long, and the length of a record does not depend on the number of chunks.

The parts of a shared step are trained inside the ring, so their root cannot be in the `Ready`. A
member signs one for each step (`wire.average_signatures.SignedStep`). That tree has leaves for the
chunks of one step, numbered from 0, and is as low as they allow: a step of one chunk has an empty
path, and its leaf is the root.
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


def depth_of(num_leaves: int) -> int:
    """Returns the depth of the lowest tree with so many leaves, at least 1."""
    return (num_leaves - 1).bit_length()


class RecordTree:
    """The tree of one member's records in one round or one shared step."""

    def __init__(self, leaves: Sequence[Digest], depth: int = DEPTH) -> None:
        """
        Args:
            leaves: of all chunks, in order.
            depth: digests of a path, `DEPTH` at most.
        """
        if not 0 < len(leaves) <= 1 << depth:
            raise ValueError(f"a tree of {len(leaves)} records")
        self._levels = [tuple(leaves)]
        for height in range(depth):
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
        path: a whole number of digests.
    """
    digest, siblings = leaf_of(chunk, block), bytes(path)
    for height in range(len(siblings) // DIGEST_BYTES):
        sibling = Digest(siblings[height * DIGEST_BYTES : (height + 1) * DIGEST_BYTES])
        is_right = chunk >> height & 1
        digest = _node(sibling, digest) if is_right else _node(digest, sibling)
    return digest
