"""Serving and fetching blocks, over the network in memory.

Blocks are small here, so that they are read and written in the event loop: trio's `MockClock` jumps
whenever all tasks wait, and does not know of threads. One test with large blocks uses real time.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import pytest
import structlog
import trio

from gossamer.node.base.disk_health import DiskFullError
from gossamer.node.network.frames import receive_frame, send_frame
from gossamer.node.network.identity import Identity
from gossamer.node.network.transport import Stream, StreamClosed, Transport, TransportError
from gossamer.node.peers.blocks import block_exchange
from gossamer.node.peers.blocks.block_exchange import (
    IDLE_SECONDS,
    SEND_SECONDS,
    STREAMS_PER_PEER_MAX,
    TELL_SECONDS,
    BlockService,
    FetchError,
)
from gossamer.node.peers.blocks.fetching import (
    PEERS_MAX,
    REQUEST_SECONDS,
    REQUESTS_PER_PEER_MAX,
    TRIAL_SECONDS,
)
from gossamer.node.peers.blocks.late_blocks import HEDGE_SECONDS, QUIET_SECONDS
from gossamer.node.peers.blocks.stream_places import ServedStream
from gossamer.node.storage.blocks import BlockStore
from gossamer.protocol.codecs.chunk_values import Buffer
from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.limits import BLOCK_BYTES_MAX, KIB, MIB
from gossamer.protocol.wire.block_messages import (
    BLOCKS_PROTOCOL,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
)
from gossamer.protocol.wire.framing import encode_prefix
from tests.support.memory_stream import WINDOW_BYTES
from tests.support.memory_transport import MemoryNetwork, run_simulated

if TYPE_CHECKING:
    from trio_typing import TaskStatus

QUOTA_BYTES = 64 * MIB


Handler = Callable[[Stream], Awaitable[None]]


def identity_of(name: str) -> Identity:
    return Identity.from_seed(name.encode().ljust(32))


class CountingService(BlockService):
    """Counts the whole blocks that it serves."""

    blocks_served = 0
    bytes_served = 0

    async def _send_block(
        self, place: ServedStream, stream: Stream, digest: Digest, file: BinaryIO
    ) -> None:
        await super()._send_block(place, stream, digest, file)
        self.blocks_served += 1
        self.bytes_served += self._store.size(digest) or 0


class World:
    """A node named "me" that fetches, and whatever peers the test adds; all connected to it."""

    def __init__(self, nursery: trio.Nursery, folder: Path) -> None:
        self.network = MemoryNetwork()
        self.nursery = nursery
        self.folder = folder
        self.offences: list[tuple[PeerId, str]] = []
        self.asked: list[PeerId] = []
        """Peers to which "me" opened a stream, in order."""
        self.peers: list[PeerId] = []

    async def start(self) -> None:
        self.transport = await self.join("me")
        self.store, self.service = self.node(self.transport)
        open_stream = self.transport.open_stream

        async def note_and_open(peer_id: PeerId, protocol: str, *, at_once: bool = False) -> Stream:
            self.asked.append(peer_id)
            return await open_stream(peer_id, protocol, at_once=at_once)

        self.transport.open_stream = note_and_open  # type: ignore[method-assign]

    async def join(self, name: str) -> Transport:
        async def run(task_status: TaskStatus[Transport]) -> None:
            async with self.network.transport(identity_of(name)) as transport:
                task_status.started(transport)
                await trio.sleep_forever()

        return await self.nursery.start(run)

    def node(self, transport: Transport) -> tuple[BlockStore, CountingService]:
        store = BlockStore(self.folder / transport.peer_id, QUOTA_BYTES)
        service = CountingService(
            transport,
            store,
            on_offence=lambda peer_id, error: self.offences.append((peer_id, error.reason)),
        )
        return store, service

    async def seed(self, name: str, blocks: Sequence[bytes]) -> CountingService:
        """An honest peer with these blocks."""
        transport = await self.join(name)
        store, service = self.node(transport)
        for each in blocks:
            store.put(each)
        await self.transport.connect(transport.addresses()[0])
        self.peers.append(transport.peer_id)
        return service

    async def stranger(self, name: str, handler: Handler) -> PeerId:
        """A peer that answers as it likes."""
        transport = await self.join(name)
        transport.handle(BLOCKS_PROTOCOL, handler)
        await self.transport.connect(transport.addresses()[0])
        self.peers.append(transport.peer_id)
        return transport.peer_id

    async def visitor(self, name: str) -> Transport:
        """A peer that is about to ask the last seed for blocks as it likes."""
        transport = await self.join(name)
        await transport.connect(self.network.addresses_of(self.peers[-1])[0])
        return transport

    async def visit(self, name: str) -> Stream:
        """A visitor's first stream."""
        return await (await self.visitor(name)).open_stream(self.peers[-1], BLOCKS_PROTOCOL)

    async def fetch(self, blocks: Sequence[bytes]) -> None:
        """Fetch from all peers."""
        await self.service.fetch(digests(blocks), lambda: self.peers)

    def has(self, blocks: Sequence[bytes]) -> bool:
        return all(self.store.get(digest_of(each)) == each for each in blocks)


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    async with trio.open_nursery() as nursery:
        here = World(nursery, folder)
        await here.start()
        yield here
        nursery.cancel_scope.cancel()


