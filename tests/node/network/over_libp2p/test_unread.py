"""Bytes that nobody reads, and frames with next to nothing in them: bounded over all
connections."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack, suppress

import pytest
import trio

from gossamer.node.network.identity import Identity
from gossamer.node.network.over_libp2p import guards, unread
from gossamer.node.network.over_libp2p.addresses import libp2p_id
from gossamer.node.network.over_libp2p.host import open_libp2p_transport
from gossamer.node.network.over_libp2p.transport import Libp2pTransport
from gossamer.node.network.over_libp2p.yamux.connection import YamuxConnection
from gossamer.node.network.over_libp2p.yamux.frames import FrameCutter
from gossamer.node.network.over_libp2p.yamux.stream import HEADER, WINDOW_UPDATE
from gossamer.node.network.transport import Stream, TransportError
from gossamer.protocol.ids import PeerId
from gossamer.protocol.limits import MIB
from gossamer.protocol.policy.conduct.throttle import Rate
from tests.support.bounded_run import run

LOOPBACK = ["/ip4/127.0.0.1/tcp/0"]
SLEEP, ECHO = "/gossamer-test/sleep/1", "/gossamer-test/echo/1"
NUM_STRANGERS, NUM_STREAMS = 6, 8


async def sleep(_stream: Stream) -> None:
    """Reads nothing."""
    await trio.sleep_forever()


async def echo(stream: Stream) -> None:
    while True:
        await stream.send(await stream.receive_exactly(1))


async def fill(client: Libp2pTransport, server: PeerId) -> None:
    """Sends on some streams until their windows are full."""

    async def one() -> None:
        with suppress(TransportError):
            stream = await client.open_stream(server, SLEEP)
            await stream.send(bytes(2 * MIB))

    async with trio.open_nursery() as nursery:
        for _ in range(NUM_STREAMS):
            nursery.start_soon(one)


def unread_of(server: Libp2pTransport, peer: PeerId) -> int:
    muxed = [each.muxed_conn for each in server._swarm.get_connections(libp2p_id(peer))]
    return sum(each.unread_bytes() for each in muxed if isinstance(each, YamuxConnection))


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread, "STRANGERS_BYTES_MAX", 12 * MIB)
    monkeypatch.setattr(unread, "BYTES_MAX", 24 * MIB)
    monkeypatch.setattr(unread, "LOOK_BYTES", MIB)


@pytest.mark.parametrize("have_standing", [False, True], ids=["strangers", "members"])
def test_many_peers_that_fill_their_windows_do_not_fill_the_memory(
    have_standing: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)

    async def case() -> None:
        async with AsyncExitStack() as stack:

            async def opened() -> Libp2pTransport:
                listen = LOOPBACK
                return await stack.enter_async_context(
                    open_libp2p_transport(Identity.generate(), listen)
                )

            server = await opened()
            server.handle(SLEEP, sleep, streams_per_peer_max=NUM_STREAMS)
            server.handle(ECHO, echo)
            server.keep_places_of(
                lambda _peer: have_standing, lambda _peer: have_standing, lambda _peer: True
            )
            honest = await opened()
            peer = await honest.connect(server.addresses()[0])
            stream = await honest.open_stream(peer, ECHO)
            fillers = [await opened() for _ in range(NUM_STRANGERS)]
            bound = unread.BYTES_MAX if have_standing else unread.STRANGERS_BYTES_MAX
            most = 0

            async def watch() -> None:
                nonlocal most
                while True:
                    most = max(most, sum(unread_of(server, each.peer_id) for each in fillers))
                    await trio.sleep(0.01)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch)
                with trio.move_on_after(2.0):
                    async with trio.open_nursery() as filling:
                        for each in fillers:
                            await each.connect(server.addresses()[0])
                            filling.start_soon(fill, each, peer)
                nursery.cancel_scope.cancel()
            assert bound / 2 < most < bound + 2 * unread.LOOK_BYTES
            with trio.fail_after(5.0):  # who has next to nothing unread keeps its connection
                await stream.send(b"?")
                assert await stream.receive_exactly(1) == b"?"
            assert "wait unread" in caplog.text

    run(case)


@pytest.mark.parametrize("have_standing", [False, True], ids=["strangers", "members"])
def test_small_frames_of_many_strangers_together_wait(
    have_standing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each connection keeps to its rate. Hundreds of them took all that the machine has."""
    num_peers, seconds = 4, 2.0
    rate = Rate(per_second=500, burst=500)
    monkeypatch.setattr(guards, "STRANGERS_FRAMES_RATE", rate)
    frame = HEADER.pack(0, WINDOW_UPDATE, 0, 77, 1)  # of a stream that is not there

    async def flood(client: Libp2pTransport, server: PeerId) -> None:
        muxed = client._swarm.get_connections(libp2p_id(server))[0].muxed_conn
        assert isinstance(muxed, YamuxConnection)
        while True:
            for _ in range(10):
                muxed.secured_conn.seal(frame)
            await muxed.secured_conn.flush()
            await trio.sleep(0.01)

    async def case() -> None:
        num_read = 0
        cut = FrameCutter.feed

        def counted(cutter: FrameCutter, data: memoryview) -> int:
            nonlocal num_read
            num_frames = cut(cutter, data)
            num_read += num_frames
            return num_frames

        async with AsyncExitStack() as stack:
            everybody = [
                await stack.enter_async_context(
                    open_libp2p_transport(Identity.generate(), LOOPBACK)
                )
                for _ in range(2 + num_peers)
            ]
            server, honest, *strangers = everybody
            server.handle(ECHO, echo)
            server.keep_places_of(
                lambda _peer: have_standing, lambda _peer: have_standing, lambda _peer: True
            )
            for each in (honest, *strangers):
                peer = await each.connect(server.addresses()[0])
            stream = await honest.open_stream(peer, ECHO)
            monkeypatch.setattr(FrameCutter, "feed", counted)
            async with trio.open_nursery() as nursery:
                for each in strangers:
                    nursery.start_soon(flood, each, peer)
                await trio.sleep(seconds)
                few = rate.burst + 1.5 * seconds * rate.per_second
                assert num_read > few if have_standing else num_read < few
                with trio.fail_after(5.0):  # who sends little waits for little
                    await stream.send(b"?")
                    assert await stream.receive_exactly(1) == b"?"
                nursery.cancel_scope.cancel()

    run(case)
