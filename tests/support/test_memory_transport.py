"""The network in memory: its clock, its faults, its determinism."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from gossamer.node.network.identity import Identity
from gossamer.node.network.transport import ConnectError, Stream, StreamClosed
from gossamer.protocol.ids import PeerId
from tests.support.memory_peer import MemoryPeer
from tests.support.memory_transport import DEAD_LINK_SECONDS, MemoryNetwork, run_simulated

SINK = "/gossamer-test/sink/1"
ECHO = "/gossamer-test/echo/1"
MIB = 1024 * 1024


def identity(number: int) -> Identity:
    """A peer that is the same in every run."""
    return Identity.from_seed(bytes([number]) * 32)


async def sink(stream: Stream) -> None:
    """Takes everything."""
    while True:
        await stream.receive_exactly(1024)


async def echo(stream: Stream) -> None:
    """Answers every byte."""
    while True:
        await stream.send(await stream.receive_exactly(1))


@asynccontextmanager
async def pair(network: MemoryNetwork) -> AsyncIterator[tuple[MemoryPeer, MemoryPeer]]:
    """Two connected peers."""
    async with network.transport(identity(1)) as first, network.transport(identity(2)) as second:
        for peer in (first, second):
            peer.handle(SINK, sink)
            peer.handle(ECHO, echo)
        await first.connect(second.addresses()[0])
        yield first, second


def test_latency_and_bandwidth_take_exactly_their_time() -> None:
    async def case() -> None:
        network = MemoryNetwork(latency_seconds=0.25)
        async with pair(network) as (first, second):
            stream = await first.open_stream(second.peer_id, ECHO)
            started = trio.current_time()
            await stream.send(b"x")
            await stream.receive_exactly(1)
            assert trio.current_time() - started == pytest.approx(0.5)

            network.link(first.peer_id, second.peer_id).bytes_per_second = 100_000
            bulk = await first.open_stream(second.peer_id, SINK)
            started = trio.current_time()
            await bulk.send(bytes(1_000_000))
            assert trio.current_time() - started == pytest.approx(10.0)

    run_simulated(case)


def test_small_messages_get_in_between_bulk() -> None:
    async def case() -> None:
        network = MemoryNetwork(latency_seconds=0.01)
        async with pair(network) as (first, second):
            network.link(first.peer_id, second.peer_id).bytes_per_second = 1_000_000
            bulk = await first.open_stream(second.peer_id, SINK)
            small = await first.open_stream(second.peer_id, ECHO)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(bulk.send, bytes(5 * MIB))
                await trio.sleep(1)
                started = trio.current_time()
                await small.send(b"x")
                await small.receive_exactly(1)
                assert trio.current_time() - started < 0.3

    run_simulated(case)


def test_silent_link_fails_both_sides_after_a_while() -> None:
    async def case() -> None:
        network = MemoryNetwork()
        async with pair(network) as (first, second):
            stream = await first.open_stream(second.peer_id, SINK)
            started = trio.current_time()
            network.cut(first.peer_id, second.peer_id)
            with pytest.raises(StreamClosed):
                await stream.receive_exactly(1)
            assert trio.current_time() - started == pytest.approx(DEAD_LINK_SECONDS)
            assert first.peers() == second.peers() == []
            with pytest.raises(ConnectError, match="no answer"):
                await first.connect(second.addresses()[0])
            network.heal(first.peer_id, second.peer_id)
            await first.connect(second.addresses()[0])

    run_simulated(case)


def test_healed_link_delivers_what_it_held_in_order() -> None:
    async def case() -> None:
        network = MemoryNetwork()
        got = bytearray()

        async def collect(stream: Stream) -> None:
            while len(got) < 6:
                got.extend(await stream.receive_exactly(1))

        async with pair(network) as (first, second):
            second.handle("/collect/1", collect)
            stream = await first.open_stream(second.peer_id, "/collect/1")
            network.cut(first.peer_id, second.peer_id)
            for byte in b"abc":
                await stream.send(bytes([byte]))
            await trio.sleep(DEAD_LINK_SECONDS / 2)
            assert not got
            network.heal(first.peer_id, second.peer_id)
            await stream.send(b"def")
            await trio.sleep(DEAD_LINK_SECONDS)
            assert got == b"abcdef"
            assert first.peers() == [second.peer_id]

    run_simulated(case)


def test_cut_and_heal_does_not_end_a_later_connection() -> None:
    async def case() -> None:
        network = MemoryNetwork()
        async with pair(network) as (first, second):
            network.cut(first.peer_id, second.peer_id)
            network.heal(first.peer_id, second.peer_id)
            await trio.sleep(DEAD_LINK_SECONDS - 1)
            network.cut(first.peer_id, second.peer_id)
            await trio.sleep(2)
            assert first.peers() == [second.peer_id]  # silent for 2 s only

    run_simulated(case)


def test_reset_breaks_a_connection_at_once() -> None:
    async def case() -> None:
        network = MemoryNetwork()
        async with pair(network) as (first, second):
            stream = await first.open_stream(second.peer_id, SINK)
            network.reset(first.peer_id, second.peer_id)
            with pytest.raises(StreamClosed):
                await stream.send(b"x")
            await first.connect(second.addresses()[0])

    run_simulated(case)


def test_killed_peer_stops_where_it_is_and_can_come_back() -> None:
    async def case() -> None:
        network = MemoryNetwork()
        async with network.transport(identity(1)) as first, trio.open_nursery() as nursery:
            lived: list[str] = []

            async def life() -> None:
                async with network.transport(identity(2)) as second:
                    second.handle(SINK, sink)
                    lived.append("started")
                    await trio.sleep_forever()
                    lived.append("impossible")

            address = ""
            for _ in range(2):
                nursery.start_soon(life)
                await trio.sleep(1)
                second = network.get(identity(2).peer_id)
                assert second is not None
                assert address in ("", second.addresses()[0])  # a restart keeps the address
                address = second.addresses()[0]
                await first.connect(address)
                stream = await first.open_stream(identity(2).peer_id, SINK)
                network.kill(identity(2).peer_id)
                with pytest.raises(StreamClosed):
                    await stream.receive_exactly(1)
                assert first.peers() == []
                with pytest.raises(ConnectError, match="refused"):
                    await first.connect(address)
            assert lived == ["started", "started"]

    run_simulated(case)


async def _gossip(network: MemoryNetwork, num_messages: int) -> list[bytes]:
    """Returns the messages of the first of three peers in a row that the last one receives."""
    heard: list[bytes] = []
    async with (
        network.transport(identity(1)) as first,
        network.transport(identity(2)) as middle,
        network.transport(identity(3)) as last,
    ):
        first.subscribe("t", lambda author, data: None)
        middle.subscribe("t", lambda author, data: None)
        last.subscribe("t", lambda author, data: heard.append(data))
        await first.connect(middle.addresses()[0])
        await last.connect(middle.addresses()[0])
        for number in range(num_messages):
            await first.publish("t", b"%d" % number)
            await trio.sleep(0.01)
        await trio.sleep(60)
    return heard


def test_a_subscriber_is_sent_what_connected_peers_retain() -> None:
    """Over libp2p peers learn of a subscription, and answer with what they retain."""

    async def case() -> None:
        heard: list[tuple[float, bytes]] = []
        network = MemoryNetwork(latency_seconds=0.1)
        async with pair(network) as (first, second):
            for topic, retains in (("kept", True), ("passing", False)):
                first.subscribe(topic, lambda author, data: None, retains=retains)
                await first.publish(topic, f"old {topic}".encode())
                await first.publish(topic, f"new {topic}".encode())
            began_seconds = trio.current_time()
            for topic in ("kept", "passing"):
                second.subscribe(
                    topic,
                    lambda author, data: heard.append((trio.current_time() - began_seconds, data)),
                )
            await trio.sleep(1.0)
        ((seconds, data),) = heard
        assert data == b"new kept"
        assert seconds == pytest.approx(0.2), "a way there, and one back"

    run_simulated(case)


def test_gossip_without_faults_arrives_once_and_in_order() -> None:
    async def case() -> None:
        assert await _gossip(MemoryNetwork(), 50) == [b"%d" % number for number in range(50)]

    run_simulated(case)


def test_gossip_is_lost_doubled_and_reordered_as_told() -> None:
    async def case() -> None:
        network = MemoryNetwork(seed=3)
        network.gossip_faults.loss = 0.2
        heard = await _gossip(network, 500)
        assert 200 < len(heard) < 400  # 0.8 * 0.8 = 0.64 of 500

        network = MemoryNetwork(seed=3)
        network.gossip_faults.duplication = 0.5
        heard = await _gossip(network, 100)
        assert len(heard) > len(set(heard)) == 100

        network = MemoryNetwork(seed=3)
        network.gossip_faults.delay_seconds_max = 5.0
        heard = await _gossip(network, 100)
        order = [int(data) for data in heard]
        assert order != sorted(order)
        assert sorted(order) == list(range(100))

    run_simulated(case)


def test_one_seed_one_run() -> None:
    def trace(seed: int) -> list[tuple[float, PeerId, bytes]]:
        events: list[tuple[float, PeerId, bytes]] = []

        async def case() -> None:
            network = MemoryNetwork(seed=seed, latency_seconds=0.02)
            network.gossip_faults.loss = 0.3
            network.gossip_faults.delay_seconds_max = 1.0
            async with (
                network.transport(identity(1)) as one,
                network.transport(identity(2)) as two,
                network.transport(identity(3)) as three,
                trio.open_nursery() as nursery,
            ):
                peers = (one, two, three)
                for peer in peers:

                    def note(author: PeerId, data: bytes, peer: MemoryPeer = peer) -> None:
                        events.append((trio.current_time() % 1000, peer.peer_id, data))

                    peer.subscribe("t", note)
                await one.connect(two.addresses()[0])
                await two.connect(three.addresses()[0])
                await three.connect(one.addresses()[0])

                async def talk(peer: MemoryPeer) -> None:
                    for number in range(20):
                        await peer.publish("t", b"%d" % number)

                for peer in peers:
                    nursery.start_soon(talk, peer)
                await trio.sleep(5)

        run_simulated(case, seed)
        start = min(time for time, _, _ in events)
        return [(round(time - start, 6), peer, data) for time, peer, data in events]

    assert trace(1) == trace(1)
    assert trace(1) != trace(2)


def test_exceptions_come_out_as_they_are() -> None:
    async def case() -> None:
        with pytest.raises(KeyError):
            async with MemoryNetwork().transport(identity(1)):
                raise KeyError("the caller's own")

    run_simulated(case)


WOKEN_TOGETHER = """
import trio
from tests.support.memory_transport import run_simulated

async def main() -> None:
    event, order = trio.Event(), []

    async def wait(number: int) -> None:
        await event.wait()
        order.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(wait, number)
        await trio.sleep(1.0)
        event.set()
    print(order)

for _ in range(2):
    run_simulated(main, 7)
"""
"""Tasks that are ready together, twice."""


def test_tasks_that_are_ready_together_run_in_one_order_where_hypothesis_is_not_loaded() -> None:
    """Programs that simulate worlds do not load it, and these tests do."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", WOKEN_TOGETHER],
        capture_output=True,
        text=True,
        check=True,
        cwd=root,
        timeout=60.0,
    )
    first, second = done.stdout.splitlines()
    assert first == second
    assert first != str(list(range(50)))
