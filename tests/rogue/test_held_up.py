"""What holds up rounds, and how many there are all the same."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import msgspec
import pytest
import trio

from gossamer.node.network.identity import Identity
from gossamer.node.network.transport import TransportError
from gossamer.protocol.rounds.gathering import WAITS_MAX
from gossamer.protocol.rounds.roster import STRANGER_WAITS_MAX, STRANGERS_SHARE
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
    headers_of,
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


LATER_LIFE = 2**62
"""Number of a life after those of nodes, which are times in nanoseconds."""

STRANGERS = [b"idle%d" % number for number in range(NUM_IDLE)]


async def only_announce(
    world: World, names: str, liars: Sequence[bytes | Identity], behind: int, seconds: float
) -> None:
    """Identities say for so long that they train, at each head or so many rounds behind it."""
    async with AsyncExitStack() as stack:
        idle = [
            await stack.enter_async_context(rogue_among(world, names, identity))
            for identity in liars
        ]
        likes = [await rogue.head(victims[0]) for rogue, victims in idle]
        committed = world.participant("a").context.committed
        with trio.move_on_after(seconds):
            while True:
                at = committed.chain.header(world.path("a")[-1 - behind])
                for (rogue, _), like in zip(idle, likes, strict=True):
                    said = rogue.announce(
                        like,
                        phase="training",
                        head=at.digest,
                        round=at.round,
                        incarnation=LATER_LIFE,
                    )
                    await rogue.gossip(said)
                await trio.sleep(0.25)


@pytest.mark.parametrize("behind", [0, TRAILING], ids=["at the head", "behind"])
def test_strangers_that_only_say_they_train_hold_up_few_rounds(tmp_path: Path, behind: int) -> None:
    """Identities cost nothing, and neither does an announcement at each head."""
    names = "abc"

    def rounds_beside(strangers: Sequence[bytes]) -> int:
        world = World(tmp_path / str(len(strangers)), seed=3)
        num_rounds = 0

        async def story(nursery: trio.Nursery) -> None:
            nonlocal num_rounds
            await start(world, nursery, names)
            await world.reach(4, *names)
            began = world.round("a")
            await only_announce(world, names, strangers, behind, RINGS_SECONDS)
            num_rounds = world.round("a") - began
            world.assert_one_chain(*names)

        simulate(world, story)
        return num_rounds

    alone, beside = rounds_beside([]), rounds_beside(STRANGERS)
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
        nursery.start_soon(only_announce, world, names, STRANGERS, 0, 4 * wait_seconds)
        await trio.sleep(WAITS_MAX * World.gather_seconds)
        await nursery.start(world.run, "c", ["a"], trainer)
        await world.until(
            lambda: newcomer in credits_of(newest_header(world, "a")), 2 * wait_seconds
        )
        await world.reach(world.round("a") + 5, *names, "c")
        world.assert_one_chain(*names, "c")

    simulate(world, story)


LONG_STEPS = 10
"""Inner steps of a round, of 1 s each: longer than any gathering."""


class LongSteps(NumbersTrainer):
    step_seconds = 1.0


async def ready_at_once(world: World, names: str, num_strangers: int, seconds: float) -> None:
    """Strangers, one after the other, say at each head that they are ready."""
    async with AsyncExitStack() as stack:
        strangers = [
            await stack.enter_async_context(rogue_among(world, names, b"early%d" % number))
            for number in range(num_strangers)
        ]
        said = 0
        head = None
        with trio.move_on_after(seconds):
            while True:
                rogue, victims = strangers[said % num_strangers]
                seen = await rogue.head(victims[0])
                if seen.head != head:
                    head, said = seen.head, said + 1
                    await rogue.gossip(rogue.announce(seen, phase="training"))
                    await rogue.gossip(rogue.ready(seen))
                await trio.sleep(0.25)


def tokens_of_rounds(world: World, names: str, since: int) -> list[int]:
    """Of each round, the tokens that it took of these nodes."""
    honest = {world.identity(name).peer_id for name in names}
    rounds = [credits_of(header) for header in headers_of(world, "a")[since:]]
    return [sum(tokens for peer, tokens in each.items() if peer in honest) for each in rounds]


def world_of_long_rounds(root: Path) -> World:
    return World(root, seed=3, inner_steps=LONG_STEPS, num_shards=256, look_seconds=0.5)


@pytest.mark.parametrize("num_strangers", [1, 4])
def test_strangers_that_are_ready_at_once_end_no_training(
    tmp_path: Path, num_strangers: int
) -> None:
    """Peers stop training when others are ready. A stranger's word costs it nothing."""
    names = "abc"
    world = world_of_long_rounds(tmp_path)
    tokens: list[int] = []

    async def story(nursery: trio.Nursery) -> None:
        for name in names:
            await nursery.start(world.run, name, ["a"] if name != "a" else [], LongSteps)
        await world.reach(4, *names)
        known = len(world.path("a"))
        await ready_at_once(world, names, num_strangers, 6 * LONG_STEPS * LongSteps.step_seconds)
        tokens.extend(tokens_of_rounds(world, names, known))
        world.assert_one_chain(*names)

    simulate(world, story)
    measured(f"{num_strangers} ready at once: tokens of each round {tokens}")
    assert min(tokens) >= 0.75 * max(tokens)


