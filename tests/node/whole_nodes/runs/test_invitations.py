"""Runs that grow by invitation: whole nodes in virtual time."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import trio
from msgspec.structs import replace

from gossamer.node.network.identity import verify
from gossamer.node.network.transport import ProtocolRefused
from gossamer.node.peers.members.entrance import roll_of
from gossamer.node.peers.members.introductions import ask_to_come_in, claim_of
from gossamer.node.peers.members.run_exchange import NotAdmittedError
from gossamer.node.peers.statements.store_comparison import STATEMENTS_PROTOCOL
from gossamer.node.runs.governance.inviting import InviteOnlyRun
from gossamer.node.storage.admission_files import RollFile
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.telemetry.status import Status, is_ready
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import ForgedError
from gossamer.protocol.ids import PeerId, public_key_of
from gossamer.protocol.manifest import decode_manifest
from gossamer.protocol.policy.members.roll import Roll
from gossamer.protocol.policy.members.roll_order import peer_of
from gossamer.protocol.wire.invitation_messages import (
    Claim,
    Invitation,
    Welcomed,
    decode_invitation,
)
from gossamer.protocol.wire.run_messages import ADMIT_PROTOCOL, RUN_PROTOCOL
from tests.rogue.rogue import Rogue, frame
from tests.support.builders import members_of
from tests.support.node_world import (
    FIRST_UNIX_SECONDS,
    NumbersTrainer,
    SlowTrainer,
    World,
    headers_of,
    newest_header,
    simulate,
    tokens_of,
)

DAY = 86_400


def invitation(world: World, sponsor: str, *, slots: int = 1, days: float = 7) -> bytes:
    """An invitation from what lies in a node's state directory, which need not run."""
    expires = FIRST_UNIX_SECONDS + int(days * DAY)
    return to_msgpack(run_of(world, sponsor).invite(slots, expires, None, ()))


def run_of(world: World, name: str) -> InviteOnlyRun:
    """The run as the commands see it in a node's state directory."""
    manifest = decode_manifest(world.signed.manifest)
    return InviteOnlyRun.of(manifest, world.identity(name), StateDir(world.root / name))


def status_of(world: World, name: str) -> Status:
    reporter = world.nodes[name].reporter
    assert reporter is not None
    return reporter.status()


def in_round_of(world: World, name: str, *names: str) -> bool:
    """Returns whether the newest round that a node knows has these members."""
    if not world.participant_or_none(name) or world.round(name) == 0:
        return False
    members = {member.peer_id for member in newest_header(world, name).members}
    return members == {world.identity(each).peer_id for each in names}


def test_a_newcomer_comes_in_while_its_sponsor_is_away(tmp_path: Path) -> None:
    """The founder invites b and c. When c joins, the founder is gone, and b lets it in."""
    world = World(tmp_path, seed=71, is_by_invitation=True)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await world.reach(1, "a")
        for_b, for_c = invitation(world, "a"), invitation(world, "a")
        await nursery.start(world.run, "b", ["a"], NumbersTrainer, for_b)
        await world.until(lambda: in_round_of(world, "a", "a", "b"))
        await world.until(lambda: world.all_shards_are_with("b"))
        world.crash("a")
        settled = world.path("b")[0]
        await nursery.start(world.run, "c", ["b"], NumbersTrainer, for_c, settled)
        await world.until(lambda: in_round_of(world, "c", "b", "c"))
        assert world.nodes["c"].first.pinned_head == settled
        assert world.nodes["b"].first.pinned_head is None
        roll = world.nodes["c"].first.entrance.roll
        entry = roll.entry(world.identity("c").peer_id) if roll is not None else None
        assert entry is not None
        assert peer_of(entry.certificate.sponsor) == world.identity("a").peer_id
        assert peer_of(entry.witness) == world.identity("b").peer_id
        world.assert_one_chain("b", "c")
        # The founder comes back and hears of c from b.
        await nursery.start(world.run, "a", ["b"])
        await world.until(lambda: in_round_of(world, "a", "a", "b", "c"))

    simulate(world, story)


