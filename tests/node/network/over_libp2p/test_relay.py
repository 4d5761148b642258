"""Circuits over the real network: two peers talk through a third one."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest
import trio
import trio.testing

from gossamer.node.base.limit_periods import Period
from gossamer.node.base.rate_limit import BURST_SECONDS, RateLimit
from gossamer.node.network import circuit_places, relay
from gossamer.node.network.frames import send_frame
from gossamer.node.network.identity import Identity
from gossamer.node.network.over_libp2p.addresses import parse_address
from gossamer.node.network.over_libp2p.guards import GuardedSwarm
from gossamer.node.network.over_libp2p.host import open_libp2p_transport
from gossamer.node.network.over_libp2p.nat_traversal import paths
from gossamer.node.network.over_libp2p.nat_traversal.crossing import Crossing
from gossamer.node.network.over_libp2p.nat_traversal.paths import (
    DRAIN_LOOK_SECONDS,
    RETRY_SECONDS_MIN,
)
from gossamer.node.network.over_libp2p.transport import Libp2pTransport
from gossamer.node.network.over_libp2p.yamux import connection
from gossamer.node.network.transport import (
    ConnectError,
    Path,
    Stream,
    StreamClosed,
    TransportError,
)
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.ids import PeerId
from gossamer.protocol.policy.conduct.throttle import Rate
from gossamer.protocol.wire.relay_messages import (
    RELAY_PROTOCOL,
    RELAYED_PROTOCOL,
    RelayAnswer,
    Relayed,
    RelayRequest,
)

LOOPBACK = ("/ip4/127.0.0.1/tcp/0",)
ECHO = "/test/echo/1"
ECHO_BYTES = 1_000_000
"""More than all buffers on the way hold."""

PATIENCE_SECONDS = 30.0
"""Time for what takes a second, at most, on an idle machine."""


@dataclass
class Three:
    """A caller and a target that are connected to a relay, and not to each other."""

    caller: Libp2pTransport
    relay: Libp2pTransport
    target: Libp2pTransport


async def _echo(stream: Stream) -> None:
    while True:
        size = int.from_bytes(await stream.receive_exactly(4), "big")
        await stream.send(await stream.receive_exactly(size))


async def _sends_back(transport: Libp2pTransport, peer: Libp2pTransport, data: bytes) -> bool:
    stream = await transport.open_stream(peer.peer_id, ECHO)
    answer = bytearray()

    async def receive() -> None:
        answer.extend(await stream.receive_exactly(len(data)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await stream.send(len(data).to_bytes(4, "big"), data)
    await stream.close()
    return bytes(answer) == data


@asynccontextmanager
async def _three() -> AsyncIterator[Three]:
    async with (
        open_libp2p_transport(Identity.generate(), LOOPBACK) as caller,
        open_libp2p_transport(Identity.generate(), LOOPBACK) as middle,
        open_libp2p_transport(Identity.generate(), LOOPBACK) as target,
    ):
        for end in (caller, target):
            end.handle(ECHO, _echo)
            await end.connect(middle.addresses()[0])
        middle.relay_for(lambda _caller, _target: "")
        yield Three(caller, middle, target)


def _run(story: Callable[[Three], Awaitable[None]]) -> None:
    async def main() -> None:
        with trio.fail_after(PATIENCE_SECONDS):
            async with _three() as three:
                await story(three)

    trio.run(main)


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - it happens at another peer
        await trio.sleep(0.01)


def _is_relayed(end: Libp2pTransport, other: Libp2pTransport) -> bool:
    """A direct connection that comes about while the two cross their routers counts as crossed."""
    path = end.path(other.peer_id)
    return path is not None and path.kind == "relayed"


def test_two_peers_talk_through_a_third_one_that_counts_what_it_carries() -> None:
    async def story(three: Three) -> None:
        caller, middle, target = three.caller, three.relay, three.target
        await caller.connect_through(middle.peer_id, target.peer_id)
        assert caller.path(target.peer_id) == Path("relayed", middle.peer_id)
        await _until(lambda: caller.peer_id in target.peers())
        assert target.path(caller.peer_id) == Path("relayed", middle.peer_id)
        data = bytes(range(256)) * (ECHO_BYTES // 256)
        assert await _sends_back(caller, target, data)
        assert await _sends_back(target, caller, data)
        assert len(middle.paths.circuits.places.taken) == 1
        assert middle.paths.circuits.carried_bytes > 4 * len(data)

    _run(story)


def test_a_machine_without_a_free_file_gives_no_circuit_up_as_a_defect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_file() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def story(three: Three) -> None:
        caller, middle, target = three.caller, three.relay, three.target
        monkeypatch.setattr(paths, "ends", no_file)
        with pytest.raises(ConnectError, match="Too many open files"):
            await caller.connect_through(middle.peer_id, target.peer_id)
        await _until(lambda: not len(middle.paths.circuits.places.taken))

    _run(story)


def test_what_a_relay_carries_is_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    carried = bytearray()

    async def overhear(stream: Stream, message: bytes, *payload: bytes) -> None:
        for part in payload:
            carried.extend(part)
        await send_frame(stream, message, *payload)

    monkeypatch.setattr(relay, "send_frame", overhear)

    async def story(three: Three) -> None:
        await three.caller.connect_through(three.relay.peer_id, three.target.peer_id)
        assert await _sends_back(three.caller, three.target, b"nothing to see here " * 50)

    _run(story)
    assert len(carried) > 1000
    assert b"nothing to see" not in carried


def test_a_direct_connection_is_used_when_there_is_one() -> None:
    async def story(three: Three) -> None:
        caller, target = three.caller, three.target
        await caller.connect_through(three.relay.peer_id, target.peer_id)
        address = target.addresses()[0].partition("/p2p/")[0]
        await caller._swarm.dial_once(*parse_address(f"{address}/p2p/{target.peer_id}"))
        assert caller.path(target.peer_id) in (Path("direct"), Path("crossed"))
        before = three.relay.paths.circuits.carried_bytes
        assert await _sends_back(caller, target, bytes(ECHO_BYTES))
        assert three.relay.paths.circuits.carried_bytes - before < ECHO_BYTES / 2

    _run(story)


def test_what_is_under_way_on_a_circuit_goes_on_beside_a_direct_connection() -> None:
    """A ring of members on both sides of the circuit would take its end for a member's death."""

    async def story(three: Three) -> None:
        caller, middle, target = three.caller, three.relay, three.target
        await caller.connect_through(middle.peer_id, target.peer_id)
        streams = [
            await caller.open_stream(target.peer_id, ECHO),
            await target.open_stream(caller.peer_id, ECHO),
        ]
        address = target.addresses()[0].partition("/p2p/")[0]
        await caller._swarm.dial_once(*parse_address(f"{address}/p2p/{target.peer_id}"))
        await _until(lambda: not _is_relayed(target, caller))
        await trio.sleep(5 * DRAIN_LOOK_SECONDS)
        for stream in streams:
            before = middle.paths.circuits.carried_bytes
            await stream.send((4).to_bytes(4, "big"), b"ring")
            assert await stream.receive_exactly(4) == b"ring"
            assert middle.paths.circuits.carried_bytes > before
            await stream.close()
        await _until(lambda: len(middle.paths.circuits.places.taken) == 0)
        assert await _sends_back(caller, target, b"by the direct connection")
        assert await _sends_back(target, caller, b"by the direct connection")

    _run(story)


