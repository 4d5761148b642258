"""A run of adapters among whole nodes: what travels, and where the other weights come from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from gossamer.node.peers.blocks.block_exchange import BlockService, FetchError
from gossamer.node.runs.planning.planning import Line, plan_round
from gossamer.node.storage.block_files import path_of
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.ids import DIGEST_BYTES, SIGNATURE_BYTES, Digest
from gossamer.protocol.lora import LoraConfig
from gossamer.protocol.manifest import decode_manifest
from gossamer.protocol.state.frozen_weights import decode_list
from tests.support.node_world import NOT_USED, World, simulate

LORA = LoraConfig(rank=2, alpha=4.0, targets=("q_proj", "o_proj"), weights="fp32")


def frozen_paths(world: World, name: str) -> list[Path]:
    """The files of the frozen weights on a node's disk."""
    manifest = decode_manifest(world.signed.manifest)
    root = StateDir(world.root / name).blocks_path
    listed = path_of(root, Digest(manifest.data.frozen_digest or b""))
    return [path_of(root, digest) for digest in decode_list(listed.read_bytes(), manifest.model)]


@pytest.mark.parametrize(
    ("codec", "how"),
    [
        ("fp32", {}),
        ("fp16", {"fragments": 2}),
        ("int8", {"overlap": True}),
        ("int4", {}),
        ("int4", {"trust": "open"}),
        ("sparse", {}),
    ],
)
def test_two_peers_average_adapters_alone(tmp_path: Path, codec: str, how: dict[str, Any]) -> None:
    world = World(tmp_path, seed=92, codec=codec, lora=LORA, wait_for_peers=1, **how)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await nursery.start(world.run, "b", ["a"])
        await world.reach(4, "a", "b")
        world.assert_one_chain("a", "b")
        manifest = decode_manifest(world.signed.manifest)
        model = manifest.model
        for name in ("a", "b"):
            last = world.participant(name).progress.last_round
            assert last is not None
            assert len(last.contributors) == 2
            committed = world.participant(name).context.committed
            assert committed.plan.num_elements == model.num_parameters == 128 * model.num_layers
            planned = plan_round(manifest, 2, Line(1.0, 1.0)).sent_bytes
            # Twice: a ring with one chunk is not even.
            assert last.bytes_sent < 2 * planned + FRAMES_BYTES
            assert last.bytes_sent < model.frozen_bytes / 4

    simulate(world, story)


def test_a_newcomer_gets_the_weights_from_any_member(tmp_path: Path) -> None:
    world = World(tmp_path, seed=93, lora=LORA)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await nursery.start(world.run, "b", ["a"])
        await world.reach(3, "a", "b")
        await world.until(lambda: world.all_shards_are_with("b"))  # else nobody has data
        world.crash("a")
        await nursery.start(world.run, "c", ["b"])
        await world.reach(world.round("b") + 2, "b", "c")
        world.assert_one_chain("b", "c")
        assert all(path.exists() for path in frozen_paths(world, "c"))

    simulate(world, story)


def test_a_node_takes_part_when_it_has_the_weights_whole(tmp_path: Path) -> None:
    world = World(tmp_path, seed=94, lora=LORA)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await nursery.start(world.run, "b", ["a"])
        await world.reach(3, "a", "b")
        for name in ("a", "b"):
            world.crash(name)
        await trio.sleep(1)
        (lost,) = frozen_paths(world, "b")
        good = lost.read_bytes()
        lost.unlink()
        # It has the chain and the adapters, and is no member by these alone.
        await nursery.start(world.run, "b", ["a"])
        await trio.sleep(60)
        assert world.participant_or_none("b") is None
        await nursery.start(world.run, "a")
        await world.until(lambda: world.participant_or_none("b") is not None, 60)
        assert lost.read_bytes() == good

        world.crash("b")
        await trio.sleep(1)
        lost.write_bytes(bytes(len(good)))
        await nursery.start(world.run, "b", ["a"])
        await world.until(lambda: world.participant_or_none("b") is not None, 60)
        assert lost.read_bytes() == good
        await world.reach(world.round("a") + 2, "a", "b")
        world.assert_one_chain("a", "b")

    simulate(world, story)


def test_a_metered_newcomer_fetches_no_weights_until_its_line_is_free(tmp_path: Path) -> None:
    world = World(tmp_path, seed=95, lora=LORA)
    is_metered = True

    async def story(nursery: trio.Nursery) -> None:
        nonlocal is_metered
        await nursery.start(world.run, "a")
        await world.reach(2, "a")
        world.use = replace(NOT_USED, is_metered=lambda: is_metered)
        await nursery.start(world.run, "b", ["a"])
        await trio.sleep(60)
        assert not any(path.exists() for path in frozen_paths(world, "b"))
        assert world.participant_or_none("b") is None
        is_metered = False
        await world.until(lambda: world.participant_or_none("b") is not None, 60)
        assert all(path.exists() for path in frozen_paths(world, "b"))
        await world.reach(world.round("a") + 2, "a", "b")
        world.assert_one_chain("a", "b")

    simulate(world, story)


def test_a_metered_node_that_lacks_weights_serves_no_blocks(tmp_path: Path) -> None:
    world = World(tmp_path, seed=96, lora=LORA)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await nursery.start(world.run, "b", ["a"])
        await world.reach(2, "a", "b")
        for name in ("a", "b"):  # then nobody has what it lacks
            world.crash(name)
        await trio.sleep(1)
        for path in frozen_paths(world, "b"):
            path.unlink()
        world.use = replace(NOT_USED, is_metered=lambda: True)
        await nursery.start(world.run, "b", ["a"])
        await trio.sleep(30)
        assert world.participant_or_none("b") is None
        index = Digest(decode_manifest(world.signed.manifest).data.index_digest)
        store = BlockStore(tmp_path / "stranger", 2**20)
        peer = world.identity("b").peer_id
        async with world.network.transport(world.identity("stranger")) as stranger:
            await stranger.connect_any(peer, world.network.addresses_of(peer))
            with pytest.raises(FetchError, match="none of them sent these"):
                await BlockService(stranger, store).fetch([index], lambda: [peer], passes=1)

    simulate(world, story)


FRAMES_BYTES = 768 + 2 * (2 + DIGEST_BYTES) + SIGNATURE_BYTES
"""Bytes of a ring beside its chunks, at most. Its roster has a commitment of each member. A set is
as short as a number here, and its signature is not."""
