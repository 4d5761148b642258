"""A member that calls all the others removed and signs their round alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from gossamer.node.network.transport import TransportError
from gossamer.node.peers.statements.gossip import topics_of
from gossamer.node.rounds import opening
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.ids import Digest, digest_of
from gossamer.protocol.rounds.actions import Action, Computed, RingEvent
from gossamer.protocol.rounds.round import Round
from gossamer.protocol.state.chain import Commit
from gossamer.protocol.state.commit_records import encode_commit
from gossamer.protocol.wire.statements import Vote
from tests.rogue.attacks_averages import member_that_commits_alone
from tests.rogue.rogue import rogue_among
from tests.rogue.test_catalogue import count
from tests.support.measured import measured
from tests.support.node_world import World, simulate, start

NAMES = "abc"


def forged_after(root: Path, accusers: int) -> list[float]:
    """Offences of the kind "forged" that each of three nodes has counted."""
    world = World(root, seed=37, accusers=accusers)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, NAMES)
        await world.reach(4, *NAMES)
        async with rogue_among(world, NAMES, b"lone") as (rogue, victims):
            before = world.path("a")
            with suppress(TransportError):  # banned meanwhile
                await member_that_commits_alone(rogue, victims)
        await world.reach(world.round("a") + 2, *NAMES)
        world.assert_one_chain(*NAMES)
        assert world.path("a")[: len(before)] == before

    simulate(world, story)
    return [count(world, name, "offences", "forged") for name in NAMES]


@pytest.mark.parametrize("accusers", [1, 2])
def test_its_record_is_no_proof_where_two_accusers_are_needed(
    tmp_path: Path, accusers: int
) -> None:
    forged = forged_after(tmp_path, accusers)
    measured(f"{accusers} accusers: {forged} records refused as forged")
    assert all(forged) == (accusers == 2), forged
    assert accusers == 2 or not any(forged)


class ShowsFirst(Round):
    """As soon as it knows the next header, it shows it with its own vote, which calls all others
    removed."""

    show: Callable[[bytes], None]

    def ring_event(self, now: float, ring_id: Digest, event: RingEvent) -> list[Action]:
        actions = super().ring_event(now, ring_id, event)
        followed = self._followed
        if not isinstance(event, Computed) or followed is None:
            return actions
        if followed._proposal is not None:
            header = to_msgpack(followed._proposal.header)
            others = tuple(sorted({*followed.ring.members} - {self._me}))
            alone = self._signer.seal(Vote(ring_id, 2**20, digest_of(header), others)).signed
            type(self).show(encode_commit(Commit(header, followed.ring.envelope, (alone,))))
        return actions


def test_a_member_that_shows_each_round_first_does_not_choose_who_signed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a round of all would weigh no more than one that this member makes alone."""
    names, liar = "abcd", "d"
    world = World(tmp_path, seed=43)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, names)
        await world.reach(2, *names)
        me = world.identity(liar).peer_id
        topic = topics_of(world.nodes[liar].inputs.manifest.run_id)[1]

        def show(record: bytes) -> None:
            transport = world.network.get(me)
            assert transport is not None
            nursery.start_soon(transport.publish, topic, b"\x01" + record)

        hostile = type("Hostile", (ShowsFirst,), {"show": staticmethod(show)})

        def machine(**given: Any) -> Round:
            kind: type[Round] = hostile if given["signer"].me == me else Round
            return kind(**given)

        monkeypatch.setattr(opening, "Round", machine)
        began = world.round("a") + 2
        await world.reach(began + 12, *names)
        world.assert_one_chain(*names)
        for name in names[:-1]:
            participant = world.nodes[name].participant
            assert participant is not None
            heads = participant._heads
            known = [len(heads.signers_of(head)) for head in world.path(name)[began:]]
            measured(f"{name} knows these numbers of signers: {known}")
            assert min(known) > len(names) / 2

    simulate(world, story)
