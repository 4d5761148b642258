"""An honest member passes on a sum that a rogue before it has made up."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
import trio

from gossamer.node.network.transport import TransportError
from gossamer.node.peers.offences import Offences
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import PeerId
from tests.rogue.attacks_claims import member_that_claims_anothers_part
from tests.rogue.rogue import rogue_among
from tests.support.node_world import World, simulate

pytestmark = pytest.mark.usefixtures("quiet")


def test_a_member_that_passes_on_what_it_cannot_check_is_not_banned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, seed=3)
    honest: list[PeerId] = []
    blamed: list[str] = []
    banned: list[PeerId] = []

    def note(self: Offences, peer: PeerId, error: RemoteProtocolError) -> None:
        real(self, peer, error)
        if peer in honest:
            blamed.append(error.reason)
            if self.is_banned(peer):
                banned.append(peer)

    real = Offences.note
    monkeypatch.setattr(Offences, "note", note)

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        for name in "bcd":
            await nursery.start(world.run, name, ["a"])
        await world.reach(4, *"abcd")
        honest.extend(world.identity(name).peer_id for name in "abcd")
        for number in range(4):
            seed = f"rogue that claims {number}".encode()
            async with rogue_among(world, "abcd", seed) as (rogue, victims):
                with suppress(TransportError):
                    await member_that_claims_anothers_part(rogue, victims)
        world.assert_one_chain(*"abcd")

    simulate(world, story)
    assert set(blamed) == {"claimed"}, "the attack took place"
    assert not banned
