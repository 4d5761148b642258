"""An account of work knows the `Ready` of each offer: whole nodes in virtual time."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from gossamer.node.storage.chain.chain_store import ChainStore
from gossamer.protocol.accounting.work_records import offered_by
from gossamer.protocol.ids import Digest
from tests.support.node_world import World, simulate, start

ROUND = 8


@pytest.mark.parametrize(
    ("codec", "overlap"), [("fp32", False), ("int4", True), ("sparse", False), ("distro", False)]
)
def test_the_offer_that_a_round_took_has_the_number_of_its_ready(
    tmp_path: Path, codec: str, overlap: bool
) -> None:
    """With shared steps the `Ready` is signed before the work of the offer is done."""
    world = World(tmp_path, seed=41, codec=codec, overlap=overlap, wait_for_peers=1)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "ab")
        await world.reach(ROUND, *"ab")
        for name in "ab":
            context = world.participant(name).context
            chain: ChainStore = context.committed.chain
            taken = [each for each in context.work.account.state.offers if each.taking is not None]
            assert len(taken) >= ROUND // 2
            for offer in taken:
                assert offer.taking is not None
                told = offered_by(context.me, chain.commit(Digest(offer.taking.head)))
                assert told is not None
                assert (offer.life, offer.sequence) == (told.life, told.sequence)
                assert offer.sequence

    simulate(world, story)
