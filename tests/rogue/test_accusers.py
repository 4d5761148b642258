"""A member that works as it should, and accuses others of its rings without a cause."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio
from msgspec.structs import replace

from gossamer.node.network.spreading import PASSING_PEERS_MAX
from gossamer.node.peers.statements.gossip import Gossip, topics_of
from gossamer.node.rounds import opening
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.rounds.actions import (
    Action,
    AverageArrived,
    AverageFinished,
    Compute,
    RingEvent,
)
from gossamer.protocol.rounds.ring.ring_members import REPEATED
from gossamer.protocol.rounds.round import Round
from gossamer.protocol.wire.gossip_messages import encode_own
from gossamer.protocol.wire.statements import Accusation
from tests.support.measured import measured
from tests.support.node_world import World, credited, headers_of, simulate, start, tokens_of

pytestmark = [pytest.mark.usefixtures("quiet"), pytest.mark.long]

HONEST, VICTIM, ACCUSER = "abcd", "c", "e"
MANY = "abcdfghij"
assert len(MANY) > PASSING_PEERS_MAX
NUM_ROUNDS = 40
LOOK_SECONDS = 0.01
SLOW_LINE = 200_000.0
"""Bytes a second: a ring takes long enough for what is said in it to arrive."""

T = TypeVar("T")

Accuses = Callable[[World, Round], PeerId | None]
"""Says whom the accuser accuses now in a ring in which it has accused nobody yet."""


Says = Callable[[World, Gossip, Accusation], None]
"""Says what the accuser says, to whom it wants."""


def to_all(_world: World, gossip: Gossip, accusation: Accusation) -> None:
    gossip.say(accusation)


def far_from(world: World, peer: PeerId) -> list[PeerId]:
    """The members of the accuser's ring that are no neighbours of a member, but the accuser."""
    newest = world.participant(ACCUSER).rounds._newest
    ring = None if newest is None else newest.driver.machine.ring
    members = () if ring is None else ring.members
    if len(members) < 5 or peer not in members:
        return []
    place, me = members.index(peer), world.identity(ACCUSER).peer_id
    far = [members[(place + steps) % len(members)] for steps in range(2, len(members) - 1)]
    return [each for each in far if each != me]


def to_one_before_it_is_out(world: World, gossip: Gossip, accusation: Accusation) -> None:
    """One honest member alone hears it. All hear next that the accuser is out itself. The first
    one says then that both are out."""
    me, first = (world.identity(name).peer_id for name in (ACCUSER, VICTIM))
    said = [gossip._seal(replace(accusation, accused=each)) for each in far_from(world, first)[:2]]
    itself = gossip._seal(Accusation(accusation.ring_id, me, "stalled"))
    transport = world.network.get(me)
    assert transport is not None
    _, topic = topics_of(world.nodes[ACCUSER].inputs.manifest.run_id)
    for peer, connection in sorted(transport.connections.items()):
        for each in [*said, itself] if peer == first else [itself]:
            message, number = b"\x03" + encode_own(each), world.network.next_number()
            transport._send(topic, me, message, number, connection.ends[peer])


async def accuse(world: World, name: str, accuses: Accuses, reason: str, says: Says) -> None:
    """A member accuses others of each ring, until cancelled."""
    node, seen = world.participant(name), set[Digest]()
    while True:
        newest = node.rounds._newest
        machine = None if newest is None else newest.driver.machine
        if machine is not None and machine.ring is not None:
            ring_id = machine.ring.ring_id
            accused = None if ring_id in seen else accuses(world, machine)
            if accused is not None:
                seen.add(ring_id)
                says(world, node.context.swarm.gossip, Accusation(ring_id, accused, reason))
        await trio.sleep(LOOK_SECONDS)


def harm_of(
    root: Path,
    accuses: Accuses,
    reason: str,
    says: Says = to_all,
    accusers: str = ACCUSER,
    honest: str = HONEST,
    num_rounds: int = NUM_ROUNDS,
    line: float = math.inf,
    seed: int = 23,
) -> tuple[int, int]:
    """Returns of how many of `num_rounds` rounds each honest member is credited at least, and in
    how many each sits out at another one at most. `line`: bytes a second of each."""
    names = honest + accusers
    world = World(root, seed=seed)
    for one, other in permutations(names, 2):
        link = world.network.link(world.identity(one).peer_id, world.identity(other).peer_id)
        link.bytes_per_second = line
    sat_out: dict[str, set[int]] = {name: set() for name in honest}
    least = 0

    async def look() -> None:
        peers = {name: world.identity(name).peer_id for name in honest}
        while True:
            for name in honest:
                conduct = world.participant(name).context.swarm.admission.partners.conduct
                number = world.round(name) + 1
                for other, peer in peers.items():
                    if conduct.sits_out(number, peer):
                        sat_out[other].add(number)
            await trio.sleep(LOOK_SECONDS)

    async def story(nursery: trio.Nursery) -> None:
        nonlocal least
        await start(world, nursery, names)
        await world.reach(1, *names)
        await world.until(lambda: all(credited(world, name) > 0 for name in names))
        began = len(headers_of(world, "a"))
        for name in accusers:
            nursery.start_soon(accuse, world, name, accuses, reason, says)
        nursery.start_soon(look)
        await world.reach(world.round("a") + num_rounds, *honest)
        headers = headers_of(world, "a")[began : began + num_rounds]
        least = min(sum(tokens_of(world, each, name) > 0 for each in headers) for name in honest)

    simulate(world, story)
    most = max(map(len, sat_out.values()))
    measured(f"credited in {least} rounds of {num_rounds}, sat out {most}")
    return least, most


