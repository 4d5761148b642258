"""Strangers share a budget of upload, and members go first; over the network in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from gossamer.node.base.rate_limit import BURST_SECONDS, rate_limit_of
from gossamer.node.network.frames import receive_frame, send_frame
from gossamer.node.network.identity import Identity
from gossamer.node.network.transport import Transport, TransportError
from gossamer.node.peers.blocks import block_exchange
from gossamer.node.peers.blocks.block_exchange import BlockService
from gossamer.node.peers.blocks.uploads import MEMBERS_FIRST_SECONDS, TURN_BYTES_MIN, Uploads
from gossamer.node.storage.blocks import BlockStore
from gossamer.protocol.ids import digest_of
from gossamer.protocol.limits import MIB
from gossamer.protocol.wire.block_messages import BLOCKS_PROTOCOL, encode_request
from tests.support.measured import measured
from tests.support.memory_transport import MemoryNetwork, run_simulated

BLOCK = bytes(60_000)
MBIT = 4
"""The budget of strangers."""

BYTES_PER_SECOND = MBIT * 1_000_000 / 8


def identity_of(name: str) -> Identity:
    return Identity.from_seed(name.encode().ljust(32))


MEMBER = identity_of("member").peer_id


@pytest.fixture(autouse=True)
def few_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_exchange, "STREAMS_MAX", 32)


class World:
    """A node that serves one block, and peers that ask for it again and again."""

    def __init__(self, nursery: trio.Nursery, folder: Path, server: Transport) -> None:
        self.nursery = nursery
        self.server = server
        self.received: dict[str, int] = {}
        """Bytes that each peer got."""
        store = BlockStore(folder, 64 * MIB)
        store.put(BLOCK)
        uploads = Uploads(rate_limit_of([str(MBIT)]))
        uploads.is_member = lambda peer: peer == MEMBER
        self.service = BlockService(server, store, uploads=uploads)

    async def drain(self, name: str, client: Transport, num_streams: int) -> None:
        """A peer takes what it gets by some streams, until cancelled."""
        self.received[name] = 0

        async def take() -> None:
            try:
                stream = await client.open_stream(self.server.peer_id, BLOCKS_PROTOCOL)
                while True:
                    await send_frame(stream, encode_request(digest_of(BLOCK)))
                    _, payload = await receive_frame(stream)
                    self.received[name] += len(payload)
            except TransportError:
                pass

        async with trio.open_nursery() as nursery:
            for _ in range(num_streams):
                nursery.start_soon(take)


@asynccontextmanager
async def world(folder: Path, *names: str) -> AsyncIterator[tuple[World, dict[str, Transport]]]:
    network = MemoryNetwork()
    ready: dict[str, Transport] = {}

    async def run(name: str) -> None:
        async with network.transport(identity_of(name)) as transport:
            ready[name] = transport
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        for name in ("server", *names):
            nursery.start_soon(run, name)
        await trio.sleep(0.1)
        server = ready.pop("server")
        for client in ready.values():
            await client.connect(server.addresses()[0])
        yield World(nursery, folder, server), ready
        nursery.cancel_scope.cancel()


def test_a_stranger_with_fifteen_streams_gets_no_more_than_the_budget(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path, "stranger") as (here, clients):
            here.nursery.start_soon(here.drain, "stranger", clients["stranger"], 15)
            await trio.sleep(10.0)
            expected = 10.0 * BYTES_PER_SECOND
            measured(
                f"15 streams of a stranger get {here.received['stranger'] / expected:.2f} of the "
                "budget for strangers"
            )
            assert 0.8 * expected < here.received["stranger"] <= 1.05 * expected

    run_simulated(main)


def test_strangers_share_by_peer_and_not_by_stream(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path, "greedy", "newcomer") as (here, clients):
            here.nursery.start_soon(here.drain, "greedy", clients["greedy"], 15)
            await trio.sleep(1.0)
            here.nursery.start_soon(here.drain, "newcomer", clients["newcomer"], 2)
            await trio.sleep(10.0)
            assert here.received["newcomer"] > 0.4 * 10.0 * BYTES_PER_SECOND

    run_simulated(main)


def test_a_member_has_no_budget_and_strangers_give_way(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path, "stranger", "member") as (here, clients):
            here.nursery.start_soon(here.drain, "stranger", clients["stranger"], 15)
            await trio.sleep(2.0)
            with trio.move_on_after(1.0):
                await here.drain("member", clients["member"], 4)
            measured(
                "a member beside it gets "
                f"{here.received['member'] / BYTES_PER_SECOND:.0f} times that budget"
            )
            assert here.received["member"] > 10 * BYTES_PER_SECOND

    run_simulated(main)


def test_strangers_leave_streams_to_members(tmp_path: Path) -> None:
    names = [f"stranger {number}" for number in range(4)]

    async def main() -> None:
        async with world(tmp_path, *names, "member") as (here, clients):
            for name in names:  # 60 streams, and there are 32 in all
                here.nursery.start_soon(here.drain, name, clients[name], 15)
            await trio.sleep(1.0)
            with trio.move_on_after(1.0):
                await here.drain("member", clients["member"], 4)
            assert here.received["member"] > 0

    run_simulated(main)


def test_pages_of_records_do_not_wait_behind_the_blocks_of_the_same_peer(tmp_path: Path) -> None:
    """A newcomer that fetches a state hears of newer heads meanwhile, and asks for their records
    with a limit of time (`chain_records.REQUEST_SECONDS`)."""

    async def main() -> None:
        async with world(tmp_path, "newcomer") as (here, clients):
            here.nursery.start_soon(here.drain, "newcomer", clients["newcomer"], 15)
            await trio.sleep(5.0)
            began = trio.current_time()
            async with here.service.uploads.page(clients["newcomer"].peer_id):
                # Of each kind one piece stands in the line.
                assert trio.current_time() - began < 2 * len(BLOCK) / BYTES_PER_SECOND

    run_simulated(main)


def test_short_answers_count_as_longer_ones() -> None:
    async def main() -> None:
        uploads = Uploads(rate_limit_of([str(MBIT)]))
        stranger = identity_of("stranger").peer_id
        began = trio.current_time()
        for _ in range(100):
            await uploads.turn(stranger, 1)
        least_seconds = 99 * TURN_BYTES_MIN / BYTES_PER_SECOND - BURST_SECONDS
        assert trio.current_time() - began >= least_seconds

    run_simulated(main)


def test_a_member_that_does_not_read_holds_strangers_up_for_a_moment_only() -> None:
    async def main() -> None:
        uploads = Uploads()
        uploads.is_member = lambda peer: peer == MEMBER
        stranger = identity_of("stranger").peer_id
        with uploads.serving(MEMBER):
            began = trio.current_time()
            await uploads.turn(stranger, 1)
            assert trio.current_time() - began == pytest.approx(MEMBERS_FIRST_SECONDS)
        began = trio.current_time()
        await uploads.turn(stranger, 1)
        assert trio.current_time() == began
        assert uploads._turns == {}

    run_simulated(main)
