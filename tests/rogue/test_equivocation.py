"""A peer that signs two contributions with one number is banned, also where only one is known."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from gossamer.node.network.identity import Identity
from gossamer.node.network.transport import TransportError
from gossamer.node.peers.statements.equivocations import Equivocations
from gossamer.protocol.ids import PeerId, digest_of
from tests.rogue.attacks_gossip import false_proofs, two_contributions_under_one_number
from tests.rogue.catalogue import Attack
from tests.rogue.rogue import Rogue
from tests.rogue.test_catalogue import count
from tests.support.node_world import World, simulate, start

NAMES = "abc"


def rogue_of(attack: Attack) -> Identity:
    return Identity.from_seed(digest_of(b"rogue", attack.__name__.encode()))


def attacked(
    root: Path, attack: Attack, *, latecomer: str = ""
) -> tuple[World, dict[str, set[PeerId]]]:
    """A swarm of three after an attack by a peer that is connected to the first one only, and the
    peers that each node has banned."""
    world = World(root, seed=31)
    banned: dict[str, set[PeerId]] = {}
    identity = rogue_of(attack)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, NAMES)
        await world.reach(4, *NAMES)
        async with world.network.transport(identity) as transport:
            victim = world.identity("a").peer_id
            await transport.connect(world.network.addresses_of(victim)[0])
            rogue = Rogue(transport, identity, random.Random(0))
            await rogue.learn_run(victim)
            with suppress(TransportError):
                await attack(rogue, [victim])
            await trio.sleep(5.0)
        if latecomer:
            await nursery.start(world.run, latecomer, ["b"])
            await world.reach(world.round("b") + 4, latecomer)
        await world.reach(world.round("b") + 2, *NAMES)
        world.assert_one_chain(*NAMES)
        peers = {identity.peer_id, *(world.identity(name).peer_id for name in NAMES)}
        for name in (*NAMES, *latecomer):
            offences = world.nodes[name].first.offences
            banned[name] = {each for each in peers if offences.is_banned(each)}

    simulate(world, story)
    return world, banned


def test_nodes_that_saw_one_of_both_ban_by_the_proof(tmp_path: Path) -> None:
    attack = two_contributions_under_one_number
    world, banned = attacked(tmp_path, attack, latecomer="d")
    assert banned == {name: {rogue_of(attack).peer_id} for name in (*NAMES, "d")}
    assert all(count(world, name, "bans", "equivocation") == 1 for name in banned)


def test_without_the_proof_the_others_see_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the test above would notice if they saw both contributions."""
    monkeypatch.setattr(Equivocations, "found", lambda _self, _proof: None)
    _, banned = attacked(tmp_path, two_contributions_under_one_number)
    assert banned == {name: set() for name in NAMES}


def test_a_false_proof_is_the_offence_of_its_carrier(tmp_path: Path) -> None:
    world, banned = attacked(tmp_path, false_proofs)
    assert banned["a"] == {rogue_of(false_proofs).peer_id}
    assert count(world, "a", "offences", "forged") > 0
    for name in NAMES:
        assert count(world, name, "offences", "equivocation") == 0
