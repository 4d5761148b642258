from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.protocol import limits
from gossamer.protocol.codecs.record_tree import DEPTH, PATH_BYTES, RecordTree, leaf_of, root_over
from gossamer.protocol.ids import Digest, digest_of


def tree_of(blocks: list[bytes]) -> RecordTree:
    return RecordTree([leaf_of(chunk, block) for chunk, block in enumerate(blocks)])


def root_by_definition(blocks: list[bytes]) -> Digest:
    """All leaves, level by level: slow, and without a shortcut."""
    level = [leaf_of(chunk, block) for chunk, block in enumerate(blocks)]
    level += [Digest(bytes(32))] * (limits.CHUNKS_MAX - len(level))
    while len(level) > 1:
        level = [
            digest_of(b"gossamer node:", left, right)
            for left, right in zip(level[::2], level[1::2], strict=True)
        ]
    return level[0]


@pytest.mark.parametrize("num_chunks", [1, 2, 3, 7, 64, 1000])
def test_the_root_is_that_of_the_whole_tree(num_chunks: int) -> None:
    blocks = [bytes([chunk % 251]) * 5 for chunk in range(num_chunks)]
    assert tree_of(blocks).root == root_by_definition(blocks)


@given(blocks=st.lists(st.binary(max_size=20), min_size=1, max_size=40), data=st.data())
def test_a_path_leads_from_its_own_record_to_the_root_and_from_no_other(
    blocks: list[bytes], data: st.DataObject
) -> None:
    tree = tree_of(blocks)
    chunk = data.draw(st.integers(0, len(blocks) - 1))
    path = tree.path(chunk)
    assert len(path) == PATH_BYTES == 32 * DEPTH
    assert root_over(chunk, blocks[chunk], path) == tree.root
    assert root_over(chunk, blocks[chunk] + b"x", path) != tree.root
    assert root_over(chunk ^ 1, blocks[chunk], path) != tree.root
    changed = bytearray(path)
    changed[data.draw(st.integers(0, PATH_BYTES - 1))] ^= 1
    assert root_over(chunk, blocks[chunk], changed) != tree.root


def test_a_round_may_have_as_many_chunks_as_the_tree_has_leaves() -> None:
    leaves = [Digest(bytes([1]) * 32)] * limits.CHUNKS_MAX
    assert len(RecordTree(leaves).path(limits.CHUNKS_MAX - 1)) == PATH_BYTES
    with pytest.raises(ValueError, match="32769"):
        RecordTree([*leaves, leaves[0]])
    with pytest.raises(ValueError, match="of 0"):
        RecordTree([])