def test_members_that_come_back_know_each_other_without_the_founder(tmp_path: Path) -> None:
    world = World(tmp_path, seed=72, is_by_invitation=True)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await world.reach(1, "a")
        for name in "bc":
            await nursery.start(world.run, name, ["a"], NumbersTrainer, invitation(world, "a"))
        await world.until(lambda: in_round_of(world, "b", *"abc"))
        await world.until(lambda: world.all_shards_are_with("b", "c"))
        await world.until(lambda: {"b", "c"} == named(world, run_of(world, "b").roll) - {"a"})
        for name in "abc":
            world.crash(name)
        await trio.sleep(1.0)
        await nursery.start(world.run, "b")
        await nursery.start(world.run, "c", ["b"])
        await world.until(lambda: in_round_of(world, "c", *"bc"))

    simulate(world, story)


def test_members_that_never_heard_of_each_other_show_their_chains(tmp_path: Path) -> None:
    """c comes in by b while a is away, and e by a while c is. Then only c and e are left."""
    world = World(tmp_path, seed=78, is_by_invitation=True)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await world.reach(1, "a")
        for_c, for_e = invitation(world, "a"), invitation(world, "a")
        await nursery.start(world.run, "b", ["a"], NumbersTrainer, invitation(world, "a"))
        await world.until(lambda: in_round_of(world, "a", *"ab"))
        await world.until(lambda: world.all_shards_are_with("b"))
        world.network.part(world.identity("a").peer_id, world.identity("c").peer_id)
        world.crash("a")
        await nursery.start(world.run, "c", ["b"], NumbersTrainer, for_c)
        await world.until(lambda: in_round_of(world, "c", *"bc"))
        await world.until(lambda: world.all_shards_are_with("c"))
        world.crash("b")
        await nursery.start(world.run, "a")
        await nursery.start(world.run, "e", ["a", "c"], NumbersTrainer, for_e)
        assert named(world, roll(world, "e")) <= set("abe")
        await world.until(lambda: "e" in named(world, roll(world, "a")))
        world.crash("a")
        await world.until(lambda: named(world, roll(world, "c")) == set("abce"))
        await world.until(lambda: in_round_of(world, "e", *"ce"))

    simulate(world, story)


def test_a_revoked_member_is_shut_out_with_those_below_it(tmp_path: Path) -> None:
    """The founder revokes c while b is the only one that c and d are connected to."""
    world = World(tmp_path, seed=73, is_by_invitation=True)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await world.reach(1, "a")
        for name in "bc":
            await nursery.start(world.run, name, ["a"], NumbersTrainer, invitation(world, "a"))
        await world.until(lambda: in_round_of(world, "c", *"abc"))
        await nursery.start(world.run, "d", ["b"], NumbersTrainer, invitation(world, "c"))
        await world.until(lambda: in_round_of(world, "d", *"abcd"))
        ids = {name: world.identity(name).peer_id for name in "abcd"}
        for pair in (("a", "c"), ("a", "d"), ("c", "d")):
            world.network.reset(*(ids[name] for name in pair))
            world.network.part(*(ids[name] for name in pair))
        middle = world.network.get(ids["b"])
        assert middle is not None
        connections = [middle.connections[ids[name]] for name in "cd"]
        run_of(world, "a").revoke(ids["c"])
        await world.until(lambda: members_of(roll(world, "b")) == {ids["a"], ids["b"]}, 10.0)
        await trio.sleep(1.0)
        assert all(each.closed for each in connections), "streams that were open have ended"
        newest = world.round("b")
        before = {name: received(world, name) for name in "cd"}
        await world.until(lambda: world.round("b") >= newest + 5 and in_round_of(world, "b", *"ab"))
        for name in "cd":
            answers = {ADMIT_PROTOCOL: received(world, name)[ADMIT_PROTOCOL]}
            assert received(world, name) == before[name] | answers
            transport = world.network.get(ids[name])
            assert transport is not None
            if ids["b"] in transport.connections:
                with pytest.raises(ProtocolRefused):
                    await transport.open_stream(ids["b"], STATEMENTS_PROTOCOL)
        # Headers that it worked for stay good for a newcomer that hears of it as one who is out.
        await nursery.start(world.run, "e", ["b"], NumbersTrainer, invitation(world, "a"))
        await world.until(lambda: in_round_of(world, "e", *"abe"))

    simulate(world, story)


