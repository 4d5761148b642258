"""Properties that only the real network has: addresses, ports, processes that die, links that go
silent."""

from __future__ import annotations

import functools
import os
import signal
import socket
import subprocess
import sys
from typing import Any

import psutil
import pytest
import trio

from gossamer.node.network.identity import Identity
from gossamer.node.network.over_libp2p import negotiation
from gossamer.node.network.over_libp2p import transport as libp2p_transport
from gossamer.node.network.over_libp2p.addresses import parse_address
from gossamer.node.network.over_libp2p.host import open_libp2p_transport
from gossamer.node.network.transport import ConnectError, ListenError, Stream, StreamClosed
from tests.support.bounded_run import run
from tests.support.preloaded import CODE

LOOPBACK = ["/ip4/127.0.0.1/tcp/0"]
SINK = "/gossamer-test/sink/1"
MIB = 1024 * 1024

# A peer in a process of its own: prints its address, takes bytes and never answers.
PEER = f"""
import trio
from gossamer.node.network.identity import Identity
from gossamer.node.network.over_libp2p.host import open_libp2p_transport
async def sink(stream):
    while True:
        await stream.receive_exactly({MIB})
async def main():
    async with open_libp2p_transport(Identity.generate(), ["LISTEN"]) as transport:
        transport.handle("{SINK}", sink)
        print(transport.addresses()[0], flush=True)
        await trio.sleep_forever()
trio.run(main)
"""


