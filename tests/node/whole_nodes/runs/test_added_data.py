"""The founder adds data to a run that goes on: whole nodes in virtual time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import trio
import zstandard

from gossamer.protocol.accounting.run_data import RunData
from gossamer.protocol.data_parts import DataPart, PartList, encode_parts
from gossamer.protocol.ids import Digest
from gossamer.protocol.shard_index import ShardIndex, ShardInfo, encode_index
from gossamer.protocol.wire.envelopes import seal
from gossamer.protocol.wire.statements import MoreData
from tests.support.node_world import (
    World,
    assert_every_token_counted_once,
    headers_of,
    simulate,
    start,
)

FIRST_SHARDS = 6
PART_SHARDS = 8
SHARD_TOKENS = 512
PATIENCE_SECONDS = 120.0


def add_part(world: World, parts: list[DataPart]) -> None:
    """Does what the founder's cutter does when a part is cut; `parts` are those before it."""
    context = world.participant("a").context
    store, identity = world.nodes["a"]._store, context.identity
    shards: list[ShardInfo] = []
    for number in range(PART_SHARDS):
        tokens = np.full(SHARD_TOKENS, 100 + len(parts) * PART_SHARDS + number, dtype="<u2")
        block = zstandard.ZstdCompressor().compress(tokens.tobytes())
        shards.append(ShardInfo(store.put(block), SHARD_TOKENS, len(block)))
    index = encode_index(ShardIndex(shards=tuple(shards), heldout=()))
    parts.append(DataPart(store.put(index), PART_SHARDS, PART_SHARDS * SHARD_TOKENS))
    listed = PartList(parts=tuple(parts))
    tokens_added = listed.num_tokens
    statement = MoreData(len(parts), store.put(encode_parts(listed)), tokens_added, tokens_added)
    run_id = context.manifest.run_id
    context.added_data.heard(seal(statement, identity.peer_id, run_id, identity.sign), statement)


def data_of(world: World, name: str) -> RunData | None:
    participant = world.participant_or_none(name)
    return None if participant is None else participant.context.added_data._data


def num_shards(world: World, name: str) -> int:
    data = data_of(world, name)
    return 0 if data is None else len(data.shards)


def consumed_from(world: World, first: int) -> bool:
    return any(
        span.partition >= first for header in headers_of(world, "b") for span in header.spans
    )


def test_data_that_are_added_are_trained_on_by_all_and_outlive_the_founder(tmp_path: Path) -> None:
    world = World(tmp_path, seed=31, num_shards=FIRST_SHARDS, data_grow=True)
    parts: list[DataPart] = []

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "abc")
        await world.reach(2, *"abc")
        add_part(world, parts)
        grown = FIRST_SHARDS + PART_SHARDS
        await world.until(
            lambda: all(num_shards(world, name) == grown for name in "abc"), PATIENCE_SECONDS
        )
        await world.until(lambda: consumed_from(world, FIRST_SHARDS), PATIENCE_SECONDS, 0.5)
        world.crash("c")
        add_part(world, parts)
        grown += PART_SHARDS
        await world.until(lambda: num_shards(world, "b") == grown, PATIENCE_SECONDS)
        copied = world.nodes["b"]._store
        await world.until(
            lambda: not copied.missing(Digest(shard.digest) for shard in all_shards(world, "b")),
            PATIENCE_SECONDS,
        )
        world.crash("a")
        await nursery.start(world.run, "c", ["b"])  # it was away
        await nursery.start(world.run, "d", ["b"])  # it is new, and never met the founder
        await world.until(
            lambda: all(num_shards(world, name) == grown for name in "bcd"), PATIENCE_SECONDS
        )
        await world.reach(world.round("b") + 3, *"bcd")
        world.assert_one_chain(*"bcd")
        assert_every_token_counted_once(headers_of(world, "b"))
        assert {shard.num_tokens for shard in all_shards(world, "d")} == {SHARD_TOKENS}
        data = data_of(world, "d")
        assert data is not None
        assert [part.index_digest for part in data.parts.parts] == [p.index_digest for p in parts]

    simulate(world, story)


def all_shards(world: World, name: str) -> list[ShardInfo]:
    data = data_of(world, name)
    assert data is not None
    return data.shards
