"""Members that vote falsely: a third of them puts out nobody, forges nothing and fills nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from msgspec.structs import replace

from gossamer.node.peers.members.expulsion_keeper import ExpulsionKeeper
from gossamer.node.runs.governance.inviting import InviteOnlyRun
from gossamer.node.runs.governance.voting import VotingDesk
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.ids import PeerId, public_key_of
from gossamer.protocol.manifest import decode_manifest
from gossamer.protocol.wire.expulsion_messages import (
    VOTE_PERIOD,
    VOTES_MAX,
    ExpulsionPage,
    ExpulsionVote,
)
from tests.support.builders import members_of
from tests.support.node_world import FIRST_UNIX_SECONDS, NumbersTrainer, World, simulate

HONEST, LIARS = "abcd", "ef"
MEMBERS = HONEST + LIARS


def run_of(world: World, name: str) -> InviteOnlyRun:
    manifest = decode_manifest(world.signed.manifest)
    return InviteOnlyRun.of(manifest, world.identity(name), StateDir(world.root / name))


def keeper_of(world: World, name: str) -> ExpulsionKeeper:
    found = world.nodes[name].first.entrance.votes
    assert found is not None
    return found


def vote(world: World, voter: str, target: PeerId, round_number: int) -> ExpulsionVote:
    """A vote at a head of the chain, signed by its voter."""
    identity, key = world.identity(voter), public_key_of(target)
    head = world.path("a")[round_number - 1]
    blank = ExpulsionVote(public_key_of(identity.peer_id), key, round_number, head, b"")
    signed = identity.sign(blank.signing_bytes(world.nodes["a"].inputs.manifest.run_id))
    return replace(blank, signature=signed)


async def say(world: World, name: str, *votes: ExpulsionVote) -> None:
    """A member publishes votes, whoever signed them."""
    transport = world.network.get(world.identity(name).peer_id)
    assert transport is not None
    topic = f"gossamer/{world.nodes['a'].inputs.manifest.run_id.hex()}/expulsions"
    await transport.publish(topic, to_msgpack(ExpulsionPage(votes)))
    await trio.sleep(0.2)


@pytest.mark.long
def test_a_third_of_the_members_puts_nobody_out(tmp_path: Path) -> None:
    world = World(tmp_path, seed=95, is_by_invitation=True)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await world.reach(1, "a")
        for name in MEMBERS[1:]:
            invitation = run_of(world, "a").invite(1, FIRST_UNIX_SECONDS + 86_400, None, ())
            await nursery.start(world.run, name, ["a"], NumbersTrainer, to_msgpack(invitation))
        ids = {name: world.identity(name).peer_id for name in MEMBERS}

        def knows_all(name: str) -> bool:
            roll = world.nodes[name].first.entrance.roll if name in world.nodes else None
            return roll is not None and members_of(roll) == frozenset(ids.values())

        await world.until(lambda: all(map(knows_all, MEMBERS)))
        await world.reach(3 * VOTE_PERIOD, *MEMBERS, seconds=600.0)
        key = public_key_of(ids["b"])
        for liar in LIARS:
            VotingDesk(run_of(world, liar), StateDir(world.root / liar)).vote(ids["b"])
        own = [ids[liar] for liar in LIARS]
        await world.until(
            lambda: all(
                keeper_of(world, name).expulsions.vote_of(liar, key) is not None
                for name in HONEST
                for liar in own
            )
        )
        # The same again, those that they may not change, and ever more of their own.
        held = [keeper_of(world, "a").expulsions.vote_of(liar, key) for liar in own]
        for _ in range(20):
            await say(world, "f", *(each for each in held if each is not None))
        stranger = [vote(world, f"nobody {n}", ids["b"], 2 * VOTE_PERIOD) for n in range(30)]
        await say(world, "f", *stranger)
        for number in (VOTE_PERIOD, 2 * VOTE_PERIOD):
            targets = [*ids.values(), *(world.identity(f"nobody {n}").peer_id for n in range(20))]
            await say(world, "f", *(vote(world, "f", each, number) for each in targets))
        assert not any(world.nodes[name].first.offences.is_banned(ids["f"]) for name in HONEST)
        for name in HONEST:
            expulsions = keeper_of(world, name).expulsions
            assert len(expulsions.digests()) <= len(LIARS) * VOTES_MAX
            assert expulsions.expelled == frozenset()
        genuine = held[0]
        assert genuine is not None
        for other in HONEST:
            forged = replace(genuine, voter=public_key_of(ids[other]))
            for _ in range(3):
                await say(world, "e", forged)
        await world.until(
            lambda: all(world.nodes[name].first.offences.is_banned(ids["e"]) for name in HONEST)
        )
        newest = world.round("a")
        await world.reach(newest + VOTE_PERIOD, *HONEST, seconds=600.0)
        assert all(knows_all(name) for name in HONEST)
        for name in HONEST:
            expulsions = keeper_of(world, name).expulsions
            assert expulsions.expelled == frozenset()
            assert all(expulsions.vote_of(ids[each], key) is None for each in HONEST)
        # What they wished for stays wished for, and counts two of six.
        tally = VotingDesk(run_of(world, "a"), StateDir(world.root / "a")).open_vote(key).tally
        assert tally is not None
        assert 3 * tally.support < 2 * tally.total

    simulate(world, story)
