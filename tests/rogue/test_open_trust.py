"""A member of a ring that sends averages, sums and records which nobody made.

With `trust = "members"` a member sets what it has to finish, and by the sums that it passes on it
sets all: that is what the word means, and it shows that the attacks work. With `trust = "open"` the
same attacks change nothing.
"""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import trio

from gossamer.node.network.identity import Identity
from gossamer.node.network.transport import TransportError
from gossamer.protocol.ids import digest_of
from gossamer.protocol.manifest import Trust
from tests.rogue.attacks_averages import (
    FORGED_VALUE,
    averages_of_others,
    contradicting_averages,
    forged_averages,
    forged_records,
    signed_sums,
)
from tests.rogue.catalogue import Attack
from tests.rogue.rogue import Rogue
from tests.rogue.test_catalogue import count
from tests.support.measured import measured
from tests.support.node_world import World, simulate, start
from tests.support.sum_verdicts import verdicts_of

pytestmark = pytest.mark.usefixtures("quiet")

NAMES = "abc"


def attacked(root: Path, attack: Attack, codec: str, trust: Trust) -> World:
    """A swarm of three after an attack in which a fourth member takes part."""
    world = World(root, seed=23, codec=codec, trust=trust)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, NAMES)
        await world.reach(4, *NAMES)
        identity = Identity.from_seed(digest_of(b"rogue", attack.__name__.encode()))
        async with world.network.transport(identity) as transport:
            victims = [world.identity(name).peer_id for name in NAMES]
            for victim in victims:
                await transport.connect(world.network.addresses_of(victim)[0])
            rogue = Rogue(transport, identity, random.Random(0))
            await rogue.learn_run(victims[0])
            with suppress(TransportError):  # banned meanwhile
                await attack(rogue, victims)
        await world.reach(world.round("a") + 2, *NAMES)
        world.assert_one_chain(*NAMES)

    simulate(world, story)
    measured(
        f"{codec}, {trust}: largest parameter {distance_of(world):.3g}, "
        f"{offences(world, 'forged'):.0f} offences"
    )
    return world


def distance_of(world: World) -> float:
    """The largest magnitude of a parameter at any node."""
    return max(
        float(np.abs(world.participant(name).context.committed.parameters).max()) for name in NAMES
    )


def offences(world: World, reason: str) -> float:
    return sum(count(world, name, "offences", reason) for name in NAMES)


def spoilt_chunks(world: World) -> tuple[int, int]:
    """The chunks with a parameter that no honest member makes, and all chunks."""
    committed = world.participant(NAMES[0]).context.committed
    plan, parameters = committed.sync_sets.whole.plan, committed.parameters
    spoilt = [
        chunk
        for chunk in range(plan.num_chunks)
        if np.abs(parameters[plan.range_of(chunk)]).max() > FORGED_VALUE / 100
    ]
    return len(spoilt), plan.num_chunks


def test_among_members_one_sets_the_model_by_the_sums_that_it_passes_on(tmp_path: Path) -> None:
    """It does nothing else in its ring, which puts it out for that, and so it does not have to say
    how it came to its sums. `test_sum_audits` has members that stay."""
    world = attacked(tmp_path, signed_sums, "fp32", "members")
    assert distance_of(world) > FORGED_VALUE / 10
    named = {verdict.member for name in NAMES for verdict in verdicts_of(world, name)}
    assert not named & {world.identity(name).peer_id for name in NAMES}


def test_among_members_a_sum_that_its_sender_did_not_sign_is_refused(tmp_path: Path) -> None:
    world = attacked(tmp_path, forged_records, "fp32", "members")
    assert distance_of(world) < 10.0
    assert offences(world, "forged") > 0


@pytest.mark.parametrize("codec", ["fp32", "int8"])
def test_among_members_an_average_that_its_finisher_did_not_sign_is_refused(
    tmp_path: Path, codec: str
) -> None:
    world = attacked(tmp_path, forged_averages, codec, "members")
    assert distance_of(world) < 10.0
    assert offences(world, "forged") > 0


def test_among_members_one_sets_the_averages_that_it_has_to_finish(tmp_path: Path) -> None:
    world = attacked(tmp_path, averages_of_others, "fp32", "members")
    spoilt, num_chunks = spoilt_chunks(world)
    assert 0 < spoilt <= -(-num_chunks // (len(NAMES) + 1))
    assert offences(world, "forged") == 0


def test_a_member_that_signs_two_averages_of_one_chunk_is_banned_by_all(tmp_path: Path) -> None:
    world = attacked(tmp_path, contradicting_averages, "fp32", "members")
    for name in NAMES:
        assert count(world, name, "bans", "equivocation") == 1
    assert offences(world, "equivocation") == len(NAMES)


@pytest.mark.parametrize("codec", ["fp32", "int8", "sparse"])
def test_an_average_that_nobody_signed_is_refused(tmp_path: Path, codec: str) -> None:
    world = attacked(tmp_path, forged_averages, codec, "open")
    assert distance_of(world) < 10.0
    assert offences(world, "forged") > 0


@pytest.mark.parametrize("codec", ["fp32", "sparse"])
def test_a_changed_record_is_its_senders_offence_and_the_ring_goes_on(
    tmp_path: Path, codec: str
) -> None:
    world = attacked(tmp_path, forged_records, codec, "open")
    assert distance_of(world) < 10.0
    assert offences(world, "forged") > 0
