"""Strangers that hold all places of a service, and ask it for nothing."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import trio

from gossamer.node.network.frames import receive_frame, send_frame
from gossamer.node.network.transport import TransportError
from gossamer.node.peers.blocks import block_exchange
from gossamer.protocol.ids import PeerId, digest_of
from gossamer.protocol.state.chain import credits_of
from gossamer.protocol.wire.block_messages import BLOCKS_PROTOCOL, encode_request
from tests.rogue.rogue import Rogue, rogue_among
from tests.support.measured import measured
from tests.support.node_world import World, newest_header, simulate, start

pytestmark = pytest.mark.usefixtures("quiet")

STREAMS_MAX = 16
"""As many as one stranger may have, and more than all strangers together."""

AGAIN_SECONDS = 0.5
ASK_SECONDS = 0.25

JOIN_SECONDS = 30.0
"""A newcomer is credited some 3 s after its start, where nobody holds it up."""


async def hold(rogue: Rogue, victim: PeerId, *, asks: bool) -> None:
    """Opens streams for blocks, and again as soon as they end, until cancelled."""

    async def hold_one() -> None:
        while True:
            with suppress(TransportError):
                stream = await rogue.transport.open_stream(victim, BLOCKS_PROTOCOL)
                try:
                    while asks:
                        await send_frame(stream, encode_request(digest_of(b"nowhere")))
                        await receive_frame(stream)
                        await trio.sleep(ASK_SECONDS)
                    await stream.receive_exactly(1)
                finally:
                    with trio.CancelScope(shield=True):
                        await stream.reset()
            await trio.sleep(AGAIN_SECONDS)

    async with trio.open_nursery() as nursery:
        for _ in range(STREAMS_MAX):
            nursery.start_soon(hold_one)


@pytest.mark.parametrize("asks", [False, True], ids=["idle", "asking"])
def test_a_newcomer_gets_in_beside_strangers_that_hold_all_streams(
    tmp_path: Path, asks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a stream costs next to nothing. A newcomer has no state without the blocks."""
    monkeypatch.setattr(block_exchange, "STREAMS_MAX", STREAMS_MAX)
    names = "ab"
    world = World(tmp_path, seed=3)
    newcomer = world.identity("c").peer_id

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, names)
        await world.reach(4, *names)
        async with (
            rogue_among(world, names, b"rogue that holds") as (rogue, victims),
            trio.open_nursery() as holders,
        ):
            for victim in victims:
                holders.start_soon(partial(hold, rogue, victim, asks=asks))
            await trio.sleep(2.0)
            began = trio.current_time()
            await nursery.start(world.run, "c", ["a"])
            await world.until(
                lambda: newcomer in credits_of(newest_header(world, "a")), JOIN_SECONDS, 0.1
            )
            measured(f"the newcomer is credited after {trio.current_time() - began:.1f} s")
            holders.cancel_scope.cancel()
        world.assert_one_chain(*names, "c")

    simulate(world, story)