def test_a_member_that_accuses_in_the_vote_makes_nobody_sit_out(tmp_path: Path) -> None:
    """It accuses the same member in each ring, as soon as it has all averages itself."""

    def accuses(world: World, machine: Round) -> PeerId | None:
        accused = world.identity(VICTIM).peer_id
        assert machine.ring is not None
        is_voting = machine.state not in ("gathering", "reducing")
        return accused if is_voting and accused in machine.ring.members else None

    least, most = harm_of(tmp_path, accuses, "silent")
    assert least >= 0.95 * NUM_ROUNDS
    assert most == 0


def test_a_member_that_says_that_others_are_out_is_doubted_like_any_other(tmp_path: Path) -> None:
    """It accuses its neighbour in each ring, as if it repeated what others had said."""

    def accuses(world: World, machine: Round) -> PeerId | None:
        return machine.successor if machine.state == "reducing" else None

    least, most = harm_of(tmp_path, accuses, REPEATED)
    assert least >= 0.95 * NUM_ROUNDS
    assert most == 0


@pytest.mark.parametrize(
    ("honest", "num_rounds", "line", "share"),
    [(HONEST, NUM_ROUNDS, math.inf, 0.95), (MANY, 8, SLOW_LINE, 0.8)],
)
def test_a_member_that_repeats_what_it_alone_heard_does_not_sit_out_for_it(
    tmp_path: Path, honest: str, num_rounds: int, line: float, share: float
) -> None:
    """It would look as if it accused one that it is no neighbour of. In a larger swarm nobody
    passes on what others say. In a small one half of the ring is out, and follows the other half
    instead of making a ring with the accuser."""

    def accuses(world: World, machine: Round) -> PeerId | None:
        far = far_from(world, world.identity(VICTIM).peer_id)
        return far[0] if far and machine.state == "reducing" else None

    least, most = harm_of(
        tmp_path, accuses, "stalled", to_one_before_it_is_out,
        honest=honest, num_rounds=num_rounds, line=line, seed=24,
    )  # fmt: skip
    assert least >= share * num_rounds
    assert most == 0


def test_two_that_accuse_a_neighbour_keep_it_out_of_few_rounds(tmp_path: Path) -> None:
    """Two that find the same are believed, and it is another pair each time if they are right.
    They leave it out of their own rings, too."""
    accusers = ACCUSER + "f"

    def accuses(world: World, machine: Round) -> PeerId | None:
        assert machine.ring is not None
        members, victim = machine.ring.members, world.identity(VICTIM).peer_id
        for name in accusers:
            conduct = world.participant(name).context.swarm.admission.partners.conduct
            conduct._record(victim).sit_out.until = machine.number + NUM_ROUNDS
        if machine.state != "reducing" or victim not in members:
            return None
        apart = abs(members.index(victim) - members.index(machine._me))
        return victim if apart in (1, len(members) - 1) else None

    least, _ = harm_of(tmp_path, accuses, "silent", accusers=accusers)
    assert least >= NUM_ROUNDS / 2


class KeepsFromVoting(Round):
    """When all members have all averages, it accuses all others but one, before these have taken
    the outer step: a member that is out does not vote."""

    accusers: frozenset[PeerId]
    """Those that do so together."""
    say: Callable[[PeerId, Accusation], None]

    def ring_event(self, now: float, ring_id: Digest, event: RingEvent) -> list[Action]:
        actions = super().ring_event(now, ring_id, event)
        if not isinstance(event, AverageArrived | AverageFinished):
            return actions
        if self.ring is None or not any(isinstance(action, Compute) for action in actions):
            return actions
        others = [peer for peer in self.ring.members if peer not in self.accusers]
        if not others:
            return actions
        del others[self.number % len(others)]
        ring_id = self.ring.ring_id
        for peer in others:
            type(self).say(self._me, Accusation(ring_id, peer, "silent"))
        return actions


THREAD_SECONDS = 0.3


async def after_a_moment(function: Callable[[], T], /) -> T:
    """The work of a thread, which takes some time."""
    await trio.sleep(THREAD_SECONDS)
    return function()


@pytest.mark.parametrize("accusers", [ACCUSER, ACCUSER + "f"])
def test_members_that_accuse_in_the_vote_keep_few_from_signing_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accusers: str
) -> None:
    """Those that sign rounds choose the head: the accusers and one other would. Each accuser is
    believed once in 16 rounds."""
    names = HONEST + accusers
    world = World(tmp_path, seed=43, run_in_thread=after_a_moment)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, names)
        await world.reach(2, *names)
        gossips = {
            world.identity(name).peer_id: world.participant(name).context.swarm.gossip
            for name in accusers
        }

        async def later(author: PeerId, said: Accusation) -> None:
            await trio.sleep(THREAD_SECONDS / 3)
            gossips[author].say(said)

        def say(author: PeerId, said: Accusation) -> None:
            nursery.start_soon(later, author, said)

        traits = {"accusers": frozenset(gossips), "say": staticmethod(say)}
        hostile = type("Hostile", (KeepsFromVoting,), traits)

        def machine(**given: Any) -> Round:
            kind: type[Round] = hostile if given["signer"].me in gossips else Round
            return kind(**given)

        monkeypatch.setattr(opening, "Round", machine)
        began = world.round("a") + 2
        await world.reach(began + NUM_ROUNDS, *HONEST, seconds=900.0)
        heads = world.participant("a")._heads
        known = [len(heads.signers_of(head)) for head in world.path("a")[began:]]
        measured(f"these numbers of members signed a round: {known}")
        assert sum(number <= 1 + len(accusers) for number in known) <= NUM_ROUNDS / 4

    simulate(world, story)
