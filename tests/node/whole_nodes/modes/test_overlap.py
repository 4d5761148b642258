"""Training goes on while the round is averaged: whole nodes in virtual time, on slow lines."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from gossamer.protocol.ids import PeerId
from tests.support.balance import is_balanced
from tests.support.node_world import (
    STEP_SECONDS,
    World,
    assert_every_token_counted_once,
    headers_of,
    simulate,
    start,
)

ROUND_SECONDS = 4 * STEP_SECONDS
"""Training time of a round: the world's rounds have four steps."""

LINE = 80_000.0
"""Bytes a second: a ring of three takes some 0.35 s for the world's 23 kB, nearly a round."""


def slow_lines(world: World, names: str) -> None:
    peers = [world.identity(name).peer_id for name in names]
    for peer in peers:
        for other in peers:
            if peer != other:
                world.network.link(PeerId(peer), PeerId(other)).bytes_per_second = LINE


async def seconds_of_rounds(world: World, names: str, number: int) -> float:
    """Mean time of one round, over this number of rounds."""
    first, began = world.round(names[0]), trio.current_time()
    await world.reach(first + number, *names)
    return (trio.current_time() - began) / number


async def begin(world: World, nursery: trio.Nursery, names: str) -> None:
    first, others = names[0], names[1:]
    await start(world, nursery, names)
    await world.reach(5, *names)
    await world.until(lambda: world.all_shards_are_with(*others))
    slow_lines(world, names)
    await world.reach(world.round(first) + 2, *names)


def round_seconds(folder: Path, *, overlap: bool) -> float:
    world = World(folder, seed=70, overlap=overlap)
    seconds: list[float] = []

    async def story(nursery: trio.Nursery) -> None:
        await begin(world, nursery, "abc")
        seconds.append(await seconds_of_rounds(world, "abc", 8))
        world.assert_one_chain(*"abc")
        headers = headers_of(world, "a")
        assert len(headers[-1].members) == 3
        assert_every_token_counted_once(headers)
        for name in "abc":
            account = world.participant(name).context.work.account
            assert is_balanced(account)
            assert account.dropped == account.state.lost == 0

    simulate(world, story)
    return seconds[0]


@pytest.mark.long
def test_a_round_takes_as_long_as_its_training_not_as_both(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    apart = round_seconds(tmp_path / "one", overlap=False)
    overlapped = round_seconds(tmp_path / "two", overlap=True)
    print(f"{apart:.2f} s a round, {overlapped:.2f} s with overlap, {ROUND_SECONDS} s of training")
    assert apart > 1.5 * ROUND_SECONDS
    assert overlapped < 0.75 * apart


@pytest.mark.long
@pytest.mark.parametrize("codec", ["fp32", "int4", "sparse"])
def test_a_member_that_dies_costs_the_others_nothing_but_its_part(
    tmp_path: Path, codec: str
) -> None:
    world = World(tmp_path, seed=71, overlap=True, codec=codec)

    async def story(nursery: trio.Nursery) -> None:
        await begin(world, nursery, "abcd")
        for name in "bcd":
            await world.until(lambda: world.participant("a").progress.phase == "averaging")
            before = world.round("a")
            world.crash(name)
            others = [other for other in "abcd" if other != name]
            await world.reach(before + 2, *others, seconds=20)
            await world.come_together(*others, seconds=2 * ROUND_SECONDS)
            await nursery.start(world.run, name, ["a"])
            await world.reach(world.round("a") + 3, *"abcd")
        await world.come_together(*"abcd", seconds=2 * ROUND_SECONDS)
        assert world.participant("a").context.work.status.lost == 0

    simulate(world, story)


def test_pause_leave_and_a_trainer_that_is_gone_end_what_was_begun_ahead(tmp_path: Path) -> None:
    world = World(tmp_path, seed=72, overlap=True)

    async def story(nursery: trio.Nursery) -> None:
        await begin(world, nursery, "abc")
        b = world.participant("b")
        await world.until(lambda: b.progress.phase == "averaging")
        b.pause()
        await world.until(lambda: b.progress.phase == "paused", seconds=10)
        trained = b.context.work.account.state.trained
        await world.reach(world.round("a") + 2, "a", "c")
        assert b.context.work.account.state.trained == trained
        assert is_balanced(b.context.work.account)
        b.resume()
        await world.reach(world.round("a") + 3, *"abc")
        world.assert_one_chain(*"abc")
        world.nodes["c"].leave()
        await world.until(lambda: world.participant("c").progress.phase == "leaving", seconds=20)
        await world.reach(world.round("a") + 2, "a", "b", seconds=20)

    simulate(world, story)
