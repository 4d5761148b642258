"""What holds up rounds, and how many there are all the same."""

from __future__ import annotations

from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest
import trio

from gossamer.node.network.transport import TransportError
from gossamer.protocol.rounds.gathering import WAITS_MAX
from gossamer.protocol.rounds.roster import STRANGERS_SHARE
from gossamer.protocol.state.chain import credits_of
from gossamer.trainer.ipc.messages import Begin, Finished
from tests.rogue.attacks_claims import (
    RINGS_SECONDS,
    identities_that_list_each_other,
    ring_that_comes_and_goes,
    rings_one_after_the_other,
)
from tests.rogue.catalogue import Attack
from tests.rogue.rogue import rogue_among
from tests.support.measured import measured
from tests.support.node_world import (
    NumbersTrainer,
    SlowTrainer,
    World,
    newest_header,
    simulate,
    start,
)

pytestmark = pytest.mark.usefixtures("quiet")


def rounds_under(attack: Attack, root: Path, names: str, repeats: int = 1) -> int:
    """The rounds that honest nodes commit while an attack lasts."""
    world = World(root, seed=3)
    num_rounds = 0

    async def story(nursery: trio.Nursery) -> None:
        nonlocal num_rounds
        await start(world, nursery, names)
        await world.reach(4, *names)
        async with rogue_among(world, names, b"rogue that holds up") as (rogue, victims):
            began = world.round("a")
            for _ in range(repeats):
                with suppress(TransportError):
                    await attack(rogue, victims)
            num_rounds = world.round("a") - began
            measured(f"{attack.__name__}, {len(names)} honest: {num_rounds} rounds")
        world.assert_one_chain(*names)

    simulate(world, story)
    return num_rounds


@pytest.mark.parametrize("names", ["a", "abc"])
def test_identities_that_list_each_other_hold_up_no_round(tmp_path: Path, names: str) -> None:
    assert rounds_under(identities_that_list_each_other, tmp_path, names) > RINGS_SECONDS / 2


def test_a_member_that_replaces_its_rings_holds_up_few_rounds(tmp_path: Path) -> None:
    assert rounds_under(rings_one_after_the_other, tmp_path, "abc", repeats=3) > RINGS_SECONDS


def test_a_ring_that_comes_and_goes_holds_up_a_round_for_two_waits_at_most(tmp_path: Path) -> None:
    """A wait is of 3 s. The others gather for as long before the first one, and then make their
    ring for an attempt that is theirs."""
    waits_seconds = (WAITS_MAX + 1) * World.gather_seconds
    rounds = rounds_under(ring_that_comes_and_goes, tmp_path, "abc")
    assert rounds >= RINGS_SECONDS / (waits_seconds + 2.0)


NUM_IDLE = 8
"""Identities that announce themselves: more than twice as many as the honest peers."""

TRAILING = 3
"""Rounds by which some say to be behind: more than those that are waited for in any case."""


async def only_announce(
    world: World, names: str, num_idle: int, behind: int, seconds: float
) -> None:
    """Strangers say for so long that they train, at each head or so many rounds behind it."""
    async with AsyncExitStack() as stack:
        idle = [
            await stack.enter_async_context(rogue_among(world, names, b"idle%d" % number))
            for number in range(num_idle)
        ]
        likes = [await rogue.head(victims[0]) for rogue, victims in idle]
        committed = world.participant("a").context.committed
        with trio.move_on_after(seconds):
            while True:
                at = committed.chain.header(world.path("a")[-1 - behind])
                for (rogue, _), like in zip(idle, likes, strict=True):
                    said = rogue.announce(like, phase="training", head=at.digest, round=at.round)
                    await rogue.gossip(said)
                await trio.sleep(0.25)


@pytest.mark.parametrize("behind", [0, TRAILING], ids=["at the head", "behind"])
def test_strangers_that_only_say_they_train_hold_up_few_rounds(tmp_path: Path, behind: int) -> None:
    """Identities cost nothing, and neither does an announcement at each head."""
    names = "abc"

    def rounds_beside(num_idle: int) -> int:
        world = World(tmp_path / str(num_idle), seed=3)
        num_rounds = 0

        async def story(nursery: trio.Nursery) -> None:
            nonlocal num_rounds
            await start(world, nursery, names)
            await world.reach(4, *names)
            began = world.round("a")
            await only_announce(world, names, num_idle, behind, RINGS_SECONDS)
            num_rounds = world.round("a") - began
            world.assert_one_chain(*names)

        simulate(world, story)
        return num_rounds

    alone, beside = rounds_beside(0), rounds_beside(NUM_IDLE)
    measured(f"{NUM_IDLE} that only announce, {behind} behind: {beside} rounds, {alone} alone")
    assert beside > 0.75 * alone


class SlowAtFirst(NumbersTrainer):
    """Its first round takes longer than any gathering."""

    step_seconds = 2 * World.gather_seconds

    async def train(self, begin: Begin) -> Finished:
        finished = await super().train(begin)
        self.step_seconds = NumbersTrainer.step_seconds
        return finished


@pytest.mark.parametrize("trainer", [NumbersTrainer, SlowTrainer, SlowAtFirst])
def test_a_newcomer_gets_in_beside_strangers_that_only_say_they_train(
    tmp_path: Path, trainer: type[NumbersTrainer]
) -> None:
    """They have spent what rounds wait for strangers before it comes. `SlowTrainer` takes ten
    times as long for a step as the others."""
    names = "ab"
    world = World(tmp_path, seed=3)
    newcomer = world.identity("c").peer_id
    wait_seconds = World.gather_seconds / STRANGERS_SHARE

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, names)
        await world.reach(4, *names)
        nursery.start_soon(only_announce, world, names, NUM_IDLE, 0, 4 * wait_seconds)
        await trio.sleep(WAITS_MAX * World.gather_seconds)
        await nursery.start(world.run, "c", ["a"], trainer)
        await world.until(
            lambda: newcomer in credits_of(newest_header(world, "a")), 2 * wait_seconds
        )
        await world.reach(world.round("a") + 5, *names, "c")
        world.assert_one_chain(*names, "c")

    simulate(world, story)
