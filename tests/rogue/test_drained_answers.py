"""What one stranger makes a node answer by questions of a few bytes, and a newcomer meanwhile."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from gossamer.node.network.frames import receive_frame, send_frame
from gossamer.node.network.transport import TransportError
from gossamer.node.peers.blocks.uploads import PAGE_BYTES, TURN_BYTES_MIN
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.ids import DIGEST_BYTES, Digest, PeerId
from gossamer.protocol.wire.block_messages import BLOCKS_PROTOCOL, encode_request
from gossamer.protocol.wire.chain_messages import CHAIN_PROTOCOL, ChainRequest
from gossamer.protocol.wire.checkpoint_messages import CHECKPOINT_PROTOCOL, PathRequest
from gossamer.protocol.wire.run_messages import RUN_PROTOCOL
from tests.rogue.rogue import Rogue
from tests.support.measured import measured
from tests.support.node_world import World, simulate

NUM_STREAMS = 4
ASKING_SECONDS = 10.0
BUDGET_MBIT = 8
BUDGET = BUDGET_MBIT * 1_000_000 / 8
"""What strangers may have of the upload in a second, in bytes."""

QUESTIONS: dict[str, tuple[str, int]] = {
    "records": (CHAIN_PROTOCOL, PAGE_BYTES),
    "checkpoints": (CHECKPOINT_PROTOCOL, PAGE_BYTES),
    "no block": (BLOCKS_PROTOCOL, TURN_BYTES_MIN),
    "manifest": (RUN_PROTOCOL, TURN_BYTES_MIN),
}
"""The protocol of each question, and the bytes for which its answer counts."""


async def question_of(rogue: Rogue, victim: PeerId, protocol: str) -> bytes:
    if protocol == CHAIN_PROTOCOL:
        return to_msgpack(ChainRequest((await rogue.head(victim)).head, 0))
    if protocol == CHECKPOINT_PROTOCOL:
        return to_msgpack(PathRequest(0))
    return encode_request(Digest(bytes(DIGEST_BYTES))) if protocol == BLOCKS_PROTOCOL else b""


@pytest.mark.parametrize("kind", QUESTIONS)
def test_a_stranger_that_asks_without_end_gets_what_the_budget_has(
    tmp_path: Path, kind: str
) -> None:
    protocol, counted_bytes = QUESTIONS[kind]
    world = World(tmp_path, seed=71, settings={"serve_limit": (str(BUDGET_MBIT),)})
    num_answers = 0

    async def ask(rogue: Rogue, victim: PeerId, question: bytes) -> None:
        """Asks again as soon as there is an answer."""
        nonlocal num_answers
        while True:
            with suppress(TransportError):
                stream = await rogue.transport.open_stream(victim, protocol)
                await send_frame(stream, question)
                await receive_frame(stream)
                num_answers += 1
                await stream.reset()

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await world.reach(4, "a")
        identity = world.identity("rogue")
        async with world.network.transport(identity) as transport:
            victim = world.identity("a").peer_id
            await transport.connect(world.network.addresses_of(victim)[0])
            rogue = Rogue(transport, identity, random.Random(0))
            await rogue.learn_run(victim)
            question = await question_of(rogue, victim, protocol)
            async with trio.open_nursery() as asking:
                for _ in range(NUM_STREAMS):
                    asking.start_soon(ask, rogue, victim, question)
                await trio.sleep(ASKING_SECONDS)
                measured(f"{kind}: {num_answers} answers in {ASKING_SECONDS:.0f} s")
                assert 0 < num_answers <= 1.05 * ASKING_SECONDS * BUDGET / counted_bytes + 1
                # A newcomer shares the budget with the rogue, and comes in beside it.
                await nursery.start(world.run, "b", ["a"])
                await world.until(lambda: world.round("b") > 0, 60.0)
                asking.cancel_scope.cancel()
        await world.reach(world.round("a") + 2, "a", "b")
        world.assert_one_chain("a", "b")

    simulate(world, story)