def start_peer(listen: str, *prefix: str) -> tuple[subprocess.Popen[str], str]:
    """A peer's process and its address."""
    process = subprocess.Popen(
        [*prefix, sys.executable, "-m", CODE, PEER.replace("LISTEN", listen)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def test_a_port_where_something_else_listens_is_told_as_that() -> None:
    """Such as the port of a node's page in the place of the node's own."""

    async def answer(stream: trio.SocketStream) -> None:
        await stream.receive_some(1000)
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        await stream.aclose()

    async def case() -> None:
        async with (
            trio.open_nursery() as nursery,
            open_libp2p_transport(Identity.generate(), LOOPBACK) as client,
        ):
            serve = functools.partial(trio.serve_tcp, answer, 0, host="127.0.0.1")
            (listener,) = await nursery.start(serve)
            port = listener.socket.getsockname()[1]
            address = f"/ip4/127.0.0.1/tcp/{port}/p2p/{Identity.generate().peer_id}"
            with pytest.raises(ConnectError, match="does not speak as a node does") as caught:
                await client.connect(address)
            assert "4611 is that of the page" in str(caught.value)
            nursery.cancel_scope.cancel()

    run(case)


def test_wildcard_listener_is_spelled_out_per_interface() -> None:
    async def case() -> None:
        async with open_libp2p_transport(Identity.generate(), ["/ip4/0.0.0.0/tcp/0"]) as server:
            hosts = {address.split("/")[2] for address in server.addresses()}
            own = {
                entry.address
                for entries in psutil.net_if_addrs().values()
                for entry in entries
                if entry.family == socket.AF_INET
            }
            assert hosts
            assert hosts <= own
            if any(not host.startswith("127.") for host in own):
                assert not any(host.startswith("127.") for host in hosts)
            async with open_libp2p_transport(Identity.generate(), []) as client:
                for address in server.addresses():
                    assert await client.connect(address) == server.peer_id
                    await client.disconnect(server.peer_id)

    run(case)


class _Turns(trio.abc.Instrument):
    """Counts the turns of tasks that serve streams."""

    def __init__(self) -> None:
        self.num_serving = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.num_serving += "_handle_muxed_stream" in task.name


def test_to_serve_a_stream_takes_few_turns() -> None:
    """It took 18, of which 9 were for locks while the two sides agreed on the protocol."""
    num_streams = 20
    turns = _Turns()

    async def answer(stream: Stream) -> None:
        await stream.send(await stream.receive_exactly(1))

    async def case() -> None:
        async with (
            open_libp2p_transport(Identity.generate(), ["/ip4/127.0.0.1/tcp/0"]) as client,
            open_libp2p_transport(Identity.generate(), ["/ip4/127.0.0.1/tcp/0"]) as server,
        ):
            server.handle("/gossamer-test/turns/1", answer)
            await client.connect(server.addresses()[0])
            await trio.sleep(0.5)  # the streams of gossip and of addresses have been served
            trio.lowlevel.add_instrument(turns)
            for _ in range(num_streams):
                stream = await client.open_stream(server.peer_id, "/gossamer-test/turns/1")
                await stream.send(b"!")
                await stream.receive_exactly(1)
                await stream.close()

    run(case)
    assert turns.num_serving <= 14 * num_streams


def test_a_stream_may_be_used_before_the_peer_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ring sent its first chunk a round trip later than it could."""
    may_agree = trio.Event()
    agree = negotiation.Doors.negotiate

    async def agree_later(self: Any, *args: Any) -> Any:
        await may_agree.wait()
        return await agree(self, *args)

    async def answer(stream: Stream) -> None:
        await stream.send(await stream.receive_exactly(1))

    async def case() -> None:
        async with (
            open_libp2p_transport(Identity.generate(), LOOPBACK) as client,
            open_libp2p_transport(Identity.generate(), LOOPBACK) as server,
        ):
            server.handle(SINK, answer)
            await client.connect(server.addresses()[0])
            monkeypatch.setattr(negotiation.Doors, "negotiate", agree_later)
            with trio.fail_after(5):
                stream = await client.open_stream(server.peer_id, SINK, at_once=True)
                await stream.send(b"!")
            may_agree.set()
            assert await stream.receive_exactly(1) == b"!"

    run(case)


def test_several_listeners() -> None:
    async def case() -> None:
        async with (
            open_libp2p_transport(Identity.generate(), [*LOOPBACK, "/ip6/::1/tcp/0"]) as server,
            open_libp2p_transport(Identity.generate(), []) as client,
        ):
            assert [address.split("/")[1] for address in server.addresses()] == ["ip4", "ip6"]
            for address in server.addresses():
                await client.connect(address)
                await client.disconnect(server.peer_id)

    run(case)


@pytest.mark.parametrize("listen", ["/ip4/127.0.0.1/tcp/0", "/ip6/::1/tcp/0"])
def test_both_ends_know_from_where_the_other_one_comes(listen: str) -> None:
    """Without it all peers of a family are one network: for places, bans, and handshakes."""

    async def case() -> None:
        async with (
            open_libp2p_transport(Identity.generate(), [listen]) as server,
            open_libp2p_transport(Identity.generate(), []) as client,
        ):
            await client.connect(server.addresses()[0])
            for end in (client, server):
                (connection,) = end._swarm.get_connections()
                remote = connection.muxed_conn.get_remote_address()  # type: ignore[attr-defined]
                assert remote is not None
                assert remote[0] == listen.split("/")[2]

    run(case)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("nonsense", "not a multiaddr"),
        ("/ip4/127.0.0.1/udp/1", "cannot listen"),
        ("/dns4/example.org/tcp/1", "cannot listen"),
        (
            "/ip4/203.0.113.7/tcp/0",
            r"cannot listen on /ip4/203\.0\.113\.7/tcp/0: .*This machine has no such address",
        ),
    ],
)
def test_bad_listen_address_is_named(address: str, words: str) -> None:
    async def case() -> None:
        with pytest.raises(ListenError, match=words) as caught:
            async with open_libp2p_transport(Identity.generate(), [address]):
                raise AssertionError("opened")
        assert address in str(caught.value)

    run(case)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "/ip4/1.2.3.4/tcp/1/p2p/nonsense",
        "/ip4/1.2.3.4/udp/1",
        "/ip4/1.2.3.4/tcp/1/ws",
        "/ip4/1.2.3.4",
        "/ip4/1.2.3.4/tcp/1/" + "x" * 500,
        "/ip4/1.2.3.4/tcp/99999",
    ],
)
def test_bad_address_says_what_one_looks_like(address: str) -> None:
    with pytest.raises(ConnectError, match=r"expected /ip4/HOST/tcp/PORT/p2p/PEER_ID"):
        parse_address(address)


def test_names_are_resolved() -> None:
    async def case() -> None:
        async with (
            open_libp2p_transport(Identity.generate(), LOOPBACK) as server,
            open_libp2p_transport(Identity.generate(), []) as client,
        ):
            port = server.addresses()[0].split("/")[4]
            assert await client.connect(f"/dns4/localhost/tcp/{port}") == server.peer_id

    run(case)


def test_connect_gives_up_on_a_server_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libp2p_transport, "CONNECT_SECONDS_MAX", 0.3)

    async def case() -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listener.socket.getsockname()[1]
        async with listener, open_libp2p_transport(Identity.generate(), []) as client:
            with pytest.raises(ConnectError, match="no answer in time"):
                await client.connect(f"/ip4/127.0.0.1/tcp/{port}")

    run(case)


def test_dead_connection_is_replaced_when_connecting_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def case() -> None:
        async with (
            open_libp2p_transport(Identity.generate(), LOOPBACK) as server,
            open_libp2p_transport(Identity.generate(), LOOPBACK) as client,
        ):
            address = server.addresses()[0]
            await client.connect(address)
            ((old,),) = client._swarm.get_connections_map().values()
            assert await client.connect(address) == server.peer_id
            assert client._swarm.get_connections() == [old]  # it lives: kept
            monkeypatch.setattr(libp2p_transport, "PROBE_SECONDS_MAX", 0.3)
            monkeypatch.setattr(old.muxed_conn, "control", lambda *frame: None)  # the link is gone
            assert await client.connect(address) == server.peer_id
            (new,) = client._swarm.get_connections()
            assert new is not old

    run(case)


def test_a_connection_that_comes_while_a_dead_one_is_probed_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    probed, given_up = trio.Event(), trio.Event()

    async def no_answer(_seconds: float) -> bool:
        probed.set()
        await given_up.wait()
        return False

    async def case() -> None:
        async with (
            open_libp2p_transport(Identity.generate(), LOOPBACK) as server,
            open_libp2p_transport(Identity.generate(), LOOPBACK) as client,
            trio.open_nursery() as nursery,
        ):
            address = server.addresses()[0]
            await client.connect(address)
            ((old, muxed),) = client._swarm.pairs_of()
            monkeypatch.setattr(muxed.signs, "answers_within", no_answer)  # the link is gone
            nursery.start_soon(client.connect, address)
            await probed.wait()
            await server._swarm.dial_once(*parse_address(client.addresses()[0]))
            while len(connections := client._swarm.get_connections()) < 2:  # noqa: ASYNC110
                await trio.sleep(0.01)
            (new,) = set(connections) - {old}
            given_up.set()
            while old in client._swarm.get_connections():  # noqa: ASYNC110
                await trio.sleep(0.01)
            await trio.sleep(0.1)
            assert client._swarm.get_connections() == [new]
            assert not new.is_closed

    run(case)


def test_killed_process_is_seen_at_once_by_reader_and_writer() -> None:
    process, address = start_peer(LOOPBACK[0])

    async def case() -> None:
        async with open_libp2p_transport(Identity.generate(), []) as client:
            peer_id = await client.connect(address)
            idle = await client.open_stream(peer_id, SINK)
            busy = await client.open_stream(peer_id, SINK)
            seen: list[float] = []

            async def read() -> None:
                with pytest.raises(StreamClosed):
                    await idle.receive_exactly(1)
                seen.append(trio.current_time())

            async def write() -> None:
                try:
                    while True:
                        await busy.send(bytes(MIB))
                except StreamClosed:
                    seen.append(trio.current_time())

            async with trio.open_nursery() as nursery:
                nursery.start_soon(read)
                nursery.start_soon(write)
                await trio.sleep(0.3)
                killed = trio.current_time()
                os.kill(process.pid, signal.SIGKILL)
            assert len(seen) == 2
            assert max(seen) - killed < 3  # some 10 ms; the bound is for busy machines
            with trio.fail_after(5):
                while client.peers():  # noqa: ASYNC110
                    await trio.sleep(0.01)

    try:
        run(case)
    finally:
        process.kill()
        process.communicate()


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


SUBNET = f"10.213.{os.getpid() % 256}"
"""The subnet of the silent link. Another run of the tests, also one that was killed, has another
one."""


@pytest.fixture
def namespace() -> Any:
    """A network namespace joined to ours by a pair of interfaces; needs root."""
    name = f"gsm{os.getpid() % 100000}"
    try:
        _ip("netns", "add", name)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs root and iproute2")
    try:
        _ip("link", "add", name, "type", "veth", "peer", "name", "veth0", "netns", name)
        _ip("addr", "add", f"{SUBNET}.1/24", "dev", name)
        _ip("link", "set", name, "up")
        _ip("-n", name, "addr", "add", f"{SUBNET}.2/24", "dev", "veth0")
        _ip("-n", name, "link", "set", "veth0", "up")
        yield name
    finally:
        _ip("netns", "del", name)


@pytest.mark.long
def test_silent_link_is_noticed_by_reader_and_writer(namespace: str) -> None:
    process, address = start_peer(f"/ip4/{SUBNET}.2/tcp/0", "ip", "netns", "exec", namespace)

    async def case() -> None:
        async with open_libp2p_transport(Identity.generate(), []) as client:
            peer_id = await client.connect(address)
            idle = await client.open_stream(peer_id, SINK)
            busy = await client.open_stream(peer_id, SINK)

            async def read() -> None:
                with pytest.raises(StreamClosed):
                    await idle.receive_exactly(1)

            async def write() -> None:
                try:
                    while True:
                        await busy.send(bytes(MIB))
                        await trio.sleep(0.01)
                except StreamClosed:
                    pass

            async with trio.open_nursery() as nursery:
                nursery.start_soon(read)
                nursery.start_soon(write)
                await trio.sleep(0.3)
                _ip("-n", namespace, "link", "set", "veth0", "down")
                cut = trio.current_time()
            assert 5 < trio.current_time() - cut < 20

    try:
        run(case, seconds=40)
    finally:
        process.kill()
        process.communicate()
