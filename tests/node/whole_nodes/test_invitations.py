"""Runs that grow by invitation: whole nodes in virtual time."""

from __future__ import annotations

from pathlib import Path

import trio

from gossamer.node.runs.inviting import InviteOnlyRun
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.manifest import decode_manifest
from gossamer.protocol.policy.roll_order import peer_of
from gossamer.protocol.wire.invitation_messages import (
    encode,
)
from tests.support.node_world import FIRST_UNIX_SECONDS, NumbersTrainer, World, headers_of, simulate

DAY = 86_400
LISTEN_SECONDS = 10.0


def invitation(world: World, sponsor: str, *, slots: int = 1, days: float = 7) -> bytes:
    """An invitation from what lies in a node's state directory, which need not run."""
    expires = FIRST_UNIX_SECONDS + int(days * DAY)
    return encode(run_of(world, sponsor).invite(slots, expires, None, ()))


def run_of(world: World, name: str) -> InviteOnlyRun:
    """The run as the commands see it in a node's state directory."""
    manifest = decode_manifest(world.signed.manifest)
    return InviteOnlyRun.of(manifest, world.identity(name), StateDir(world.root / name))


def in_round_of(world: World, name: str, *names: str) -> bool:
    """Returns whether the newest round that a node knows has these members."""
    if not world.participant_or_none(name) or world.round(name) == 0:
        return False
    members = {member.peer_id for member in headers_of(world, name)[-1].members}
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
        await nursery.start(world.run, "c", ["b"], NumbersTrainer, for_c)
        await world.until(lambda: in_round_of(world, "c", "b", "c"))
        roll = world.nodes["c"].entrance.roll
        entry = roll.entry(world.identity("c").peer_id) if roll is not None else None
        assert entry is not None
        assert peer_of(entry.certificate.sponsor) == world.identity("a").peer_id
        assert peer_of(entry.witness) == world.identity("b").peer_id
        world.assert_one_chain("b", "c")
        # The founder comes back and hears of c from b.
        await nursery.start(world.run, "a", ["b"])
        await world.until(lambda: in_round_of(world, "a", "a", "b", "c"))

    simulate(world, story)
