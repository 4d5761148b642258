"""Members that vote again and again for headers that nobody computed, and otherwise work."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
import trio

from gossamer.protocol.ids import Digest, digest_of
from gossamer.protocol.wire.statements import Vote
from tests.support.measured import measured
from tests.support.node_world import World, credited, headers_of, simulate, start, tokens_of

pytestmark = pytest.mark.usefixtures("quiet")

HONEST, LIARS = "abcd", "ef"
VOTES_MAX = 40
"""Of a liar in one ring: what a node publishes at most while such a ring lasts."""

LOOK_SECONDS = 0.01
ATTACKED_SECONDS = 30.0
ROUND_SECONDS = 0.5
"""What a round takes without liars: far less than `decisions.LINGER_SECONDS`."""


async def vote_falsely(world: World, name: str) -> None:
    """Votes in each ring of a node that nobody else computed its header, until cancelled. The
    votes call members removed that are at work."""
    node = world.participant(name)
    honest = sorted(world.identity(each).peer_id for each in HONEST)
    ring_id, said = Digest(b""), 0
    for sequence in count(10**6):
        newest = node.rounds._newest
        machine = None if newest is None else newest.driver.machine
        if machine is not None and machine.ring is not None and machine.state != "gathering":
            if machine.ring.ring_id != ring_id:
                ring_id, said = machine.ring.ring_id, 0
            if said < VOTES_MAX:
                said += 1
                invented = digest_of(str(sequence).encode())
                removed = tuple(honest[: sequence % len(honest)])
                node.context.swarm.gossip.say(Vote(ring_id, sequence, invented, removed))
        await trio.sleep(LOOK_SECONDS)


def test_members_that_vote_falsely_part_no_honest_members(tmp_path: Path) -> None:
    """A ring serves a member that has no vote for its header for `decisions.LINGER_SECONDS`. Many
    such rings together took all streams that a neighbour may have, which looked like a failure."""
    world = World(tmp_path, seed=23)

    async def story(nursery: trio.Nursery) -> None:
        names = HONEST + LIARS
        await start(world, nursery, names)
        await world.reach(1, *names)
        await world.until(lambda: all(credited(world, name) > 0 for name in names))
        began = len(headers_of(world, "a"))
        for liar in LIARS:
            nursery.start_soon(vote_falsely, world, liar)
        await trio.sleep(ATTACKED_SECONDS)
        headers = headers_of(world, "a")[began:]
        least = min(sum(tokens_of(world, each, name) > 0 for each in headers) for name in HONEST)
        measured(f"false votes: {len(headers)} rounds, each honest member in {least} at least")
        assert len(headers) > 0.75 * ATTACKED_SECONDS / ROUND_SECONDS
        assert least >= 0.95 * len(headers)
        world.assert_one_chain(*HONEST)

    simulate(world, story)
