"""A member that works as it should, and accuses others of its rings without a cause."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio

from gossamer.node.rounds import opening
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.rounds.accusations import REPEATED
from gossamer.protocol.rounds.actions import Action, Compute
from gossamer.protocol.rounds.inventory import Average, Payload
from gossamer.protocol.rounds.round import Round
from gossamer.protocol.wire.statements import Accusation
from tests.support.measured import measured
from tests.support.node_world import World, credited, headers_of, simulate, start, tokens_of

pytestmark = [pytest.mark.usefixtures("quiet"), pytest.mark.long]

HONEST, VICTIM, ACCUSER = "abcd", "c", "e"
NUM_ROUNDS = 40
LOOK_SECONDS = 0.01

T = TypeVar("T")

Accuses = Callable[[World, Round], PeerId | None]
"""Says whom the accuser accuses now in a ring in which it has accused nobody yet."""


async def accuse(world: World, accuses: Accuses, reason: str) -> None:
    """Accuses members of each ring, until cancelled."""
    node, seen = world.participant(ACCUSER), set[Digest]()
    while True:
        newest = node.rounds._newest
        machine = None if newest is None else newest.driver.machine
        if machine is not None and machine.ring is not None:
            ring_id = machine.ring.ring_id
            accused = None if ring_id in seen else accuses(world, machine)
            if accused is not None:
                seen.add(ring_id)
                node.context.swarm.gossip.say(Accusation(ring_id, accused, reason))
        await trio.sleep(LOOK_SECONDS)


def harm_of(root: Path, accuses: Accuses, reason: str) -> tuple[int, int]:
    """Returns of how many of `NUM_ROUNDS` rounds each honest member is credited at least, and in
    how many each sits out at another one at most."""
    names = HONEST + ACCUSER
    world = World(root, seed=23)
    sat_out: dict[str, set[int]] = {name: set() for name in HONEST}
    least = 0

    async def look() -> None:
        peers = {name: world.identity(name).peer_id for name in HONEST}
        while True:
            for name in HONEST:
                conduct = world.participant(name).context.swarm.admission.conduct
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
        nursery.start_soon(accuse, world, accuses, reason)
        nursery.start_soon(look)
        await world.reach(world.round("a") + NUM_ROUNDS, *HONEST)
        headers = headers_of(world, "a")[began : began + NUM_ROUNDS]
        least = min(sum(tokens_of(world, each, name) > 0 for each in headers) for name in HONEST)

    simulate(world, story)
    most = max(map(len, sat_out.values()))
    measured(f"credited in {least} rounds of {NUM_ROUNDS}, sat out {most}")
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


class KeepsFromVoting(Round):
    """When all members have all averages, it accuses all others but one, before these have taken
    the outer step: a member that is out does not vote."""

    accusers: frozenset[PeerId]
    """Those that do so together."""
    say: Callable[[PeerId, Accusation], None]

    def average_received(
        self, now: float, ring_id: Digest, sender: PeerId, chunk: int, average: Average
    ) -> list[Action]:
        return self._accusing(super().average_received(now, ring_id, sender, chunk, average))

    def average_finished(
        self, now: float, ring_id: Digest, chunk: int, payload: Payload, digest: Digest
    ) -> list[Action]:
        return self._accusing(super().average_finished(now, ring_id, chunk, payload, digest))

    def _accusing(self, actions: list[Action]) -> list[Action]:
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
            kind: type[Round] = hostile if given["me"] in gossips else Round
            return kind(**given)

        monkeypatch.setattr(opening, "Round", machine)
        began = world.round("a") + 2
        await world.reach(began + NUM_ROUNDS, *HONEST, seconds=900.0)
        heads = world.participant("a")._heads
        known = [len(heads.signers_of(head)) for head in world.path("a")[began:]]
        measured(f"these numbers of members signed a round: {known}")
        assert sum(number <= 1 + len(accusers) for number in known) <= NUM_ROUNDS / 4

    simulate(world, story)