def test_a_member_that_was_put_out_says_so(tmp_path: Path) -> None:
    world = World(tmp_path, seed=79, is_by_invitation=True)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await world.reach(1, "a")
        await nursery.start(world.run, "b", ["a"], NumbersTrainer, invitation(world, "a"))
        await world.until(lambda: in_round_of(world, "b", *"ab"))
        assert status_of(world, "b").put_out is None
        run_of(world, "a").revoke(world.identity("b").peer_id)
        await world.until(lambda: status_of(world, "b").put_out is not None, 60.0)
        told = status_of(world, "b")
        assert told.problem == told.put_out
        assert told.phase in ("training", "averaging")
        assert not is_ready(told)
        reporter = world.nodes["b"].reporter
        assert reporter is not None
        assert str(told.problem) in reporter.line()
        assert status_of(world, "a").problem is None

    simulate(world, story)


def test_a_hundred_identities_of_one_invitation_become_one(tmp_path: Path) -> None:
    """They come at once to two members that are cut off from each other, and to both in turn."""
    world = World(tmp_path, seed=74, is_by_invitation=True, allowed=("b",))
    run_id = decode_manifest(world.signed.manifest).run_id
    admitted: list[PeerId] = []

    async def ask(name: str, number: int, secret: Invitation) -> None:
        identity = world.identity(f"sybil {number}")
        async with world.network.transport(identity) as transport:
            victim = world.identity(name).peer_id
            await transport.connect(world.network.addresses_of(victim)[0])
            claim = claim_of(secret, run_id, identity.peer_id)
            answer = await ask_to_come_in(transport, victim, claim)
            if answer.is_admitted:
                admitted.append(identity.peer_id)
            else:
                assert "used up" in answer.problem
                with pytest.raises(ProtocolRefused):
                    await transport.open_stream(victim, RUN_PROTOCOL)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await nursery.start(world.run, "b", ["a"])
        await world.reach(1, "a", "b")
        secret = decode_invitation(invitation(world, "a"))
        pair = (world.identity("a").peer_id, world.identity("b").peer_id)
        world.network.reset(*pair)
        world.network.part(*pair)
        async with trio.open_nursery() as crowd:
            for number in range(100):
                crowd.start_soon(ask, "ab"[number % 2], number, secret)
        assert len(admitted) == 2, "one by each, since they could not tell each other"
        world.network.join(*pair)
        await world.until(lambda: roll(world, "a").digest() == roll(world, "b").digest())
        assert len(members_of(roll(world, "a")) & set(admitted)) == 1
        assert len(members_of(roll(world, "a"))) == 3
        for number in range(100, 110):
            await ask("ab"[number % 2], number, secret)
        assert len(admitted) == 2

    simulate(world, story)


def test_a_newcomer_follows_rounds_of_a_member_that_lost_its_slot(tmp_path: Path) -> None:
    """Another newcomer had come in by the same invitation before, unheard of by the rest."""
    world = World(tmp_path, seed=79, is_by_invitation=True)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await world.reach(1, "a")
        text = invitation(world, "a")
        await nursery.start(world.run, "b", ["a"], NumbersTrainer, text)
        await world.until(lambda: in_round_of(world, "a", *"ab"))
        # b lets in c, whose invitation is its own.
        await nursery.start(world.run, "c", ["b"], NumbersTrainer, invitation(world, "a"))
        await world.until(lambda: in_round_of(world, "a", *"abc"))
        founder, other = world.identity("a"), world.identity("g")
        claim = claim_of(
            decode_invitation(text), world.nodes["a"].inputs.manifest.run_id, other.peer_id
        )
        elsewhere = roll_of(decode_manifest(world.signed.manifest))
        early = FIRST_UNIX_SECONDS - 1000
        entry = elsewhere.let_in(claim, other.peer_id, founder.peer_id, early, founder.sign)
        assert entry is not None
        async with world.network.transport(other) as transport:
            await transport.connect(world.network.addresses_of(founder.peer_id)[0])
            await ask_to_come_in(transport, founder.peer_id, Claim((entry,), None, b""))
        await world.until(lambda: named(world, roll(world, "a")) == {"a", "g"})
        world.crash("b")
        await nursery.start(world.run, "e", ["a"], NumbersTrainer, invitation(world, "a"))
        await world.until(lambda: in_round_of(world, "e", *"ace"))
        anew = {public_key_of(world.identity(name).peer_id) for name in "ae"}

        def is_in_again() -> bool:
            entry = roll(world, "c").entry(world.identity("c").peer_id)
            return entry is not None and entry.witness in anew

        await world.until(is_in_again)
        assert any(tokens_of(world, header, "b") for header in headers_of(world, "e"))

    simulate(world, story)