def test_a_circuit_ends_soon_beside_a_direct_connection_that_came_after_a_failed_crossing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The relay carries nothing for two peers until their next try to cross, minutes later."""
    failed = trio.Event()

    async def fails(*_: object) -> bool:
        failed.set()
        return False

    monkeypatch.setattr(Crossing, "begin", fails)

    async def story(three: Three) -> None:
        caller, middle, target = three.caller, three.relay, three.target
        await caller.connect_through(middle.peer_id, target.peer_id)
        await failed.wait()
        address = target.addresses()[0].partition("/p2p/")[0]
        await caller._swarm.dial_once(*parse_address(f"{address}/p2p/{target.peer_id}"))
        with trio.fail_after(RETRY_SECONDS_MIN / 2):
            await _until(lambda: len(middle.paths.circuits.places.taken) == 0)
        assert await _sends_back(caller, target, b"by the direct connection")

    _run(story)


def test_a_connection_that_a_crossing_sees_at_once_is_a_crossed_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The crossing is over before the connection is told of. Taken for a direct one, it would show
    that strangers can dial this node."""
    tell, told = GuardedSwarm.notify_connected, trio.Event()

    async def tell_later(swarm: GuardedSwarm, connection: Any) -> None:
        await told.wait()
        await tell(swarm, connection)

    async def main() -> None:
        dialled_in: list[object] = []
        async with (
            open_libp2p_transport(Identity.generate(), LOOPBACK) as caller,
            open_libp2p_transport(Identity.generate(), LOOPBACK) as target,
            trio.open_nursery() as nursery,
        ):
            monkeypatch.setattr(
                target.own.reachability, "dialled_in", lambda *seen: dialled_in.append(seen)
            )
            monkeypatch.setattr(GuardedSwarm, "notify_connected", tell_later)
            nursery.start_soon(caller.connect, target.addresses()[0])
            assert await target.paths._dial(caller.peer_id, [], PATIENCE_SECONDS)
            told.set()
            await _until(lambda: bool(caller.peers()))
            await trio.testing.wait_all_tasks_blocked()
            assert target.path(caller.peer_id) == Path("crossed")
            assert dialled_in == []

    trio.run(main)


