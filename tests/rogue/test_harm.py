"""How much harm one rogue does to a swarm of honest nodes, beside the same swarm without it."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from gossamer.node.network.transport import TransportError
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.rounds.ring.followed_ring import SLOW
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.wire.statements import Accusation
from tests.rogue.attacks_claims import heads_without_blocks, member_that_passes_nothing_on
from tests.rogue.catalogue import Attack
from tests.rogue.rogue import Rogue, rogue_among
from tests.support.measured import measured
from tests.support.node_world import (
    STEP_SECONDS,
    NumbersTrainer,
    SlowTrainer,
    World,
    credited,
    headers_of,
    simulate,
    start,
    tokens_of,
)

pytestmark = pytest.mark.usefixtures("quiet")

NAMES = "abcd"
SECONDS = 60.0
UNDISTURBED_PART = 1 / 5
"""Part of an attack's time for which the undisturbed swarm is watched: its rounds are alike."""

TOKENS_OF_A_ROUND = 4 * 128
"""More than the honest members can gain while the traitor comes back."""


def rounds_of(
    root: Path,
    attack: Attack | None,
    seconds: float = SECONDS,
    trainer: type[NumbersTrainer] = NumbersTrainer,
) -> int:
    """Rounds that a swarm commits in some seconds, with or without an attack."""
    world = World(root, seed=17)
    committed = 0

    async def story(nursery: trio.Nursery) -> None:
        nonlocal committed
        await nursery.start(world.run, "a", (), trainer)
        for name in NAMES[1:]:
            await nursery.start(world.run, name, ["a"], trainer)
        await world.reach(4, *NAMES)
        async with rogue_among(world, NAMES, b"rogue") as (rogue, victims):
            before = world.round("b")
            with trio.move_on_after(seconds):
                with suppress(TransportError):  # banned meanwhile
                    if attack is not None:
                        await attack(rogue, victims)
                await trio.sleep_forever()
            committed = world.round("b") - before
        await world.reach(world.round("b") + 2, *NAMES)
        world.assert_one_chain(*NAMES)

    simulate(world, story)
    return committed


def keeps_half_of_its_rounds(
    root: Path,
    attack: Attack,
    seconds: float = SECONDS,
    trainer: type[NumbersTrainer] = NumbersTrainer,
) -> bool:
    """Returns whether a swarm under an attack commits at least half as many rounds as without."""
    looked = seconds * UNDISTURBED_PART
    undisturbed = rounds_of(root / "undisturbed", None, looked, trainer) / UNDISTURBED_PART
    attacked = rounds_of(root / "attacked", attack, seconds, trainer)
    measured(f"rounds in {seconds:.0f} s: {undisturbed:.0f} undisturbed, {attacked} attacked")
    return 2 * attacked >= undisturbed


@pytest.mark.long
def test_heads_whose_blocks_nobody_has_do_not_stop_training(tmp_path: Path) -> None:
    assert keeps_half_of_its_rounds(tmp_path, heads_without_blocks)


async def always_back_in_the_ring(rogue: Rogue, victims: list[PeerId]) -> None:
    """A member that keeps what it should pass on, and is ready for the next round each time: long
    before the others, whose rounds take 4 s."""
    while True:
        await member_that_passes_nothing_on(rogue, victims, look_seconds=0.5)


class BriefTrainer(NumbersTrainer):
    """Rounds of 0.7 s, as real daemons with a tiny model make them on one machine."""

    step_seconds = 0.175


@pytest.mark.long
@pytest.mark.parametrize(
    ("seconds", "trainer"),
    [(600.0, SlowTrainer), (150.0, BriefTrainer), (40.0, BriefTrainer)],
    ids=["long-rounds", "brief-rounds", "brief-rounds-at-first"],
)
def test_a_member_that_spoils_every_ring_it_is_in_sits_out(
    tmp_path: Path, seconds: float, trainer: type[NumbersTrainer]
) -> None:
    """Rounds of 4 s, and of 0.7 s: a ring that is spoilt takes as long whatever its rounds take.
    Few long steps make a round of 4 s with a tenth of the work of many short ones."""
    assert keeps_half_of_its_rounds(tmp_path, always_back_in_the_ring, seconds, trainer)


@pytest.mark.long
@pytest.mark.parametrize("reason", ["silent", SLOW])
def test_a_member_that_is_accused_in_every_ring_is_credited_all_the_same(
    tmp_path: Path, reason: str
) -> None:
    """One of five works as it should, and accuses the same other one as soon as a ring begins."""
    names = "abcde"
    world = World(tmp_path, seed=23)
    accuser, victim = "e", "c"

    async def accuse(seen: set[Digest]) -> None:
        node = world.participant(accuser)

        def new_ring() -> Ring | None:
            driver = node.rounds._running
            ring = None if driver is None else driver.machine.ring
            return ring if ring is not None and ring.ring_id not in seen else None

        while True:
            await world.until(lambda: new_ring() is not None, math.inf)
            ring = new_ring()
            assert ring is not None
            seen.add(ring.ring_id)
            accused = world.identity(victim).peer_id
            if accused in ring.members and len(ring.members) == len(names):
                statement = Accusation(ring.ring_id, accused, reason)
                node.context.swarm.gossip.say(statement)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, names)
        await world.reach(1, *names)
        await world.until(lambda: all(credited(world, name) > 0 for name in names))
        began = len(headers_of(world, "a"))
        nursery.start_soon(accuse, set())
        await world.reach(world.round("a") + 40, *names)
        headers = headers_of(world, "a")[began:]
        rounds = sum(tokens_of(world, header, victim) > 0 for header in headers)
        measured(f"the accused is credited in {rounds} of {len(headers)} rounds")
        assert rounds >= 0.95 * len(headers)

    simulate(world, story)


class QuickTrainer(NumbersTrainer):
    """Makes several rounds while the others make one, so that its chain soon has more tokens."""

    step_seconds = STEP_SECONDS / 8


@pytest.mark.long
def test_rounds_that_one_member_made_in_secret_undo_none_of_the_others(tmp_path: Path) -> None:
    """A member leaves, makes a heavier chain alone, and comes back with it and with its blocks."""
    world = World(tmp_path, seed=19)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a", (), QuickTrainer)  # it has all data
        for name in NAMES[1:]:
            await nursery.start(world.run, name, ["a"])
        others = NAMES[1:]
        await world.until(lambda: world.all_shards_are_with(*others))
        # The others are members, each with work in rounds that all have.
        await world.until(lambda: all(credited(world, name) > 0 for name in others))
        traitor = world.identity("a").peer_id
        for name in others:
            world.network.cut(traitor, world.identity(name).peer_id)
        parted = world.round("b")
        await world.reach(parted + 8, *others)

        def tokens(name: str) -> int:
            return world.participant(name).context.committed.entry.tokens_total

        await world.until(lambda: tokens("a") > tokens("b") + 8 * TOKENS_OF_A_ROUND)
        honest = world.path("b")
        for name in others:
            world.network.heal(traitor, world.identity(name).peer_id)
        await world.until(lambda: world.is_one_chain(*NAMES))
        kept = world.path("b")[: len(honest)]
        num_kept = sum(one == other for one, other in zip(kept, honest, strict=True))
        measured(f"{num_kept} of {len(honest)} rounds of the others remain")
        assert kept == honest

    simulate(world, story)
