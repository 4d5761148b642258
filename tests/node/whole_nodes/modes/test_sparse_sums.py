"""Whole nodes of a sparse run in which the parts of two members are a sum."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from gossamer.protocol.codecs.payloads import SetPayloads
from tests.support.node_world import SUMS_TOP_K, World, headers_of, simulate, start


def assert_averages_are_sums(world: World, name: str) -> None:
    """The averages of a node's newest round have the form that their masks name."""
    committed = world.participant(name).context.committed
    header, payloads = headers_of(world, name)[-1], committed.payloads
    plan = committed.sync_sets.of_round(header.round).plan
    assert isinstance(payloads, SetPayloads)
    assert payloads.sums is not None
    update = committed.blocks.update_index(header)
    assert len(header.members) > 1
    for chunk, average in enumerate(update.averages):
        payload, elements = committed.blocks.read_average(header, average), plan.elements_of(chunk)
        assert payloads.is_sum(average.mask())
        assert len(payload) == payloads.sums.encoded_bytes(elements)


@pytest.mark.parametrize("overlap", [False, True])
def test_one_that_was_away_and_a_newcomer_come_to_the_bits_of_the_others(
    tmp_path: Path, overlap: bool
) -> None:
    world = World(
        tmp_path, seed=105, codec="sparse", top_k=SUMS_TOP_K, overlap=overlap, wait_for_peers=2
    )

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "abc")
        await world.reach(3, *"abc")
        world.crash("c")
        await world.reach(world.round("a") + 3, *"ab")
        assert_averages_are_sums(world, "a")
        await nursery.start(world.run, "c", ["a"])
        await nursery.start(world.run, "d", ["b"])
        await world.reach(world.round("a") + 3, *"abcd")
        world.assert_one_chain(*"abcd")
        assert_averages_are_sums(world, "c")
        assert {len(header.members) for header in headers_of(world, "d")} >= {2, 3}

    simulate(world, story)
