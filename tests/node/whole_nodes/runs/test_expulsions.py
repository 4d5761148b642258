"""Members of a run by invitation put a branch out by a vote: whole nodes in virtual time."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from gossamer.node.network.transport import ProtocolRefused
from gossamer.node.peers.members.run_exchange import NotAdmittedError
from gossamer.node.peers.statements.store_comparison import STATEMENTS_PROTOCOL
from gossamer.node.runs.governance.inviting import InviteOnlyRun
from gossamer.node.runs.governance.voting import OpenVote, VotingDesk
from gossamer.node.storage.admission_files import ExpulsionFile
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.ids import public_key_of
from gossamer.protocol.manifest import decode_manifest
from gossamer.protocol.policy.members.expulsions import CONFIRM_ROUNDS
from gossamer.protocol.wire.expulsion_messages import VOTE_PERIOD
from tests.support.node_world import (
    FIRST_UNIX_SECONDS,
    NumbersTrainer,
    World,
    newest_header,
    simulate,
)

NAMES = "abcdefg"


def run_of(world: World, name: str) -> InviteOnlyRun:
    """The run as the commands see it in a node's state directory."""
    manifest = decode_manifest(world.signed.manifest)
    return InviteOnlyRun.of(manifest, world.identity(name), StateDir(world.root / name))


def desk_of(world: World, name: str) -> VotingDesk:
    return VotingDesk(run_of(world, name), StateDir(world.root / name))


def vote(world: World, voter: str, target: str) -> OpenVote:
    """A node's operator gives the order."""
    return desk_of(world, voter).vote(world.identity(target).peer_id)


async def join(world: World, nursery: trio.Nursery, name: str, sponsor: str, seed: str) -> None:
    invitation = run_of(world, sponsor).invite(1, FIRST_UNIX_SECONDS + 86_400, None, ())
    await nursery.start(world.run, name, [seed], NumbersTrainer, to_msgpack(invitation))
    await world.until(lambda: name in members(world, seed))


def members(world: World, name: str) -> set[str]:
    """Names of the members by the roll of a node that runs."""
    roll = world.nodes[name].first.entrance.roll
    assert roll is not None
    return {each for each in NAMES if roll.is_member(world.identity(each).peer_id)}


def in_round_of(world: World, name: str, *names: str) -> bool:
    """Returns whether the newest round that a node knows has these members."""
    if not world.participant_or_none(name) or world.round(name) == 0:
        return False
    ids = {member.peer_id for member in newest_header(world, name).members}
    return ids == {world.identity(each).peer_id for each in names}


def num_known_votes(world: World, name: str, target: str) -> int:
    """Votes on a target that a node knows."""
    keeper = world.nodes[name].first.entrance.votes
    assert keeper is not None
    key = public_key_of(world.identity(target).peer_id)
    ids = [world.identity(each).peer_id for each in NAMES]
    return sum(keeper.expulsions.vote_of(each, key) is not None for each in ids)


@pytest.mark.long
def test_two_thirds_put_out_a_member_and_its_branch_while_the_founder_is_away(
    tmp_path: Path,
) -> None:
    """d lets in e. When the founder has been away for so long that it has no stake, b and c are two
    of three branches."""
    world = World(tmp_path, seed=91, is_by_invitation=True)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await world.reach(1, "a")
        for name in "bcd":
            await join(world, nursery, name, "a", "a")
        await world.until(lambda: world.all_shards_are_with("b", "c"))
        await join(world, nursery, "e", "d", "b")
        await world.until(lambda: in_round_of(world, "b", *"abcde"))
        world.crash("a")
        away = world.round("b")
        ids = {name: world.identity(name).peer_id for name in NAMES}
        await world.reach(away + 100, *"bcde", seconds=600.0)
        first = vote(world, "b", "d")
        assert first.tally is not None
        assert first.tally.voters == {ids["b"]}
        assert first.tally.needed == 2
        await world.until(lambda: num_known_votes(world, "d", "d") == 1)
        await world.reach(world.round("b") + 20, "b")
        assert all(members(world, name) == set("abcde") for name in "bcde")
        vote(world, "c", "d")
        await world.until(lambda: all(members(world, name) == set("abc") for name in "bc"), 10.0)
        await world.until(lambda: in_round_of(world, "b", *"bc"))
        newest = world.round("b")
        await world.reach(newest + 5, *"bc")
        assert in_round_of(world, "b", *"bc")
        for name in "de":
            transport = world.network.get(ids[name])
            assert transport is not None
            for other in {ids[each] for each in "bc"} & transport.connections.keys():
                with pytest.raises(ProtocolRefused):
                    await transport.open_stream(other, STATEMENTS_PROTOCOL)
        # A restart keeps it, and newcomers learn it from one whom they reach.
        world.crash("b")
        await trio.sleep(1.0)
        await nursery.start(world.run, "b", ["c"])
        assert members(world, "b") == set("abc")
        await join(world, nursery, "g", "b", "c")
        await world.until(lambda: in_round_of(world, "g", *"bcg"))
        await world.until(lambda: members(world, "g") == set("abcg"))
        # The founder hears of it when it comes back.
        await nursery.start(world.run, "a", ["c"])
        await world.until(lambda: members(world, "a") == set("abcg"))
        rows = {row.peer_id: row for row in run_of(world, "c").members()}
        desk = desk_of(world, "c")
        assert {name for name in "abcdeg" if desk.is_voted_out(rows[ids[name]])} == {"d", "e"}
        assert desk.open_votes() == []
        # One that is out and has heard of it is told when it begins again.
        keeper = world.nodes["c"].first.entrance.votes
        assert keeper is not None
        world.crash("d")
        await trio.sleep(1.0)
        ExpulsionFile(world.root / "d").write(keeper.expulsions.saved())
        refused = pytest.RaisesExc(NotAdmittedError, match="put out")
        with pytest.RaisesGroup(refused, flatten_subgroups=True):
            await world.run("d", ["b"])

    simulate(world, story)


@pytest.mark.long
def test_members_confirm_a_vote_at_newer_heads(tmp_path: Path) -> None:
    """So newcomers that have no old headers can count it."""
    world = World(tmp_path, seed=92, is_by_invitation=True, allowed=("b", "c"))

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await nursery.start(world.run, "b", ["a"])
        await nursery.start(world.run, "c", ["a"])
        await world.reach(1, *"abc")
        await join(world, nursery, "d", "b", "a")
        await world.reach(40, *"abc", seconds=300.0)
        for name in "bc":
            vote(world, name, "d")
        # A root, or a member above it, would revoke; as a vote it needs the third one.
        vote(world, "a", "d")
        await world.until(lambda: all("d" not in members(world, name) for name in "abc"))
        keeper = world.nodes["c"].first.entrance.votes
        assert keeper is not None
        key = public_key_of(world.identity("d").peer_id)

        def proven_round() -> int:
            assert keeper is not None
            return max(each.round for each in keeper.expulsions.proof_of(key))

        first = proven_round()
        desk = desk_of(world, "c")
        assert desk.withdraw(world.identity("d").peer_id)
        assert not desk.withdraw(world.identity("d").peer_id)
        await world.reach(
            world.round("a") + CONFIRM_ROUNDS + 2 * VOTE_PERIOD, *"abc", seconds=600.0
        )
        await world.until(lambda: proven_round() >= first + CONFIRM_ROUNDS)
        assert len(keeper.expulsions.proof_of(key)) == 3

    simulate(world, story)
