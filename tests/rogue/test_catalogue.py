"""Every attack of the catalogue against whole nodes, over the transport in memory.

A node that raises ends its test. The others of its swarm go on with their rounds, all stay
on one chain, and what is an offence is counted as one.
"""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import pytest
import structlog
import trio

from gossamer.node.network.identity import Identity
from gossamer.node.network.transport import TransportError
from gossamer.protocol.ids import digest_of
from tests.rogue import attacks_claims as claims
from tests.rogue.catalogue import ATTACKS, Attack
from tests.rogue.rogue import Rogue
from tests.support.measured import measured
from tests.support.node_world import World, simulate

SPARSE_ATTACKS = (claims.member_that_packs_wrong, claims.member_that_sends_wrong_chunks)


def count(world: World, name: str, metric: str, reason: str) -> float:
    registry = world.nodes[name].first.metrics.registry
    return registry.get_sample_value(f"gossamer_{metric}_total", {"reason": reason}) or 0.0


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_the_swarm_goes_on(tmp_path: Path, attack: Attack) -> None:
    goes_on(World(tmp_path, seed=3), attack)


@pytest.mark.parametrize("attack", SPARSE_ATTACKS, ids=lambda attack: attack.__name__)
def test_a_sparse_swarm_goes_on(tmp_path: Path, attack: Attack) -> None:
    """Of sets of updates whose places are packed."""
    goes_on(World(tmp_path, seed=3, codec="sparse", top_k=1024), attack)


def goes_on(world: World, attack: Attack) -> None:
    """The attack against nodes a, b and c."""
    reason = ATTACKS[attack]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await nursery.start(world.run, "b", ["a"])
        await nursery.start(world.run, "c", ["a"])
        await world.reach(4, *"abc")
        victims = [world.identity(name).peer_id for name in "abc"]
        identity = Identity.from_seed(digest_of(b"rogue", attack.__name__.encode()))
        async with world.network.transport(identity) as transport:
            for name in "abc":
                addresses = world.network.addresses_of(world.identity(name).peer_id)
                await transport.connect(addresses[0])
            rogue = Rogue(transport, identity, random.Random(0))
            await rogue.learn_run(victims[0])
            before, began = world.round("a"), trio.current_time()
            with suppress(TransportError):  # banned meanwhile: no peer talks to it any more
                await attack(rogue, victims)
            seconds = trio.current_time() - began
            measured(f"{attack.__name__}: {seconds:.1f} s, {world.round('a') - before} rounds")
            # Nothing that one peer does holds up a round for longer.
            await world.reach(world.round("a") + 1, *"abc", seconds=45.0)
        await world.reach(world.round("a") + 2, *"abc", seconds=30.0)
        world.assert_one_chain(*"abc")
        if reason is not None:
            assert sum(count(world, name, "offences", reason) for name in "abc") > 0

    try:
        simulate(world, story)
    finally:
        structlog.reset_defaults()