def test_a_ban_holds_for_those_that_a_peer_has_let_in(tmp_path: Path) -> None:
    world = World(tmp_path, seed=75, is_by_invitation=True)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await world.reach(1, "a")
        for name, sponsor in (("b", "a"), ("c", "a"), ("d", "c")):
            text = invitation(world, sponsor, slots=2)
            await nursery.start(world.run, name, ["a"], NumbersTrainer, text)
            await world.until(lambda name=name: named(world, run_of(world, name).roll) >= {name})  # type: ignore[misc]
        await world.until(lambda: in_round_of(world, "a", *"abcd"))
        founder = world.nodes["a"]
        c, d = (world.identity(name).peer_id for name in "cd")
        while not founder.first.offences.is_banned(c):
            founder.first.offences.note(c, ForgedError("a test"))
        assert founder.first.offences.is_banned(d)
        await trio.sleep(0.5)
        transport = world.network.get(world.identity("a").peer_id)
        assert transport is not None
        assert transport.peers() == [world.identity("b").peer_id]
        # Neither a new identity nor a new branch helps: c's invitations are void meanwhile.
        for held in (text, invitation(world, "c")):
            newcomer = world.identity(f"new {len(held)}")
            claim = claim_of(
                decode_invitation(held), founder.inputs.manifest.run_id, newcomer.peer_id
            )
            async with world.network.transport(newcomer) as other:
                await other.connect(world.network.addresses_of(world.identity("a").peer_id)[0])
                answer = await ask_to_come_in(other, world.identity("a").peer_id, claim)
                assert not answer.is_admitted
                assert "banned" in answer.problem

    simulate(world, story)


@pytest.mark.long
def test_a_new_key_of_a_banned_members_invitation_is_banned_though_another_lets_it_in(
    tmp_path: Path,
) -> None:
    """Long rounds: the nodes do few until the ban ends."""
    world = World(tmp_path, seed=77, is_by_invitation=True)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a", [], SlowTrainer)
        await world.reach(1, "a")
        for name in "bc":
            text = invitation(world, "a", slots=2)
            await nursery.start(world.run, name, ["a"], SlowTrainer, text)
        await world.until(lambda: in_round_of(world, "a", *"abc"))
        founder = world.nodes["a"]
        b, c, new = (world.identity(name).peer_id for name in ("b", "c", "new"))
        while not founder.first.offences.is_banned(c):
            founder.first.offences.note(c, ForgedError("a test"))
        await nursery.start(world.run, "new", ["b"], SlowTrainer, text)
        await world.until(lambda: run_of(world, "a").roll.is_member(new))
        assert founder.first.offences.is_banned(new)
        transport = world.network.get(world.identity("a").peer_id)
        assert transport is not None
        assert transport.peers() == [b]
        # The ban ends with that of the first one, and then both are members like all others.
        await world.until(lambda: not founder.first.offences.is_banned(c))
        await world.until(lambda: in_round_of(world, "a", "a", "b", "c", "new"))

    simulate(world, story)


def test_a_claim_that_is_forged_gets_no_answer_and_is_an_offence(tmp_path: Path) -> None:
    world = World(tmp_path, seed=76, is_by_invitation=True)
    run_id = decode_manifest(world.signed.manifest).run_id

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await world.reach(1, "a")
        victim = world.identity("a").peer_id
        genuine = decode_invitation(invitation(world, "a"))
        thief = world.identity("thief")
        async with world.network.transport(thief) as transport:
            await transport.connect(world.network.addresses_of(victim)[0])
            rogue = Rogue(transport, thief, random.Random(1))
            claim = claim_of(genuine, run_id, world.identity("friend").peer_id)
            more = replace(genuine.certificate, slots=64)
            own = replace(claim_of(genuine, run_id, thief.peer_id), certificate=more)
            for message in (to_msgpack(claim), to_msgpack(own), b"nonsense"):
                said = frame(message)
                assert await rogue.say(said, victim=victim, protocol=ADMIT_PROTOCOL) == b""
            assert world.nodes["a"].first.offences.is_banned(thief.peer_id)
        # One that shows nothing of this run is told nothing.
        stranger = world.identity("stranger")
        manifest = decode_manifest(world.signed.manifest)
        alone = Roll(run_id, [stranger.peer_id], verify)
        theirs = InviteOnlyRun(manifest, stranger, alone, RollFile(tmp_path))
        foreign = theirs.invite(1, FIRST_UNIX_SECONDS + DAY, 0, ())
        async with world.network.transport(stranger) as transport:
            await transport.connect(world.network.addresses_of(victim)[0])
            for told in (claim_of(foreign, run_id, stranger.peer_id), Claim((), None, b"")):
                answer = await ask_to_come_in(transport, victim, told)
                assert answer == Welcomed(False, "", (), ())
        assert members_of(roll(world, "a")) == {victim}

    simulate(world, story)


