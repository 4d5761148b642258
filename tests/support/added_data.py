"""Data that a founder adds to a run of whole nodes, as its cutter does when a part is cut."""

from __future__ import annotations

import numpy as np
import zstandard

from gossamer.protocol.accounting.run_data import RunData
from gossamer.protocol.data_parts import DataPart, PartList
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.shard_index import ShardIndex, ShardInfo
from gossamer.protocol.wire.envelopes import seal
from gossamer.protocol.wire.statements import MoreData
from tests.support.node_world import SHARD_TOKENS, World

PART_SHARDS = 8


def add_part(world: World, founder: str) -> bool:
    """Adds a part behind those that the founder's node has. Returns whether it could: not while a
    node lacks what it said in an earlier life, or has not begun."""
    data = data_of(world, founder)
    if data is None:
        return False
    context = world.participant(founder).context
    newest, before = context.added_data.newest, data.parts.parts
    if newest is not None and newest.number > len(before):
        return False
    store, identity = world.nodes[founder].inputs.store, context.identity
    shards: list[ShardInfo] = []
    for number in range(PART_SHARDS):
        value = (100 + len(before) * PART_SHARDS + number) % 250
        tokens = np.full(SHARD_TOKENS, value, dtype="<u2")
        block = zstandard.ZstdCompressor().compress(tokens.tobytes())
        shards.append(ShardInfo(store.put(block), SHARD_TOKENS, len(block)))
    index = to_msgpack(ShardIndex(shards=tuple(shards), heldout=()))
    part = DataPart(store.put(index), PART_SHARDS, PART_SHARDS * SHARD_TOKENS)
    listed = PartList(parts=(*before, part))
    tokens_added = listed.num_tokens
    digest = store.put(to_msgpack(listed))
    statement = MoreData(len(listed.parts), digest, tokens_added, tokens_added)
    run_id = context.manifest.run_id
    context.added_data.heard(seal(statement, identity.peer_id, run_id, identity.sign), statement)
    return True


def data_of(world: World, name: str) -> RunData | None:
    """Returns the data that a node knows of; None while it has not got so far."""
    participant = world.participant_or_none(name)
    return None if participant is None else participant.context.added_data._data
