"""Lists of the parts of data that a founder added, and the parts themselves."""

from __future__ import annotations

import pytest

from gossamer.protocol import limits
from gossamer.protocol.accounting.run_data import RunData
from gossamer.protocol.data_parts import DataPart, PartList, decode_part, decode_parts
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import MalformedError, OversizedError
from gossamer.protocol.ids import digest_of
from gossamer.protocol.shard_index import ShardIndex, ShardInfo

DIGEST = digest_of(b"a part")


def shards(number: int, tokens: int = 100) -> tuple[ShardInfo, ...]:
    return tuple(ShardInfo(digest_of(bytes([n])), tokens, 50) for n in range(number))


def parts(*sizes: int) -> PartList:
    return PartList(
        parts=tuple(
            DataPart(digest_of(bytes([n])), size, 100 * size) for n, size in enumerate(sizes)
        )
    )


def test_a_list_comes_back_and_knows_what_it_continues() -> None:
    assert decode_parts(to_msgpack(parts(3, 4))) == parts(3, 4)
    assert parts(3, 4).continues(parts(3))
    assert parts(3, 4).continues(PartList(parts=()))
    assert parts(3, 4).continues(parts(3, 4))
    assert not parts(3).continues(parts(3, 4))
    assert not parts(3, 4).continues(parts(4))


@pytest.mark.parametrize(
    "bad",
    [
        PartList(parts=()),
        PartList(parts=(DataPart(DIGEST, 1, 1),) * (limits.DATA_PARTS_MAX + 1)),
        PartList(parts=(DataPart(DIGEST[:-1], 1, 1),)),
        PartList(parts=(DataPart(DIGEST, 0, 1),)),
        PartList(parts=(DataPart(DIGEST, 1, 0),)),
        PartList(parts=(DataPart(DIGEST, limits.SHARDS_MAX + 1, 1),)),
        PartList(parts=(DataPart(DIGEST, limits.SHARDS_MAX, 1),) * 2),
    ],
    ids=range(7),
)
def test_a_list_out_of_range_is_refused(bad: PartList) -> None:
    with pytest.raises((MalformedError, OversizedError)):
        decode_parts(to_msgpack(bad))


def test_a_part_has_what_the_list_says_and_holds_nothing_out() -> None:
    index = ShardIndex(shards=shards(3), heldout=())
    assert decode_part(to_msgpack(index), DataPart(DIGEST, 3, 300)) == index
    for wrong in (DataPart(DIGEST, 2, 300), DataPart(DIGEST, 3, 301)):
        with pytest.raises(MalformedError):
            decode_part(to_msgpack(index), wrong)
    with_heldout = ShardIndex(shards=shards(3), heldout=shards(1))
    with pytest.raises(MalformedError):
        decode_part(to_msgpack(with_heldout), DataPart(DIGEST, 3, 300))


def test_data_grow_and_a_shard_keeps_its_numbers() -> None:
    data = RunData(ShardIndex(shards=shards(5), heldout=shards(2, 7)), 2)
    before = data.shards_to_keep()
    assert (data.num_tokens, data.num_bytes, len(data.partitions)) == (500, 250, 3)
    data.add(DataPart(DIGEST, 4, 800), shards(4, 200), 3)
    assert (data.num_tokens, data.num_bytes) == (1300, 450)
    assert data.partitions.tokens == [200, 200, 100, 600, 200]
    assert data.shards_to_keep()[: len(before)] == before
    assert data.parts == PartList(parts=(DataPart(DIGEST, 4, 800),))
    with pytest.raises(OversizedError):
        data.add(DataPart(DIGEST, limits.SHARDS_MAX, 800), shards(1) * limits.SHARDS_MAX, 3)