def test_the_end_of_one_crossing_does_not_end_the_next_one() -> None:
    """The two ends do not give up a try at the same moment, and one may begin the next before."""

    async def main() -> None:
        async with (
            open_libp2p_transport(Identity.generate(), LOOPBACK) as caller,
            open_libp2p_transport(Identity.generate(), LOOPBACK) as target,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(target.paths._dial, caller.peer_id, [], PATIENCE_SECONDS)
            assert not await target.paths._dial(caller.peer_id, [], 0.1)
            await caller.connect(target.addresses()[0])
            await _until(lambda: bool(target.peers()))
            assert target.path(caller.peer_id) == Path("crossed")

    trio.run(main)


def test_no_gossip_is_lost_when_a_circuit_ends_beside_a_direct_connection() -> None:
    """A statement of a round that is lost costs the round a comparison of what both know."""

    async def story(three: Three) -> None:
        caller, middle, target = three.caller, three.relay, three.target
        heard: dict[str, set[bytes]] = {caller.peer_id: set(), target.peer_id: set()}
        caller.subscribe("news", lambda _author, data: heard[caller.peer_id].add(data))
        target.subscribe("news", lambda _author, data: heard[target.peer_id].add(data))
        await caller.connect_through(middle.peer_id, target.peer_id)
        while not all(heard.values()):
            for end in (caller, target):
                await end.publish("news", b"before")
            await trio.sleep(0.1)
        address = target.addresses()[0].partition("/p2p/")[0]
        await caller._swarm.dial_once(*parse_address(f"{address}/p2p/{target.peer_id}"))
        number = 0
        while len(middle.paths.circuits.places.taken) or number < 10:
            number += 1
            for end in (caller, target):
                await end.publish("news", b"%d" % number)
            await trio.sleep(0.05)
        published = {b"before", *(b"%d" % each for each in range(1, number + 1))}
        with trio.fail_after(10):
            await _until(lambda: all(each == published for each in heard.values()))

    _run(story)


def test_the_end_of_the_relay_is_the_end_of_its_circuits() -> None:
    async def story(three: Three) -> None:
        await three.caller.connect_through(three.relay.peer_id, three.target.peer_id)
        stream = await three.caller.open_stream(three.target.peer_id, ECHO)
        for end in (three.caller, three.target):
            await three.relay.disconnect(end.peer_id)
        with pytest.raises(StreamClosed):
            await stream.receive_exactly(1)
        await _until(lambda: three.target.peer_id not in three.caller.peers())
        await _until(lambda: len(three.relay.paths.circuits.places.taken) == 0)

    _run(story)


def test_a_circuit_ends_with_its_connection() -> None:
    async def story(three: Three) -> None:
        await three.caller.connect_through(three.relay.peer_id, three.target.peer_id)
        await three.caller.disconnect(three.target.peer_id)
        await _until(lambda: three.caller.peer_id not in three.target.peers())
        await _until(lambda: len(three.relay.paths.circuits.places.taken) == 0)

    _run(story)


def test_a_relay_carries_only_what_it_wants_to() -> None:
    async def story(three: Three) -> None:
        caller, middle, target = three.caller, three.relay, three.target
        middle.relay_for(lambda _caller, _target: "it is not known")
        with pytest.raises(ConnectError, match="it is not known"):
            await caller.connect_through(middle.peer_id, target.peer_id)
        middle.relay_for(lambda _caller, _target: "")
        stranger = Identity.generate().peer_id
        with pytest.raises(ConnectError, match="no direct connection"):
            await caller.connect_through(middle.peer_id, stranger)
        with pytest.raises(ConnectError, match="not connected"):
            await caller.connect_through(stranger, target.peer_id)

    _run(story)


def test_an_introduction_ends_after_what_a_crossing_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "INTRODUCTION_BYTES_MAX", 32 * 1024)

    async def story(three: Three) -> None:
        caller, middle, target = three.caller, three.relay, three.target
        middle.relay_for(lambda _caller, _target: "", introduces=True)
        await caller.connect_through(middle.peer_id, target.peer_id)
        introduced = Path("relayed", middle.peer_id, introduced=True)
        assert caller.path(target.peer_id) == introduced
        await _until(lambda: caller.peer_id in target.peers())
        assert target.path(caller.peer_id) == introduced
        assert await _sends_back(caller, target, bytes(1024))
        with pytest.raises((StreamClosed, ExceptionGroup)):
            await _sends_back(caller, target, bytes(ECHO_BYTES))
        await _until(lambda: target.peer_id not in caller.peers())
        await _until(lambda: len(middle.paths.circuits.places.taken) == 0)
        assert middle.paths.circuits.carried_bytes <= 32 * 1024

    _run(story)