def run(test: Callable[[], Awaitable[None]]) -> None:
    run_simulated(test)


def make_blocks(count: int, num_bytes: int = 400) -> list[bytes]:
    return [index.to_bytes(4, "big") * (num_bytes // 4) for index in range(count)]


def digests(blocks: Sequence[bytes]) -> list[Digest]:
    return [digest_of(each) for each in blocks]


async def silent(stream: Stream) -> None:
    await trio.sleep_forever()


def test_blocks_come_from_several_peers(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:
            blocks = make_blocks(60)
            seeds = [await here.seed(name, blocks) for name in "abc"]
            await here.fetch([*blocks, *blocks[:5]])
            assert here.has(blocks)
            assert sum(seed.blocks_served for seed in seeds) == 60
            assert sum(seed.bytes_served for seed in seeds) == 60 * 400
            assert all(seed.blocks_served > 0 for seed in seeds)
            assert here.offences == []

    run(main)


def test_a_download_leaves_no_stream_behind(tmp_path: Path) -> None:
    """A peer has so many of them; who follows the rounds opens one or two each round."""

    async def test() -> None:
        async with world(tmp_path) as here:
            blocks = make_blocks(2 * STREAMS_PER_PEER_MAX)
            await here.seed("seed", blocks)
            for block in blocks:
                await here.fetch([block])
            assert here.has(blocks)
            assert trio.current_time() < IDLE_SECONDS

    run(test)


def test_a_peer_is_asked_whether_it_has_a_block(tmp_path: Path) -> None:
    async def nonsense(stream: Stream) -> None:
        await send_frame(stream, b"nonsense")

    async def main() -> None:
        async with world(tmp_path) as here:
            (block,) = make_blocks(1)
            await here.seed("has it", [block])
            await here.seed("lacks it", [])
            liar = await here.stranger("talks nonsense", nonsense)
            await here.stranger("says nothing", silent)
            answers = [await here.service.is_at(peer, digest_of(block)) for peer in here.peers]
            assert answers == [True, False, False, False]
            assert not here.store.has(digest_of(block))
            assert [peer for peer, _ in here.offences] == [liar]
            here.service.spares_line = lambda: True
            assert not await here.service.is_at(here.peers[0], digest_of(block))

    run(main)


def test_a_peer_that_is_asked_whether_it_has_a_block_does_not_send_it_whole(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:
            (block,) = make_blocks(1, 4 * WINDOW_BYTES)
            seed = await here.seed("has it", [block])
            assert await here.service.is_at(here.peers[0], digest_of(block))
            assert seed.blocks_served == 0

    trio.run(main)


@pytest.mark.parametrize("metered", ["the one that fetches", "the one that serves"])
def test_a_line_that_becomes_metered_ends_a_fetch(tmp_path: Path, metered: str) -> None:
    """What has come by then stays, and the fetch goes on from there when the line is free."""

    async def main() -> None:
        async with world(tmp_path) as here:
            blocks = make_blocks(20)
            seed = await here.seed("sends a block a second", blocks)
            send = seed._send_block

            async def send_slowly(*arguments: Any, **more: Any) -> None:
                await trio.sleep(1)
                await send(*arguments, **more)

            seed._send_block = send_slowly  # type: ignore[method-assign]
            service = seed if metered == "the one that serves" else here.service
            service.spares_line = lambda: here.store.num_blocks() >= 5
            why = "none of them sent these" if service is seed else "this node's line is metered"
            with pytest.raises(FetchError, match=why):
                await here.fetch(blocks)
            assert here.store.num_blocks() in (5, 6)
            service.spares_line = lambda: False
            await here.fetch(blocks)
            assert here.has(blocks)

    run(main)


def test_what_is_here_is_not_fetched(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:
            blocks = make_blocks(10)
            seed = await here.seed("a", blocks)
            for each in blocks[:7]:
                here.store.put(each)
            await here.fetch(blocks)
            assert here.has(blocks)
            assert seed.blocks_served == 3
            await here.fetch(blocks)
            assert seed.blocks_served == 3
            assert len(here.asked) == 1

    run(main)


def test_one_block_is_asked_of_one_peer(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:
            blocks = make_blocks(1)
            for name in "abcdef":
                await here.seed(name, blocks)
            await here.fetch(blocks)
            assert len(here.asked) == 1

    run(main)


def test_each_peer_has_a_part(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:
            blocks = make_blocks(30)
            await here.seed("a", blocks[:12])
            await here.seed("b", blocks[10:25])
            await here.seed("c", blocks[25:])
            await here.fetch(blocks)
            assert here.has(blocks)

    run(main)


def test_a_missing_block_fails_the_fetch_after_the_others_are_stored(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:
            blocks = make_blocks(20)
            await here.seed("a", blocks[:17])
            await here.seed("b", blocks[:17])
            with pytest.raises(FetchError, match=r"3 of 20 blocks are missing.*asked 2 peers") as e:
                await here.fetch(blocks)
            assert set(e.value.missing) == set(digests(blocks[17:]))
            assert here.has(blocks[:17])
            assert here.store.num_pinned() == 0

    run(main)


def test_no_peer_to_ask(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:
            here.peers = [here.transport.peer_id]  # ourselves do not count
            with pytest.raises(FetchError, match=r"2 of 2 blocks.*no peer to ask"):
                await here.fetch(make_blocks(2))
            assert trio.current_time() < 60

    run(main)


def test_a_peer_that_comes_later_is_asked(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as here, trio.open_nursery() as nursery:
            blocks = make_blocks(5)
            nursery.start_soon(here.fetch, blocks)
            await trio.sleep(3)
            await here.seed("late", blocks)
        assert here.has(blocks)

    run(main)


@pytest.mark.parametrize(
    "lie",
    [
        lambda data: b"X" + data[1:],
        lambda data: data[:-1],
        lambda data: data + b"X",
    ],
    ids=["flipped", "cut", "longer"],
)
def test_wrong_bytes_are_an_offence_and_come_from_another_peer(
    tmp_path: Path, lie: Callable[[bytes], bytes]
) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:
            blocks = make_blocks(30)
            by_digest = dict(zip(digests(blocks), blocks, strict=True))

            async def liar(stream: Stream) -> None:
                while True:
                    message, _ = await receive_frame(stream)
                    digest = decode_request(message)
                    await send_frame(
                        stream, encode_reply(digest, found=True), lie(by_digest[digest])
                    )

            liar_id = await here.stranger("liar", liar)
            with pytest.raises(FetchError, match="30 of 30"):
                await here.fetch(blocks)
            assert here.asked == [liar_id]  # never asked again
            assert here.store.num_blocks() == 0
            await here.seed("honest", blocks)
            await here.fetch(blocks)
            assert here.has(blocks)
            assert set(here.offences) == {(liar_id, "forged")}
            assert here.service.verify_failures == len(here.offences)

    run(main)


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (lambda digest: (b"not msgpack \xc1", b""), "malformed"),
        (lambda digest: (encode_reply(digest_of(b"other"), found=True), b"other"), "malformed"),
        (lambda digest: (encode_reply(digest, found=True), b""), "malformed"),
        (lambda digest: (encode_reply(digest, found=False), b"bytes"), "malformed"),
        (lambda digest: (encode_reply(Digest(b"short"), found=True), b"x"), "malformed"),
        (lambda digest: (bytes(1000), b""), "oversized"),
    ],
    ids=["garbage", "other block", "found nothing", "bytes for no", "short digest", "long message"],
)
def test_a_reply_that_breaks_the_protocol_is_an_offence(
    tmp_path: Path, reply: Callable[[Digest], tuple[bytes, bytes]], reason: str
) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:

            async def rogue(stream: Stream) -> None:
                request, _ = await receive_frame(stream)
                await send_frame(stream, *reply(decode_request(request)))
                await trio.sleep_forever()

            rogue_id = await here.stranger("rogue", rogue)
            with pytest.raises(FetchError, match="1 of 1"):
                await here.fetch(make_blocks(1))
            assert here.offences == [(rogue_id, reason)]

    run(main)


def test_a_block_that_is_too_long_is_neither_read_nor_an_offence(tmp_path: Path) -> None:
    """An index of a liar may name a good block of the honest, such as a shard of the corpus."""

    async def main() -> None:
        async with world(tmp_path) as here:
            short, long = make_blocks(1), make_blocks(1, 40_000)
            await here.seed("honest", [*short, *long])
            wanted = digests([*long, *short])

            def sources() -> list[PeerId]:
                return here.peers

            with pytest.raises(FetchError):
                await here.service.fetch(wanted, sources, bytes_max=400)
            assert here.store.num_blocks() == 0
            assert here.offences == []
            assert here.asked == here.peers, "asked once in this download"
            received = here.transport.traffic()[BLOCKS_PROTOCOL][1]
            assert received <= WINDOW_BYTES + 1000
            await here.service.fetch(digests(short), sources, bytes_max=400)
            await here.service.fetch(wanted, sources)
            assert here.has([*short, *long])

    run(main)


def test_a_dead_peer_and_one_that_dies_midway_cost_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:
            blocks = make_blocks(40)
            by_digest = dict(zip(digests(blocks), blocks, strict=True))

            async def mortal(stream: Stream) -> None:
                for _ in range(3):
                    message, _ = await receive_frame(stream)
                    digest = decode_request(message)
                    await send_frame(stream, encode_reply(digest, found=True), by_digest[digest])
                await stream.reset()

            await here.stranger("mortal", mortal)
            here.peers.append(PeerId("not connected"))
            await here.seed("steady", blocks)
            await here.fetch(blocks)
            assert here.has(blocks)
            assert here.offences == []
            assert trio.current_time() < 5

    run(main)


@pytest.mark.parametrize("count", [1, 3, 40])
def test_a_peer_that_hangs_is_overtaken(tmp_path: Path, count: int) -> None:
    """The blocks that the peer was asked for are late after `hedge_seconds`, and other peers are
    asked."""

    async def main() -> None:
        async with world(tmp_path) as here:
            blocks = make_blocks(count)
            for name in ("hang 1", "hang 2", "hang 3"):
                await here.stranger(name, silent)
            await here.seed("steady", blocks)
            await here.fetch(blocks)
            assert here.has(blocks)
            assert trio.current_time() < 30

    run(main)


@pytest.mark.parametrize("count", [1, 3, 40])
def test_a_peer_from_which_nothing_comes_holds_a_fetch_up_for_a_moment(
    tmp_path: Path, count: int
) -> None:
    """A machine that was just stopped is asked first, as every download may do."""

    async def main() -> None:
        async with world(tmp_path) as here:
            blocks = make_blocks(count)
            stopped = await here.stranger("stopped", silent)
            await here.seed("steady", blocks)
            begin = trio.current_time()

            def stopped_first() -> list[PeerId]:
                return [stopped] if trio.current_time() == begin else here.peers

            await here.service.fetch(digests(blocks), stopped_first)
            assert here.has(blocks)
            assert here.asked[0] == stopped
            assert trio.current_time() - begin < 2 * QUIET_SECONDS

    run(main)


def test_a_block_whose_answer_has_begun_is_asked_of_nobody_else(tmp_path: Path) -> None:
    """It comes slowly, as a long block does on a slow line."""

    async def main() -> None:
        async with world(tmp_path) as here:
            [block] = make_blocks(1)

            async def slow(stream: Stream) -> None:
                message, _ = await receive_frame(stream)
                answer = encode_reply(decode_request(message), found=True)
                await stream.send(encode_prefix(len(answer), len(block)) + answer)
                await trio.sleep(HEDGE_SECONDS - 1)
                await stream.send(block)

            first = await here.stranger("slow", slow)
            await here.seed("fast", [block])
            begin = trio.current_time()

            def slow_first() -> list[PeerId]:
                return [first] if trio.current_time() == begin else here.peers

            await here.service.fetch(digests([block]), slow_first)
            assert here.has([block])
            assert here.asked == [first]

    run(main)


def test_a_peer_that_hangs_alone_ends_in_an_error(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:
            await here.stranger("hang", silent)
            with pytest.raises(FetchError, match="no block in time"):
                await here.fetch(make_blocks(2))
            assert trio.current_time() < 600

    run(main)


@pytest.mark.parametrize("seed", range(6))
def test_peers_that_refuse_slowly_do_not_hold_up_a_fetch(tmp_path: Path, seed: int) -> None:
    """Twenty peers say every 4.5 s that they do not have a block. The seed draws in which order all
    are asked."""

    async def refuse(stream: Stream) -> None:
        with suppress(TransportError):
            while True:
                message, _ = await receive_frame(stream)
                await trio.sleep(4.5)
                await send_frame(stream, encode_reply(decode_request(message), found=False))

    async def main() -> None:
        async with world(tmp_path) as here:
            blocks = make_blocks(300)
            for number in range(20):
                await here.stranger(f"refuses {seed} {number}", refuse)
            await here.seed(f"steady {seed}", blocks)
            await here.fetch(blocks)
            assert here.has(blocks)
            assert trio.current_time() < 2 * REQUEST_SECONDS

    run(main)


@pytest.mark.parametrize("seed", range(6))
def test_peers_that_bring_little_give_their_places_to_others(tmp_path: Path, seed: int) -> None:
    """Twenty peers bring a block every 50 s, so that sixteen of them would need an hour."""

    async def main() -> None:
        async with world(tmp_path) as here:
            blocks = make_blocks(1200)
            by_digest = dict(zip(digests(blocks), blocks, strict=True))

            async def drip(stream: Stream) -> None:
                with suppress(TransportError):
                    while True:
                        message, _ = await receive_frame(stream)
                        await trio.sleep(50.0)
                        digest = decode_request(message)
                        await send_frame(
                            stream, encode_reply(digest, found=True), by_digest[digest]
                        )

            for number in range(20):
                await here.stranger(f"drips {seed} {number}", drip)
            await here.seed(f"steady {seed}", blocks)
            await here.fetch(blocks)
            assert here.has(blocks)
            # In the worst case the steady peer is the last of all that are tried.
            assert trio.current_time() < 6 * TRIAL_SECONDS

    run(main)


def test_a_peer_that_failed_is_asked_again_later_in_the_same_fetch(tmp_path: Path) -> None:
    """Here the only other peer hangs for good, so the first has to come back."""

    async def main() -> None:
        async with world(tmp_path) as here:
            blocks = make_blocks(4)
            await here.seed("flaky", blocks)
            await here.stranger("hang", silent)
            flaky = here.peers[0]
            await here.transport.disconnect(flaky)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(here.fetch, blocks)
                await trio.sleep(20)
                await here.transport.connect_any(flaky, here.network.addresses_of(flaky))
            assert here.has(blocks)
            assert trio.current_time() < 60

    run(main)


def test_requests_under_way_are_bounded(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:
            received: list[Digest] = []

            async def listener(stream: Stream) -> None:
                while True:
                    message, _ = await receive_frame(stream)
                    received.append(decode_request(message))

            for index in range(20):
                await here.stranger(f"peer {index}", listener)
            with trio.move_on_after(QUIET_SECONDS / 2):  # before any of them is late
                await here.fetch(make_blocks(100))
            assert len(here.asked) == PEERS_MAX
            assert len(received) == PEERS_MAX * REQUESTS_PER_PEER_MAX
            assert len(set(received)) == len(received)

    run(main)


def test_concurrent_fetches_share_one_download(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:
            blocks = make_blocks(30)
            seed = await here.seed("a", blocks)
            complete: list[bool] = []

            async def fetch(part: Sequence[bytes]) -> None:
                await here.fetch(part)
                complete.append(here.has(part))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(fetch, blocks[:20])
                nursery.start_soon(fetch, blocks[10:])
                nursery.start_soon(fetch, blocks)
            assert seed.blocks_served == 30
            assert complete == [True, True, True]

    run(main)


def test_a_fetch_takes_over_from_a_cancelled_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:
            blocks = make_blocks(4)
            await here.seed("a", blocks)
            hang = await here.stranger("hang", silent)
            scope = trio.CancelScope()

            async def hanging() -> None:
                with scope:
                    await here.service.fetch(digests(blocks), lambda: [hang])

            async with trio.open_nursery() as nursery:
                nursery.start_soon(hanging)
                await trio.sleep(1)
                nursery.start_soon(here.fetch, blocks)
                await trio.sleep(1)
                assert here.store.num_blocks() == 0  # the second waits for the first
                scope.cancel()
            assert here.has(blocks)

    run(main)


def test_a_cancelled_fetch_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:
            blocks = make_blocks(20)
            seed = await here.seed("a", blocks)
            put = here.store.put
            with trio.CancelScope() as scope:

                def stop_at_eight(data: Buffer, *, expected: Digest | None = None) -> Digest:
                    digest = put(data, expected=expected)
                    if here.store.num_blocks() == 8:
                        scope.cancel()
                    return digest

                monkeypatch.setattr(here.store, "put", stop_at_eight)
                await here.fetch(blocks)
            assert scope.cancelled_caught
            assert here.store.num_blocks() == 8
            assert here.store.num_pinned() == 0
            await here.fetch(blocks)
            assert here.has(blocks)
            assert seed.blocks_served <= 20 + REQUESTS_PER_PEER_MAX

    run(main)


def test_a_fetch_larger_than_the_quota_does_not_evict_itself(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:
            blocks = make_blocks(20)
            await here.seed("a", blocks)
            here.store.quota_bytes = 5 * 400
            await here.fetch(blocks)
            assert here.has(blocks)
            here.store.evict()  # from here on it is the caller's to pin
            assert here.store.num_blocks() == 5

    run(main)


def test_a_full_disk_ends_the_fetch_and_keeps_what_was_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:
            blocks = make_blocks(20)
            await here.seed("a", blocks)
            put = here.store.put

            def put_until_full(data: bytearray, *, expected: Digest) -> Digest:
                if here.store.num_blocks() == 6:
                    raise DiskFullError(here.store.path(expected), len(data))
                return put(data, expected=expected)

            with monkeypatch.context() as patch:
                patch.setattr(here.store, "put", put_until_full)
                with pytest.raises(DiskFullError, match="the disk is full"):
                    await here.fetch(blocks)
            assert here.store.num_blocks() == 6
            await here.fetch(blocks)
            assert here.has(blocks)

    run(main)


def test_a_block_damaged_on_the_servers_disk_is_not_found_there(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:
            blocks = make_blocks(3)
            for name in "ab":
                await here.seed(name, blocks)
            damaged = (
                tmp_path
                / here.peers[0]
                / here.store.path(digest_of(blocks[1])).relative_to(here.store.root)
            )
            assert damaged.write_bytes(b"damaged")
            await here.fetch(blocks)
            assert here.has(blocks)
            assert here.offences == []

    run(main)


def test_a_disk_that_is_gone_is_one_line_of_the_log(tmp_path: Path) -> None:
    """The trainer's data is asked for block by block, many times a second."""

    async def main() -> None:
        async with world(tmp_path) as here:
            blocks = make_blocks(20)
            for each in blocks:
                here.store.put(each)
            here.store.root.rename(tmp_path / "gone")
            with structlog.testing.capture_logs() as lines:
                for digest in digests(blocks):
                    with pytest.raises(FetchError, match="no peer"):
                        await here.service.fetch_checked([digest], list)
            (line,) = [line for line in lines if "of no use" in line["event"]]
            assert line["blocks"] == 20
            assert "is gone from" in line["first_problem"]
            assert here.store.num_blocks() == 0

    run(main)


def test_a_disk_that_fails_is_told_of_once_a_minute(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:
            blocks = make_blocks(10)
            for each in blocks:
                path = here.store.path(here.store.put(each))
                path.write_bytes(b"damaged")
            with structlog.testing.capture_logs() as lines:
                for number, digest in enumerate(digests(blocks)):
                    if number == 9:
                        await trio.sleep(TELL_SECONDS)
                    with pytest.raises(FetchError, match="no peer"):
                        await here.service.fetch_checked([digest], list)
            told = [line["blocks"] for line in lines if "of no use" in line["event"]]
            assert told == [1, 9]

    run(main)


def test_a_peer_that_never_reads_is_cut_off(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:
            blocks = make_blocks(100, 60_000)
            seed = await here.seed("a", blocks)
            stream = await here.visit("idler")
            for each in blocks:
                await send_frame(stream, encode_request(digest_of(each)))
            await trio.sleep(SEND_SECONDS + 1)
            # The stream's window was filled, nothing more was read from the disk, and that was it.
            assert seed.bytes_served <= WINDOW_BYTES
            num_received = 0
            with suppress(StreamClosed):
                while num_received < len(blocks):
                    await receive_frame(stream)
                    num_received += 1
            assert 0 < num_received < len(blocks) / 2
            assert here.offences == []

    run(main)


def test_a_silent_stream_is_closed_and_streams_are_bounded(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:
            blocks = make_blocks(1)
            await here.seed("a", blocks)
            transport = await here.visitor("many")

            async def is_served() -> bool:
                try:
                    stream = await transport.open_stream(here.peers[0], BLOCKS_PROTOCOL)
                    await send_frame(stream, encode_request(digest_of(blocks[0])))
                    message, payload = await receive_frame(stream)
                except TransportError:
                    return False
                return decode_reply(message) == (digest_of(blocks[0]), True) and (
                    payload == blocks[0]
                )

            served = [await is_served() for _ in range(STREAMS_PER_PEER_MAX + 2)]
            assert served == [True] * STREAMS_PER_PEER_MAX + [False] * 2
            await here.fetch(blocks)  # another peer has its own share
            await trio.sleep(IDLE_SECONDS + 1)
            assert await is_served()

    run(main)


def test_all_peers_together_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_exchange, "STREAMS_MAX", 3)

    async def main() -> None:
        async with world(tmp_path) as here:
            blocks = make_blocks(1)
            await here.seed("small", blocks)
            served = 0
            for index in range(5):
                with suppress(TransportError):  # refused at once, or soon after
                    stream = await here.visit(f"peer {index}")
                    await send_frame(stream, encode_request(digest_of(blocks[0])))
                    await receive_frame(stream)
                    served += 1
            assert served == 3

    run(main)


@pytest.mark.parametrize(
    ("message", "payload", "reason"),
    [
        (b"\xc1", b"", "malformed"),
        (encode_request(Digest(b"short")), b"", "malformed"),
        (encode_request(digest_of()) + b"x", b"", "malformed"),
        (bytes(65), b"", "oversized"),
        (encode_request(digest_of()), b"x", "oversized"),
    ],
)
def test_a_request_that_breaks_the_protocol_is_an_offence(
    tmp_path: Path, message: bytes, payload: bytes, reason: str
) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:
            await here.seed("a", [])
            stream = await here.visit("rogue")
            await send_frame(stream, message, payload)
            with pytest.raises(StreamClosed):
                await stream.receive_exactly(1)
            assert here.offences == [(identity_of("rogue").peer_id, reason)]

    run(main)


def test_an_unknown_digest_is_answered_and_the_stream_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:
            blocks = make_blocks(1)
            await here.seed("a", blocks)
            stream = await here.visit("b")
            for digest in (digest_of(b"unknown"), digest_of(blocks[0])):
                await send_frame(stream, encode_request(digest))
            message, payload = await receive_frame(stream)
            assert decode_reply(message) == (digest_of(b"unknown"), False)
            assert payload == b""
            message, payload = await receive_frame(stream)
            assert decode_reply(message) == (digest_of(blocks[0]), True)
            assert payload == blocks[0]

    run(main)


def test_large_blocks(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:
            blocks = [os.urandom(size) for size in (BLOCK_BYTES_MAX, 300 * KIB, 64 * KIB + 1) * 2]
            for name in "ab":
                await here.seed(name, blocks)
            await here.fetch(blocks)
            assert here.has(blocks)

    trio.run(main)