def test_a_damaged_order_to_revoke_does_not_end_the_node(tmp_path: Path) -> None:
    world = World(tmp_path, seed=80, is_by_invitation=True)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await world.reach(1, "a")
        run = run_of(world, "a")
        me = run.identity.peer_id
        order = run.roll.revoke(me, public_key_of(world.identity("b").peer_id), run.identity.sign)
        path = run.file.order(replace(order, signature=bytes(64)))
        (run.file.revoked_path / "other").write_bytes(b"no revocation")
        await world.until(lambda: not path.exists())
        await world.reach(world.round("a") + 3, "a")
        assert roll(world, "a").page().revocations == ()
        run.file.order(order)
        await world.until(lambda: roll(world, "a").page().revocations == (order,))
        assert list(run.file.revoked_path.iterdir()) == []

    simulate(world, story)


def test_a_node_without_an_invitation_says_so_before_it_trains(tmp_path: Path) -> None:
    """It has the manifest from a friend."""
    world = World(tmp_path, seed=77, is_by_invitation=True)

    async def story(_nursery: trio.Nursery) -> None:
        refused = pytest.RaisesExc(NotAdmittedError, match="gossamer invite")
        with pytest.RaisesGroup(refused, flatten_subgroups=True):
            await world.run("b")

    simulate(world, story)


def roll(world: World, name: str) -> Roll:
    """The roll of a node that runs."""
    found = world.nodes[name].first.entrance.roll
    assert found is not None
    return found


def named(world: World, of: Roll) -> set[str]:
    """Names of a roll's members."""
    return {name for name in "abcdefg" if of.is_member(world.identity(name).peer_id)}


def received(world: World, name: str) -> dict[str, int]:
    """Payload bytes that a node has received, by protocol."""
    transport = world.network.get(world.identity(name).peer_id)
    assert transport is not None
    return {protocol: each for protocol, (_, each) in transport.traffic().items()}


@pytest.mark.long
def test_the_many_identities_of_one_member_do_not_outvote_the_others_after_a_split(
    tmp_path: Path,
) -> None:
    """b lets in three more of its own. The four have more of the work than a, c and d."""
    world = World(tmp_path, seed=79, is_by_invitation=True)
    others, of_b = "acd", "befg"

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await world.reach(1, "a")
        for name in "bcd":
            await nursery.start(world.run, name, ["a"], NumbersTrainer, invitation(world, "a"))
        await world.until(lambda: in_round_of(world, "b", *"abcd"))
        for name in "efg":
            await nursery.start(world.run, name, ["b"], NumbersTrainer, invitation(world, "b"))
        await world.until(lambda: in_round_of(world, "a", *"abcdefg"))
        await world.reach(world.round("a") + 30, *"abcdefg", seconds=300.0)  # b's have stake
        await world.until(lambda: world.all_shards_are_with(*others))
        await world.until(lambda: world.all_shards_are_with(*of_b))
        for one in others:
            for other in of_b:
                world.network.cut(world.identity(one).peer_id, world.identity(other).peer_id)
        before, fork = world.round("a"), world.path("a")[-1]
        await world.reach(before + 3, *"abcdefg")
        assert not world.is_one_chain("a", "b")
        undone, kept = world.path("b")[before + 1], world.path("a")[before + 1]
        for one in others:
            for other in of_b:
                world.network.heal(world.identity(one).peer_id, world.identity(other).peer_id)
        await world.until(lambda: all(kept in world.path(name) for name in "abcdefg"))
        await world.come_together(*"abcdefg", seconds=10.0)
        assert undone not in world.path("b")
        choice = world.participant("c").context.choice
        stakes = choice.stakes_at(fork)
        ids = {world.identity(name).peer_id for name in of_b}
        assert 4 * choice.stake_of(fork, ids) <= choice.stake_of(fork, stakes)
        assert 2 * sum(stakes[peer] for peer in ids) > sum(stakes.values())

    simulate(world, story)
