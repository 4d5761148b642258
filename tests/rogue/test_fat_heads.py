"""A head whose blocks are far longer than those of any state: what a newcomer fetches for it.

The rogue signs a chain alone and serves its blocks. A newcomer that hears of no other chain follows
it, until it sees that no state comes of it.
"""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import trio
from msgspec.structs import replace

from gossamer.node.network.frames import receive_frame, send_frame
from gossamer.node.network.transport import Stream, TransportError
from gossamer.node.peers.blocks.fetching import INLINE_BYTES_MAX
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol import limits
from gossamer.protocol.accounting.ledger import Ledger
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.ids import Digest, digest_of
from gossamer.protocol.manifest import decode_manifest
from gossamer.protocol.policy.plausible_work import WorkBounds
from gossamer.protocol.state.chain import ChunkAverage, Commit, Header, UpdateIndex
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.state.commit_records import encode_commit
from gossamer.protocol.state.digest import StateIndex, chunk_bytes, index_of
from gossamer.protocol.wire.block_messages import BLOCKS_PROTOCOL, decode_request, encode_reply
from gossamer.protocol.wire.chain_messages import CHAIN_PROTOCOL, decode_chain_request
from tests.rogue.attacks_gossip import claim_of, next_header, roster_of, vote_for
from tests.rogue.rogue import Rogue, encode
from tests.support.builders import announce
from tests.support.measured import measured
from tests.support.node_world import World, initial_weights, simulate

FAT_BYTES = INLINE_BYTES_MAX
"""Of each block: longer ones are stored in threads, of which virtual time knows nothing. A chunk
here has 4 KiB."""

FOLLOWED_SECONDS = 60.0


class FatChain:
    """A chain of the rogue's own, and the blocks that it names."""

    def __init__(self, rogue: Rogue, plan: ChunkPlan, kind: str, num_rounds: int) -> None:
        self._rogue, self._plan = rogue, plan
        self.blocks: dict[Digest, bytes] = {}
        self.num_served = 0
        self.records: list[bytes] = []
        num_chunks = plan.num_chunks
        fat = [self._add(rogue.noise(FAT_BYTES)) for _ in range(2 * num_chunks)]
        index = StateIndex(tuple(fat[:num_chunks]), tuple(fat[num_chunks:]))
        update = UpdateIndex(
            "fp32", tuple(ChunkAverage(each, b"\x01") for each in fat[:num_chunks])
        )
        changes = {
            "state": {
                "state_digest": self._add(to_msgpack(index)),
                "ledger_digest": self._add(to_msgpack(Ledger())),
            },
            "averages": {"update_digest": self._add(to_msgpack(update))},
        }[kind]
        assert rogue.manifest is not None
        tokens = WorkBounds(rogue.manifest).tokens_max
        self._begin = at = rogue.announce(
            announce(), round=0, head=rogue.run_id, tokens_total=0, checkpoint_round=0
        )
        for _ in range(num_rounds):
            roster = roster_of(rogue, at, tokens=tokens)
            header = replace(next_header(rogue, at, [rogue.me], roster, tokens), **changes)
            vote = vote_for(rogue, header)
            self.records.append(encode_commit(Commit(to_msgpack(header), roster, (vote,))))
            at = claim_of(rogue, at, header)
        self.last: Header = header

    def _add(self, block: bytes) -> Digest:
        digest = digest_of(block)
        self.blocks[digest] = block
        return digest

    def add_first_state(self, weights: np.ndarray) -> None:
        """The state before the first round, from which a newcomer would replay the chain."""
        momentum = np.zeros_like(weights)
        for vector in (weights, momentum):
            for chunk in range(self._plan.num_chunks):
                self._add(bytes(chunk_bytes(vector, self._plan, chunk)))
        self._add(to_msgpack(index_of(weights, momentum, self._plan)))

    async def prove(self, stream: Stream) -> None:
        message, _ = await receive_frame(stream)
        after = decode_chain_request(message).after_round
        await send_frame(stream, encode(self.records[after : after + limits.HEADERS_PER_REPLY_MAX]))
        await stream.close()

    async def serve(self, stream: Stream) -> None:
        with suppress(TransportError):
            while True:
                digest = decode_request((await receive_frame(stream))[0])
                block = self.blocks.get(digest, b"")
                self.num_served += len(block) == FAT_BYTES
                await send_frame(stream, encode_reply(digest, found=bool(block)), block)

    async def claim_for(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            while True:
                await self._rogue.gossip(claim_of(self._rogue, self._begin, self.last))
                await trio.sleep(2.0)


@pytest.mark.parametrize(("kind", "num_rounds"), [("state", 3), ("averages", 3)])
def test_a_newcomer_keeps_no_block_that_is_too_long_for_its_place(
    tmp_path: Path, kind: str, num_rounds: int
) -> None:
    world = World(tmp_path, seed=73)

    async def story(nursery: trio.Nursery) -> None:
        identity = world.identity("rogue")
        async with world.network.transport(identity) as transport:
            manifest = decode_manifest(world.signed.manifest)
            rogue = Rogue(transport, identity, random.Random(0), manifest)
            for topic in rogue.topics():
                transport.subscribe(topic, lambda _author, _data: True)
            plan = ChunkPlan(manifest.model.num_parameters, manifest.outer.chunk_elements)
            chain = FatChain(rogue, plan, kind, num_rounds)
            chain.blocks.update((digest_of(each), each) for each in world._blocks)
            chain.add_first_state(initial_weights(manifest.seed, plan.num_elements))
            transport.handle(CHAIN_PROTOCOL, chain.prove)
            transport.handle(BLOCKS_PROTOCOL, chain.serve)
            await nursery.start(world.run, "b", ["rogue"])
            await chain.claim_for(FOLLOWED_SECONDS)
        folder = StateDir(world.root / "b").blocks_path
        sizes = [each.stat().st_size for each in folder.rglob("*") if each.is_file()]
        fat = sizes.count(FAT_BYTES)
        measured(f"{kind}: {chain.num_served} blocks were asked for, {fat} kept")
        assert chain.num_served > 0
        assert fat == 0

    simulate(world, story)
