"""Whole nodes of runs whose chunks are packed on their way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from gossamer.protocol.codecs.packing import FloatPacking, Packing, PlacePacking
from tests.support.node_world import World, simulate, start


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (FloatPacking, {"codec": "fp16"}),
        (FloatPacking, {"codec": "fp16", "trust": "open"}),
        (PlacePacking, {"codec": "sparse", "top_k": 1024}),
        (PlacePacking, {"codec": "sparse", "top_k": 1024, "trust": "open"}),
    ],
)
def test_chunks_are_packed_on_their_way_and_the_chain_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Packing], settings: Any
) -> None:
    """Of one that was away too, whose predecessor asks first what it holds."""
    saved = [0, 0]
    unpack = kind.unpack

    def counted(packing: Packing, packed: bytes) -> bytearray:
        saved[0] += len(packed)
        saved[1] += packing.num_bytes
        return unpack(packing, packed)

    monkeypatch.setattr(kind, "unpack", counted)
    world = World(tmp_path, seed=211, **settings)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "abc")
        await world.reach(3, *"abc")
        world.crash("c")
        await world.reach(world.round("a") + 2, *"ab")
        await nursery.start(world.run, "c", ["a"])
        await world.reach(world.round("a") + 3, *"abc")
        await world.come_together(*"abc", seconds=20.0)
        for name in "abc":
            registry = world.nodes[name].first.metrics.registry
            for reason in ("forged", "malformed", "oversized"):
                count = registry.get_sample_value("gossamer_offences_total", {"reason": reason})
                assert not count

    simulate(world, story)
    assert 0 < saved[0] < 0.95 * saved[1]
