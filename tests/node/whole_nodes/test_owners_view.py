"""What a node keeps for its owner: texts of the model, and the names of members that are away."""

from __future__ import annotations

from pathlib import Path

import trio

from gossamer.node.storage.owner_files import MemberName, NamesFile, Sample, SamplesFile
from tests.support.node_world import SlowTrainer, World, simulate


def test_texts_of_the_model_come_every_few_rounds_and_stay(tmp_path: Path) -> None:
    world = World(tmp_path, seed=1, settings={"sample_prompts": ("Once", ""), "sample_rounds": 3})

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a", ())
        await world.reach(8, "a")
        kept = world.participant("a").context.samples.kept
        assert [each.round for each in kept] == [0, 3, 6]
        assert kept[0].samples == (Sample("Once", "Once!"), Sample("", "!"))
        reporter = world.nodes["a"].reporter
        assert reporter is not None
        assert reporter.status().sampled_round == 6
        node = world.nodes["a"]
        path = node.inputs.state_dir.samples_path
        assert SamplesFile(path, node.inputs.manifest.run_id).load() == kept

    simulate(world, story)


def test_a_member_that_is_away_keeps_its_name_here(tmp_path: Path) -> None:
    world = World(tmp_path, seed=1, settings={"name": "Ada", "team": "us"})

    async def story(nursery: trio.Nursery) -> None:
        # Few rounds: it is the time that counts.
        await nursery.start(world.run, "a", (), SlowTrainer)
        await nursery.start(world.run, "b", ("a",), SlowTrainer)
        await world.reach(4, "a", "b")
        await trio.sleep(60)  # virtual: longer than between two looks
        node, peer = world.nodes["a"], world.nodes["b"].inputs.identity.peer_id
        world.crash("b")
        await trio.sleep(60)
        assert node.reporter is not None
        assert peer not in [each.peer_id for each in node.reporter.status().peers]
        names = NamesFile(node.inputs.state_dir.names_path, node.inputs.manifest.run_id).load()
        assert names[peer] == MemberName("Ada", "us")

    simulate(world, story)
