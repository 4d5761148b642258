"""A run that counts tokens ends by them, and its founder moves the end: whole nodes in virtual
time."""

from __future__ import annotations

from pathlib import Path

import trio

from gossamer.node.heads.extensions import ExtensionFile
from gossamer.node.runs.governance.extending import FoundersSchedule
from gossamer.node.runs.governance.signed_orders import SignersRun
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.manifest import TokenSchedule
from gossamer.protocol.state.run_end import SchedulePlace
from gossamer.protocol.wire.envelopes import seal
from gossamer.protocol.wire.statements import Extension
from tests.support.node_world import MODEL, NumbersTrainer, World, headers_of, simulate, start

STEP_TOKENS = 2 * MODEL.context
"""Of one peer: a step has two sequences."""
WSD = TokenSchedule(
    warmup_tokens=2 * STEP_TOKENS, total_tokens=60 * STEP_TOKENS, cooldown_tokens=20 * STEP_TOKENS
)
END_SECONDS = 120.0


def phase(world: World, name: str) -> str:
    participant = world.participant_or_none(name)
    return participant.progress.phase if participant is not None else ""


async def finish(world: World, *names: str) -> None:
    await world.until(lambda: all(phase(world, name) == "finished" for name in names), END_SECONDS)


def tokens(world: World, name: str) -> int:
    return world.participant(name).context.committed.entry.tokens_total


def assert_first_head_with(world: World, total_tokens: int, *names: str) -> None:
    """All are at one head, which is the first one with so many tokens."""
    world.assert_one_chain(*names)
    assert len({world.path(name)[-1] for name in names}) == 1
    header = headers_of(world, names[0])[-1]
    assert header.tokens_total - header.tokens < total_tokens <= header.tokens_total


def founders(world: World) -> FoundersSchedule:
    """What `gossamer extend` works with."""
    manifest = world.nodes["a"].inputs.manifest
    return FoundersSchedule(SignersRun(manifest, world.identity("a"), StateDir(world.root / "a")))


def extend(world: World, total: int | None, cooldown: int | None = None) -> Extension:
    """Does what `gossamer extend` does."""
    run = founders(world)
    outlook = run.plan(total, cooldown)
    run.extend(outlook)
    return outlook.statement


def places_of(world: World, name: str) -> list[SchedulePlace]:
    trainer = world.participant(name).context.trainer
    assert isinstance(trainer, NumbersTrainer)
    assert None not in trainer.places
    return [place for place in trainer.places if place is not None]


def test_a_finished_run_goes_on_when_its_founder_extends_it(tmp_path: Path) -> None:
    world = World(tmp_path, seed=21, schedule=WSD)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "abc")
        await finish(world, *"abc")
        assert_first_head_with(world, WSD.total_tokens, *"abc")
        world.crash("c")
        longer = 2 * WSD.total_tokens
        extend(world, longer)
        await world.until(lambda: phase(world, "b") == "training", END_SECONDS)
        await finish(world, *"ab")
        assert_first_head_with(world, longer, *"ab")
        await nursery.start(world.run, "c", ["b"])  # it was away
        await nursery.start(world.run, "d", ["b"])  # it is new
        await finish(world, *"abcd")
        assert_first_head_with(world, longer, *"abcd")
        for name in "abcd":
            committed = world.participant(name).context.committed
            assert committed.end.final_tokens == longer
        world.crash("a")
        await trio.sleep(5)
        await nursery.start(world.run, "a", ["b"])
        await world.until(lambda: world.participant_or_none("a") is not None, END_SECONDS)
        assert world.participant("a").context.committed.end.final_tokens == longer

    simulate(world, story)


def test_a_founder_begins_the_cool_down_and_the_rates_fall(tmp_path: Path) -> None:
    schedule = TokenSchedule(warmup_tokens=0, total_tokens=10**9, cooldown_tokens=100 * STEP_TOKENS)
    world = World(tmp_path, seed=22, schedule=schedule, overlap=True)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "ab")
        await world.reach(4, *"ab")
        newest = extend(world, None)
        await finish(world, *"ab")
        assert_first_head_with(world, newest.total_tokens, *"ab")
        inner = world.nodes["a"].inputs.manifest.inner
        for name in "ab":
            rates = [place.learning_rate(0, inner) for place in places_of(world, name)]
            assert rates[0] == inner.learning_rate
            assert rates[-1] < inner.learning_rate / 2
            places = places_of(world, name)
            assert places[-1].tokens_before < newest.total_tokens, "trained ahead of the end"
            assert places[-1].tokens_per_step == 2 * STEP_TOKENS, "both gave tokens to the last"

    simulate(world, story)


def test_the_work_of_one_who_goes_on_alone_after_the_end_is_not_followed(tmp_path: Path) -> None:
    """A member whose program knows another end makes rounds that no other node goes to; they count
    once the founder has extended the run."""
    world = World(tmp_path, seed=23, schedule=WSD)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "abc")
        await world.reach(2, *"abc")
        committed = world.participant("c").context.committed
        committed.end.extend(Extension(1, 10 * WSD.total_tokens, 0))  # the founder did not say so
        await finish(world, *"ab")
        await world.until(lambda: tokens(world, "c") > 2 * WSD.total_tokens, END_SECONDS)
        assert_first_head_with(world, WSD.total_tokens, *"ab")
        assert [phase(world, name) for name in "ab"] == ["finished"] * 2
        swarm = world.participant("a").context.swarm
        assert world.identity("c").peer_id in swarm.living(), "it is no offence"
        extend(world, 3 * WSD.total_tokens)
        await world.until(lambda: tokens(world, "a") > 2 * WSD.total_tokens, END_SECONDS)

    simulate(world, story)


def test_an_order_by_another_key_moves_no_end(tmp_path: Path) -> None:
    world = World(tmp_path, seed=24, schedule=WSD)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "ab")
        await world.reach(2, *"ab")
        manifest, other = world.nodes["b"].inputs.manifest, world.identity("b")
        order = Extension(1, 100 * WSD.total_tokens, 0)
        forged = seal(order, other.peer_id, manifest.run_id, other.sign)
        world.participant("b").context.swarm.gossip.publish(forged, order)
        ExtensionFile(world.root / "b", manifest).write(forged)
        await finish(world, *"ab")
        # The others have nothing to do any more with the one that spread it.
        for name in "ab":
            assert_first_head_with(world, WSD.total_tokens, name)

    simulate(world, story)