class OneStep(LongSteps):
    """Says that it is done after its first step, as a peer does whose data are at an end."""

    async def train(self, begin: Begin) -> Finished:
        return await super().train(msgspec.structs.replace(begin, steps_max=1))


def test_a_member_that_does_little_ends_the_training_of_no_other(tmp_path: Path) -> None:
    names = "abc"
    world = world_of_long_rounds(tmp_path)
    tokens: list[int] = []

    async def story(nursery: trio.Nursery) -> None:
        for name in names:
            await nursery.start(world.run, name, ["a"] if name != "a" else [], LongSteps)
        await nursery.start(world.run, "d", ["a"], OneStep)
        await world.reach(4, *names)
        known = len(world.path("a"))
        await world.reach(9, *names)
        tokens.extend(tokens_of_rounds(world, names, known))
        assert world.identity("d").peer_id in credits_of(newest_header(world, "a"))
        world.assert_one_chain(*names, "d")

    simulate(world, story)
    measured(f"beside a member that does little: tokens of each round {tokens}")
    assert min(tokens) >= 0.75 * max(tokens)


def test_a_member_that_comes_back_with_work_ends_the_training_of_no_other(tmp_path: Path) -> None:
    """What it carries missed two rounds, so it offers it at once, and has not trained for the round
    that the others train for."""
    names, back = "abcde", "f"
    world = world_of_long_rounds(tmp_path)
    tokens: list[int] = []

    async def story(nursery: trio.Nursery) -> None:
        for name in names + back:
            await nursery.start(world.run, name, ["a"] if name != "a" else [], LongSteps)
        await world.reach(4, *names, back)
        links = [(world.identity(back).peer_id, world.identity(name).peer_id) for name in names]
        for link in links:
            world.network.cut(*link)
        await world.reach(world.round("a") + 3, *names)
        known = len(world.path("a"))
        for link in links:
            world.network.heal(*link)
        await world.reach(world.round("a") + 4, *names)
        tokens.extend(tokens_of_rounds(world, names, known))
        assert world.identity(back).peer_id in credits_of(newest_header(world, "a"))
        world.assert_one_chain(*names)

    simulate(world, story)
    measured(f"beside a member that comes back: tokens of each round {tokens}")
    assert min(tokens) >= 0.75 * max(tokens)


MEMBERS_SECONDS = 20.0
"""Enough for six waits, of which three may be in vain."""


def test_members_that_only_say_they_train_hold_up_few_rounds(tmp_path: Path) -> None:
    """They took part in the rounds before."""
    names, others = "abcd", "ef"

    def rounds_beside(liars: str) -> int:
        world = World(tmp_path / (liars or "alone"), seed=3)
        members = {world.identity(name).peer_id for name in names + others}
        num_rounds = 0

        async def story(nursery: trio.Nursery) -> None:
            nonlocal num_rounds
            await start(world, nursery, names + others)
            await world.reach(4, *names, *others)
            await world.until(lambda: members <= credits_of(newest_header(world, "a")).keys())
            for name in others:
                world.crash(name)
            began = world.round("a")
            liars_of_world = [world.identity(name) for name in liars]
            await only_announce(world, names, liars_of_world, 0, MEMBERS_SECONDS)
            num_rounds = world.round("a") - began
            world.assert_one_chain(*names)

        simulate(world, story)
        return num_rounds

    alone, beside = rounds_beside(""), rounds_beside(others)
    measured(f"two members that only announce: {beside} rounds, {alone} alone")
    # One wait shows that they are never ready. Then they share what rounds wait for strangers.
    lost_seconds = (1 + STRANGER_WAITS_MAX) * World.gather_seconds
    lost_seconds += STRANGERS_SHARE * MEMBERS_SECONDS
    assert beside > (1 - lost_seconds / MEMBERS_SECONDS) * alone