def test_a_frame_without_bytes_ends_its_circuit() -> None:
    """Of such frames neither an introduction nor a limit would count anything."""

    async def story(three: Three) -> None:
        three.relay.relay_for(lambda _caller, _target: "", introduces=True)
        received: list[bytearray] = []

        async def sink(stream: Stream) -> None:
            await relay._hear(stream)
            await relay._say(stream, RelayAnswer())
            while True:
                received.append(await stream.receive_exactly(1))

        three.target.handle(RELAYED_PROTOCOL, sink)
        stream = await three.caller.open_stream(three.relay.peer_id, RELAY_PROTOCOL)
        await relay._say(stream, RelayRequest(three.target.peer_id))
        assert await relay._hear(stream) == RelayAnswer(introduces=True)
        await send_frame(stream, b"", b"x")
        await _until(lambda: bool(received))
        await send_frame(stream, b"", b"")
        with pytest.raises(StreamClosed), trio.fail_after(5):
            await stream.receive_exactly(1)
        assert len(three.relay.paths.circuits.places.taken) == 0
        assert three.relay.paths.circuits.carried_bytes == 1

    _run(story)


def test_what_a_relay_carries_keeps_to_its_limit() -> None:
    async def story(three: Three) -> None:
        caller, middle, target = three.caller, three.relay, three.target
        middle.relay_for(lambda _caller, _target: "", RateLimit([Period(8.0)]))
        await caller.connect_through(middle.peer_id, target.peer_id)
        started, before = trio.current_time(), middle.paths.circuits.carried_bytes
        assert await _sends_back(caller, target, bytes(ECHO_BYTES))
        carried = middle.paths.circuits.carried_bytes - before
        assert carried >= 2 * ECHO_BYTES
        # 8 Mbit/s are 1 MB/s, and what has gone before the limit holds is let through at once.
        assert trio.current_time() - started >= 0.9 * carried / 1e6 - BURST_SECONDS

    _run(story)


def test_a_relay_carries_a_bounded_number_of_circuits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(circuit_places, "CIRCUITS_MAX", 0)

    async def story(three: Three) -> None:
        with pytest.raises(ConnectError, match="carries 0 circuits already"):
            await three.caller.connect_through(three.relay.peer_id, three.target.peer_id)

    _run(story)


def test_circuits_that_are_being_opened_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(circuit_places, "CIRCUITS_MAX", 1)

    async def story(three: Three) -> None:
        refusals: list[str] = []

        async def attempt() -> None:
            try:
                await three.caller.connect_through(three.relay.peer_id, three.target.peer_id)
            except ConnectError as error:
                refusals.append(str(error))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(attempt)
        assert len(refusals) == 2
        assert all("carries 1 circuits already" in each for each in refusals)
        assert len(three.relay.paths.circuits.places.taken) == 1

    _run(story)


async def _ask_for_circuit(end: Libp2pTransport, middle: PeerId, target: PeerId) -> Stream:
    stream = await end.open_stream(middle, RELAY_PROTOCOL)
    await relay._say(stream, RelayRequest(target))
    return stream


