"""What the owner of a node lets it use, where it takes effect, in virtual time."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import trio

from gossamer.node.network.relay import RelayTerms
from gossamer.node.peers.blocks.uploads import Uploads
from gossamer.node.runs.planning.needs import DAEMON_BYTES, DAEMON_BYTES_PER_PARAMETER
from tests.support.builders import peers
from tests.support.node_world import MODEL, NumbersTrainer, SlowTrainer, World, simulate, start


def trainer_of(world: World) -> NumbersTrainer:
    trainer = world.participant("a").context.trainer
    assert isinstance(trainer, NumbersTrainer)
    return trainer


def test_the_trainer_hears_the_limits_at_the_start_and_when_they_change(tmp_path: Path) -> None:
    world = World(tmp_path, seed=1, settings={"threads": 3})

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await world.reach(1, "a")
        limits = trainer_of(world).limits
        assert [(each.threads, each.memory_bytes) for each in limits] == [(3, 0)]
        await world.nodes["a"].set_limits({"threads": "2", "memory": "6GiB"})
        await world.until(lambda: len(limits) > 1)
        daemon = DAEMON_BYTES + DAEMON_BYTES_PER_PARAMETER * MODEL.num_parameters
        assert (limits[-1].threads, limits[-1].memory_bytes) == (2, 6 * 1024**3 - daemon)

    simulate(world, story)


# What strangers get of the upload

MBIT = 125_000
UPLOAD_SECONDS = 2.0


async def seconds_to_a_stranger(uploads: Uploads, num_bytes: int) -> float:
    """Time that so many bytes take on their way to a stranger."""
    (stranger,) = peers(1)
    await uploads.turn(stranger, num_bytes)
    began = trio.current_time()
    await uploads.turn(stranger, num_bytes)  # when the first ones have gone
    return trio.current_time() - began


def test_strangers_get_at_most_half_of_a_limited_upload(tmp_path: Path) -> None:
    world = World(tmp_path, seed=2, settings={"up_limit": ("10",)})

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a", (), SlowTrainer)
        await world.reach(1, "a")
        node = world.nodes["a"]
        for upload, mbit in (("default", 5), ("4", 2), ("off", 100), ("1000", 100)):
            await node.set_limits({"upload": upload})
            await trio.sleep(2 * UPLOAD_SECONDS)  # virtual: what went before has left the line
            num_bytes = round(mbit * MBIT * UPLOAD_SECONDS)
            seconds = await seconds_to_a_stranger(node.first.blocks.uploads, num_bytes)
            assert UPLOAD_SECONDS < seconds < 1.1 * UPLOAD_SECONDS, upload  # headers take 5 %

    simulate(world, story)


# Connections of others


def relay_terms_of(world: World) -> RelayTerms:
    transport = world.network.get(world.identity("a").peer_id)
    assert transport is not None
    return transport.relay_terms


@pytest.mark.parametrize(
    ("settings", "mbit", "introduces"),
    [
        ({}, math.inf, False),
        ({"relay_limit": ("5",)}, 5, False),
        ({"relay": "introduce", "relay_limit": ("5",)}, 5, True),
    ],
)
def test_a_node_carries_connections_of_members_within_its_owners_limits(
    tmp_path: Path,
    settings: dict[str, str | int | tuple[str, ...]],
    mbit: float,
    *,
    introduces: bool,
) -> None:
    world = World(tmp_path, seed=3, settings=settings)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "ab")
        await world.reach(2, "a", "b")
        terms, member = relay_terms_of(world), world.identity("b").peer_id
        (stranger,) = peers(1)
        assert terms.may_relay(member, member) == ""
        assert "not known as a member" in terms.may_relay(stranger, member)
        assert terms.rate.bytes_per_second == mbit * MBIT
        assert terms.introduces == introduces

    simulate(world, story)


def test_a_node_whose_owner_says_so_carries_no_connection(tmp_path: Path) -> None:
    world = World(tmp_path, seed=3, settings={"relay": "off"})

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "ab")
        await world.reach(2, "a", "b")
        member = world.identity("b").peer_id
        assert relay_terms_of(world).may_relay(member, member) == "this peer does not relay"

    simulate(world, story)
