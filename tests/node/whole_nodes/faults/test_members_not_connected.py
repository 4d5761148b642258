"""Members of one ring that have no connection with each other."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from gossamer.node.peers.announcer import QUIET_SECONDS
from gossamer.node.peers.connection_watch import WATCH_SECONDS
from tests.support.apart import Apart
from tests.support.node_world import (
    NumbersTrainer,
    World,
    assert_every_token_counted_once,
    headers_of,
    newest_header,
    simulate,
    start,
)

NUM_ROUNDS = 16


class SlowTrainer(NumbersTrainer):
    """It is ready after the others, within the time that a round waits."""

    step_seconds = 0.3


def test_an_organiser_waits_for_a_member_to_which_it_has_no_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither b nor c is connected to the other. Every other order of the ring has them apart."""
    world = World(tmp_path, seed=91, wait_for_peers=3)
    apart = Apart(monkeypatch, {world.identity(name).peer_id for name in "bc"})

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        for name in "bd":
            await nursery.start(world.run, name, ["a"])
        await nursery.start(world.run, "c", ["a"], SlowTrainer)
        await world.reach(2, *"abcd")
        apart.begin()
        b, c = (world.participant(name).context.swarm for name in "bc")
        for swarm in (b, c):
            # The connection "broke": each counts the other as gone for a moment.
            swarm._connections.wake()
        await trio.sleep(2 * WATCH_SECONDS)
        await world.until(
            lambda: b.me in c.living_anywhere() and c.me in b.living_anywhere(), QUIET_SECONDS
        )
        first = world.round("a") + 1
        await world.reach(first + NUM_ROUNDS, *"abcd")
        world.assert_one_chain(*"abcd")
        headers = headers_of(world, "a")[first : first + NUM_ROUNDS]
        assert [len(header.members) for header in headers] == [4] * NUM_ROUNDS

    simulate(world, story)


@pytest.mark.parametrize("seed", [103, 117, 132])
def test_newcomers_that_are_not_connected_yet_train_on_different_data(
    tmp_path: Path, seed: int
) -> None:
    """They come at one moment, hear of each other by the founder, and choose their data within the
    second before they are connected. In these worlds both prefer the same."""
    world = World(tmp_path, seed=seed, num_shards=12)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "abc")
        await world.reach(2, "a")
        await world.until(lambda: len(newest_header(world, "a").members) == 3)
        await world.reach(world.round("a") + 2, *"abc")
        world.assert_one_chain(*"abc")
        assert_every_token_counted_once(headers_of(world, "a"))

    simulate(world, story)


def test_members_without_a_connection_train_on_different_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each hears through the others what the other one claims."""
    world = World(tmp_path, seed=92, wait_for_peers=3, num_shards=192)
    apart = Apart(monkeypatch, {world.identity(name).peer_id for name in "bc"})

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "abcd")
        await world.reach(4, *"abcd")
        apart.begin()
        await trio.sleep(2 * WATCH_SECONDS)
        b, c = (world.participant(name).context.swarm for name in "bc")
        assert not b.is_connected(c.me)
        first = world.round("a") + 2
        await world.reach(first + NUM_ROUNDS, *"abcd")
        headers = headers_of(world, "a")[first : first + NUM_ROUNDS]
        assert {len(header.members) for header in headers} == {4}
        for header in headers:
            assert sum(span.stop - span.start for span in header.spans) == header.tokens
        assert b.me in c.claims()
        assert c.me in b.claims()

    simulate(world, story)