@pytest.mark.parametrize("accepts", [True, False])
def test_a_few_identities_keep_nobody_from_a_relay(
    accepts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their circuits carry nothing, or their accomplice never answers. All are on one machine."""
    monkeypatch.setattr(circuit_places, "CIRCUITS_MAX", 8)
    monkeypatch.setattr(circuit_places, "CIRCUITS_PER_PAIR_MAX", 4)
    asked = 0

    async def sink(stream: Stream) -> None:
        nonlocal asked
        await relay._hear(stream)
        asked += 1
        if accepts:
            await relay._say(stream, RelayAnswer())
        await trio.sleep_forever()

    async def story(three: Three) -> None:
        middle = three.relay
        async with (
            open_libp2p_transport(Identity.generate(), []) as accomplice,
            open_libp2p_transport(Identity.generate(), []) as one,
            open_libp2p_transport(Identity.generate(), []) as other,
        ):
            accomplice.handle(RELAYED_PROTOCOL, sink, streams_per_peer_max=64)
            for end in (accomplice, one, other):
                await end.connect(middle.addresses()[0])
            for end in (one, other):
                for _ in range(4):
                    await _ask_for_circuit(end, middle.peer_id, accomplice.peer_id)
            await _until(lambda: asked == 8)
            await three.caller.connect_through(middle.peer_id, three.target.peer_id)
            assert await _sends_back(three.caller, three.target, b"here")

    _run(story)


def test_callers_without_end_leave_the_relay_streams_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each circuit makes the relay open a stream to the target, which lets it open so many: one
    that opens none is a ring neighbour that is dead."""
    monkeypatch.setattr(connection, "OPEN_RATE", Rate(per_second=20, burst=96))

    async def call(end: Libp2pTransport, middle: PeerId, target: PeerId) -> None:
        while True:
            with suppress(TransportError):
                stream = await _ask_for_circuit(end, middle, target)
                await relay._hear(stream)
                await stream.reset()
            await trio.sleep(0.005)

    async def story(three: Three) -> None:
        middle, target = three.relay, three.target
        async with (
            open_libp2p_transport(Identity.generate(), []) as second,
            trio.open_nursery() as nursery,
        ):
            await second.connect(middle.addresses()[0])
            for end in (three.caller, second):
                for _ in range(relay.CIRCUITS_PER_PEER_MAX // 2):
                    nursery.start_soon(call, end, middle.peer_id, target.peer_id)
            await trio.sleep(1.0)
            for _ in range(20):
                stream = await middle.open_stream(target.peer_id, ECHO)
                await stream.reset()
                await trio.sleep(0.05)
            nursery.cancel_scope.cancel()

    _run(story)


def test_a_further_circuit_of_two_peers_ends_their_oldest() -> None:
    async def story(three: Three) -> None:
        middle, target = three.relay, three.target
        target.handle(RELAYED_PROTOCOL, _accept_and_wait, streams_per_peer_max=64)
        streams = []
        for _ in range(circuit_places.CIRCUITS_PER_PAIR_MAX + 1):
            streams.append(await _ask_for_circuit(three.caller, middle.peer_id, target.peer_id))
            assert await relay._hear(streams[-1]) == RelayAnswer()
        with pytest.raises(StreamClosed), trio.fail_after(5):
            await streams[0].receive_exactly(1)
        assert len(middle.paths.circuits.places.taken) == circuit_places.CIRCUITS_PER_PAIR_MAX

    _run(story)


async def _accept_and_wait(stream: Stream) -> None:
    await relay._hear(stream)
    await relay._say(stream, RelayAnswer())
    await trio.sleep_forever()


@pytest.mark.parametrize(
    ("protocol", "message"),
    [
        (RELAY_PROTOCOL, to_msgpack(RelayAnswer())),
        (RELAY_PROTOCOL, to_msgpack(RelayRequest("no peer id"))),
        (RELAY_PROTOCOL, b"\xff" * 100),
        (RELAYED_PROTOCOL, to_msgpack(RelayAnswer("no"))),
        (RELAYED_PROTOCOL, to_msgpack(Relayed("x"))),
    ],
)
def test_nonsense_costs_one_stream(protocol: str, message: bytes) -> None:
    async def story(three: Three) -> None:
        stream = await three.caller.open_stream(three.relay.peer_id, protocol)
        await send_frame(stream, message)
        with pytest.raises(StreamClosed):
            await stream.receive_exactly(1)
        await three.caller.connect_through(three.relay.peer_id, three.target.peer_id)
        assert await _sends_back(three.caller, three.target, b"still here")

    _run(story)
