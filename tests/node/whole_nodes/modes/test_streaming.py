"""Rounds that average a fragment of the parameters: whole nodes in virtual time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import trio

from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.wire.ring_messages import RING_PROTOCOL
from tests.support.balance import is_balanced
from tests.support.node_world import (
    World,
    assert_every_token_counted_once,
    headers_of,
    initial_weights,
    newest_header,
    simulate,
    start,
    target_of,
)

WARMUP_ROUNDS, WARMUP_STEPS, INNER_STEPS = 1, 2, 4
"""Values of the world's manifest."""

AROUND_BYTES = 2000
"""Bytes of a round beside its chunks, at most."""


async def begin(world: World, nursery: trio.Nursery, names: str) -> None:
    first, others = names[0], names[1:]
    await start(world, nursery, names)
    await world.reach(5, *names)
    await world.until(lambda: world.all_shards_are_with(*others))
    await world.until(lambda: len(newest_header(world, first).members) == len(names))


@pytest.mark.parametrize("fragments", [2, 4])
def test_alone_every_fragment_is_trained_as_without_a_swarm(tmp_path: Path, fragments: int) -> None:
    """The state is made of turns alone: work that counted twice, or never, would show in it."""
    world = World(tmp_path, seed=80, fragments=fragments)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await world.reach(WARMUP_ROUNDS + 3 * fragments + 1, "a")
        context = world.participant("a").context
        number, size = context.committed.entry.round, context.committed.parameters.size
        start = initial_weights(7, size)
        target = target_of(StateDir(tmp_path / "a").optimizer_path, size)
        for turn, sync_set in enumerate(context.committed.sync_sets.turns):
            ago = (number - 1 - WARMUP_ROUNDS - turn) % fragments
            rounds = number - WARMUP_ROUNDS - ago
            steps = WARMUP_ROUNDS * WARMUP_STEPS + rounds * INNER_STEPS // fragments
            for part in sync_set.ranges:
                expected = target[part] + (start - target)[part] * 0.9**steps
                np.testing.assert_allclose(context.committed.parameters[part], expected, atol=1e-5)

    simulate(world, story)


@pytest.mark.parametrize(("codec", "overlap"), [("fp32", False), ("int8", True), ("int4", True)])
def test_a_swarm_agrees_and_its_rounds_send_their_fragments(
    tmp_path: Path, codec: str, overlap: bool
) -> None:
    fragments = 4
    world = World(tmp_path, seed=81, codec=codec, overlap=overlap, fragments=fragments)

    async def story(nursery: trio.Nursery) -> None:
        await begin(world, nursery, "abc")
        context = world.participant("a").context
        began, sent_before = world.round("a"), context.transport.traffic()[RING_PROTOCOL][0]
        await world.reach(began + 3 * fragments, *"abc")
        ended, sent = world.round("a"), context.transport.traffic()[RING_PROTOCOL][0]
        world.assert_one_chain(*"abc")
        assert_every_token_counted_once(headers_of(world, "a"))
        for name in "abc":
            account = world.participant(name).context.work.account
            assert is_balanced(account)
            assert account.dropped == account.state.lost == 0

        # A member sends (2 N - 2) / N of what a round averages; at both ends one may be half done.
        # With chunks so small what is around them counts: a roster, frames, receipts.
        payloads, sync_sets = context.committed.payloads, context.committed.sync_sets
        plans = [sync_sets.of_round(number).plan for number in range(began + 1, ended + 1)]
        expected = sum(
            4 / 3 * sum(payloads.part_bytes(plan.elements_of(c)) for c in range(plan.num_chunks))
            for plan in plans
        )
        around = AROUND_BYTES * len(plans)
        assert 0.75 * expected < sent - sent_before < 1.35 * expected + around
        assert expected + around < fragments * expected, "or it says nothing"

    simulate(world, story)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_node_that_pauses_restarts_or_loses_its_trainer_agrees_with_the_others(
    tmp_path: Path, overlap: bool
) -> None:
    world = World(tmp_path, seed=82, codec="int8", overlap=overlap, fragments=2)

    async def story(nursery: trio.Nursery) -> None:
        await begin(world, nursery, "abc")
        b = world.participant("b")
        await world.until(lambda: b.progress.phase == "averaging")
        b.pause()
        await world.until(lambda: b.progress.phase == "paused", seconds=10)
        account = b.context.work.account
        assert is_balanced(account)
        assert any(account.state.since), "work in the other fragment waits for its turn"
        assert account.state.is_saved
        await world.reach(world.round("a") + 2, "a", "c")
        b.resume()
        await world.reach(world.round("a") + 3, *"abc")
        await world.until(lambda: world.participant("a").progress.phase == "averaging")
        world.crash("c")
        await world.reach(world.round("a") + 3, "a", "b", seconds=20)
        await nursery.start(world.run, "c", ["a"])
        await world.reach(world.round("a") + 3, *"abc")
        world.assert_one_chain(*"abc")
        for name in "abc":
            assert is_balanced(world.participant(name).context.work.account)
        world.nodes["c"].leave()
        await world.until(lambda: world.participant("c").progress.phase == "leaving", seconds=20)
        await world.reach(world.round("a") + 2, "a", "b", seconds=20)

    simulate(world, story)
