"""Runs whose first commit records are in whole form, as nodes wrote them before the compact one."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import trio

from gossamer.node.storage.chain import chain_store
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.ids import DIGEST_BYTES
from gossamer.protocol.state.commit_records import encode_commit
from tests.support.node_world import World, simulate, start

OLD_ROUNDS = 4


def forms_of(world: World, name: str) -> dict[int, bool]:
    """Of each round on a node's own chain whether its record on the disk is in compact form."""
    forms: dict[int, bool] = {}
    chain = world.participant(name).context.committed.chain
    for number, head in enumerate(world.path(name), 1):
        file = world.root / name / "chain" / f"{number:010d}-{head.hex()}"
        record, commit = file.read_bytes()[DIGEST_BYTES:], chain.commit(head)
        assert record in (to_msgpack(commit), encode_commit(commit))
        forms[number] = record == encode_commit(commit)
    return forms


def test_a_directory_with_whole_records_goes_on_and_newcomers_get_both(tmp_path: Path) -> None:
    world = World(tmp_path, seed=71)

    async def story(nursery: trio.Nursery) -> None:
        with patch.object(chain_store, "encode_commit", to_msgpack):
            await start(world, nursery, "ab")
            await world.reach(OLD_ROUNDS, "a", "b")
            old = world.path("a")
            for name in "ab":
                world.crash(name)
            await trio.sleep(1.0)  # virtual: the old lives let their folders go
        assert not any(forms_of(world, "a").values())
        world.nodes.clear()
        await nursery.start(world.run, "a")
        await nursery.start(world.run, "b", ["a"])
        await world.reach(len(old) + OLD_ROUNDS, "a", "b")
        assert world.path("a")[: len(old)] == old, "the run is the same, head by head"
        forms = forms_of(world, "a")
        assert {forms[number] for number in range(1, OLD_ROUNDS + 1)} == {False}
        assert {forms[number] for number in range(len(old) + 1, max(forms) + 1)} == {True}

        records = world.participant("a").context.committed.chain.records_after(
            world.path("a")[-1], 0
        )
        assert {record[:1] for record in records} == {b"\x93", b"\x9b"}, "both kinds are sent"
        await nursery.start(world.run, "c", ["a"])
        await world.reach(len(forms) + 2, "a", "b", "c")  # it learns the chain on the way
        await world.come_together("a", "b", "c", seconds=60.0)
        assert world.path("c")[: len(old)] == old
        # What the newcomer learned it keeps in compact form, which anybody can make.
        assert all(forms_of(world, "c").values())

    simulate(world, story)
