"""When a node dials its peers, and when it asks others for a circuit, on the real transport."""

from __future__ import annotations

import random
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio

from gossamer.node.base.awake_clock import AwakeClock
from gossamer.node.network.identity import Identity
from gossamer.node.network.over_libp2p.host import open_libp2p_transport
from gossamer.node.network.over_libp2p.nat_traversal.crossing import Crossing
from gossamer.node.network.over_libp2p.tcp.tcp import PortReusingTcp
from gossamer.node.network.over_libp2p.transport import Libp2pTransport
from gossamer.node.network.transport import PeerTest
from gossamer.node.peers import discovery as discovery_module
from gossamer.node.peers.discovery import (
    DIRECT_SECONDS,
    UNHEARD_LOOKS,
    UNHEARD_MAX,
    Discovery,
)
from gossamer.node.storage.known_peers import KnownPeers
from gossamer.node.telemetry.gpus import Gpus
from gossamer.node.telemetry.metrics import Metrics
from gossamer.protocol.ids import PeerId
from gossamer.protocol.policy import redial
from gossamer.protocol.policy.membership import Membership
from tests.support.builders import announce
from tests.support.open_entrance import OpenEntrance

LOOPBACK = ("/ip4/127.0.0.1/tcp/0",)

SLOW_SECONDS = 2 * DIRECT_SECONDS
"""Time until the first byte of a peer that is busy."""


QUICKER = 4
"""Factor by which nodes look for peers, and dial them again, more often than in a run."""


def wait_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a node `QUICKER`."""
    for module, name in (
        (discovery_module, "LOOK_SECONDS"),
        (redial, "BACK_OFF_SECONDS_MIN"),
        (redial, "RECENT_BACK_OFF_SECONDS_MAX"),
    ):
        monkeypatch.setattr(module, name, getattr(module, name) / QUICKER)


@asynccontextmanager
async def busy(port: int) -> AsyncIterator[str]:
    """The address of a machine that takes connections at once and serves them late."""

    async def carry(source: trio.SocketStream, sink: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            async for piece in source:
                await sink.send_all(piece)

    async def serve(outer: trio.SocketStream) -> None:
        async with outer:
            await trio.sleep(SLOW_SECONDS)
            inner = await trio.open_tcp_stream("127.0.0.1", port)
            async with inner, trio.open_nursery() as nursery:
                nursery.start_soon(carry, outer, inner)
                nursery.start_soon(carry, inner, outer)

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        yield f"/ip4/127.0.0.1/tcp/{listener.socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


def discovery_of(
    node: Libp2pTransport,
    folder: Path,
    membership: Membership,
    bootstrap: Sequence[str] = (),
    is_elsewhere: PeerTest = lambda _peer: False,
) -> Discovery:
    return Discovery(
        node, KnownPeers(folder / "peers"), bootstrap, membership, Metrics(Gpus()),
        random.Random(1), AwakeClock(), OpenEntrance(), is_elsewhere,
    )  # fmt: skip


async def circuits_to(folder: Path, monkeypatch: pytest.MonkeyPatch, *, answers: bool) -> int:
    """Lets a node connect to a busy peer, beside a member that both know, and counts the circuits
    that it asks for. Without `answers` nothing comes back from the peer's address."""
    asked: list[PeerId] = []

    async def connect_through(_self: Libp2pTransport, relay: PeerId, _peer: PeerId) -> None:
        asked.append(relay)
        await trio.sleep_forever()

    monkeypatch.setattr(Libp2pTransport, "connect_through", connect_through)
    async with AsyncExitStack() as stack:
        node, relay, peer = [
            await stack.enter_async_context(open_libp2p_transport(Identity.generate(), LOOPBACK))
            for _ in range(3)
        ]
        address = await stack.enter_async_context(busy(peer.port))
        if not answers:
            connect = PortReusingTcp._connect

            async def silent(tcp: PortReusingTcp, host: str, port: int) -> trio.SocketStream:
                if address.endswith(f"/{port}"):
                    await trio.sleep_forever()
                return await connect(tcp, host, port)

            monkeypatch.setattr(PortReusingTcp, "_connect", silent)
        await node.connect(relay.addresses()[0])
        membership = Membership(node.peer_id)
        for known, addresses in ((relay, relay.addresses()), (peer, [address])):
            said = announce(addresses=tuple(addresses))
            membership.announced(0.0, known.peer_id, said, (known.peer_id,))
        discovery = discovery_of(node, folder, membership)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(discovery.run)
            with trio.move_on_after(8.0):
                while peer.peer_id not in node.peers() and not asked:  # noqa: ASYNC110
                    await trio.sleep(0.05)
            assert (peer.peer_id in node.peers()) is answers
            nursery.cancel_scope.cancel()
    return len(asked)


@pytest.mark.long
def test_no_circuit_is_begun_to_a_machine_that_answers_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each dial on a crowded machine began three circuits, which made it more crowded."""
    assert trio.run(lambda: circuits_to(tmp_path, monkeypatch, answers=True)) == 0


def test_a_circuit_is_begun_where_nothing_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert trio.run(lambda: circuits_to(tmp_path, monkeypatch, answers=False)) == 1


@pytest.mark.long
def test_a_peer_behind_a_circuit_is_dialled_directly_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pair whose first dial failed kept its circuit, where the two could not cross a router."""

    async def begin(*_arguments: object) -> bool:
        return False

    monkeypatch.setattr(Crossing, "begin", begin)
    monkeypatch.setattr(redial, "RELAYED_BACK_OFF_SECONDS_MIN", 0.2)
    monkeypatch.setattr(discovery_module, "RELAYED_LOOKS", 1)

    async def main() -> None:
        async with AsyncExitStack() as stack:
            node, relay, peer = [
                await stack.enter_async_context(
                    open_libp2p_transport(Identity.generate(), LOOPBACK)
                )
                for _ in range(3)
            ]
            relay.relay_for(lambda *_ends: "")
            membership = Membership(node.peer_id)
            for known in (relay, peer):
                said = announce(addresses=tuple(known.addresses()))
                membership.announced(0.0, known.peer_id, said, (known.peer_id,))
            for end in (node, peer):
                await end.connect(relay.addresses()[0])
            await node.connect_through(relay.peer_id, peer.peer_id)
            discovery = discovery_of(node, tmp_path, membership)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(discovery.run)
                for is_direct in (False, True):
                    with trio.fail_after(20.0):
                        while (kind_of(node, peer) == "direct") is not is_direct:  # noqa: ASYNC110
                            await trio.sleep(0.05)
                assert kind_of(peer, node) == "direct"
                nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_connection_to_a_peer_of_no_run_or_another_one_is_no_reason_to_stop_looking(
    tmp_path: Path,
) -> None:
    """A node that had asked another run first was connected to that one alone for good, after a
    start at which no peer of its own run was there."""

    async def main() -> None:
        async with AsyncExitStack() as stack:
            node, foreign, typed, known = [
                await stack.enter_async_context(
                    open_libp2p_transport(Identity.generate(), LOOPBACK)
                )
                for _ in range(4)
            ]
            await node.connect(foreign.addresses()[0])
            peers = KnownPeers(tmp_path / "peers")
            for each in (foreign, known):
                peers.reached(each.peer_id, each.addresses()[0])
            peers.save()
            bootstrap = (foreign.addresses()[0], typed.addresses()[0])
            discovery = discovery_of(node, tmp_path, Membership(node.peer_id), bootstrap)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(discovery.run)
                with trio.fail_after(10.0):
                    while len(node.peers()) < 3:  # noqa: ASYNC110
                        await trio.sleep(0.05)
                nursery.cancel_scope.cancel()
            assert {*node.peers()} == {foreign.peer_id, typed.peer_id, known.peer_id}

    trio.run(main)


def test_a_peer_of_another_run_is_not_dialled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was dialled again each time that it, or this node, had ended the connection."""
    wait_less(monkeypatch)

    async def main() -> None:
        async with AsyncExitStack() as stack:
            node, *foreign = [
                await stack.enter_async_context(
                    open_libp2p_transport(Identity.generate(), LOOPBACK)
                )
                for _ in range(4)
            ]
            typed, known, member = foreign
            peers = KnownPeers(tmp_path / "peers")
            peers.reached(known.peer_id, known.addresses()[0])
            peers.save()
            membership = Membership(node.peer_id)
            said = announce(addresses=tuple(member.addresses()))
            membership.announced(0.0, member.peer_id, said, (member.peer_id,))
            # An address without an id says only when it is dialled who is there.
            bootstrap = (typed.addresses()[0].rpartition("/p2p/")[0],)
            elsewhere = {known.peer_id, member.peer_id}
            discovery = discovery_of(
                node, tmp_path, membership, bootstrap, is_elsewhere=elsewhere.__contains__
            )
            async with trio.open_nursery() as nursery:
                nursery.start_soon(discovery.run)
                with trio.fail_after(10.0):
                    while node.peers() != [typed.peer_id]:  # noqa: ASYNC110
                        await trio.sleep(0.05)
                elsewhere.add(typed.peer_id)
                await node.disconnect(typed.peer_id)
                await trio.sleep(4.0 / QUICKER)  # longer than the wait before a second dial
                assert node.peers() == []
                nursery.cancel_scope.cancel()

    trio.run(main)


@pytest.mark.long
def test_a_peer_that_bans_this_node_is_not_dialled_at_every_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes each dial and closes: for hours it was dialled once a second."""
    dials: list[float] = []
    connect_any = Libp2pTransport.connect_any

    async def counted(node: Libp2pTransport, peer: PeerId, addresses: Sequence[str]) -> str:
        dials.append(trio.current_time())
        return await connect_any(node, peer, addresses)

    monkeypatch.setattr(Libp2pTransport, "connect_any", counted)
    wait_less(monkeypatch)

    async def main() -> None:
        async with AsyncExitStack() as stack:
            node, peer = [
                await stack.enter_async_context(
                    open_libp2p_transport(Identity.generate(), LOOPBACK)
                )
                for _ in range(2)
            ]
            peer.ban(node.peer_id, 3600.0)
            membership = Membership(node.peer_id)
            said = announce(addresses=tuple(peer.addresses()))
            membership.announced(0.0, peer.peer_id, said)
            with trio.move_on_after(16.0 / QUICKER):
                await discovery_of(node, tmp_path, membership).run()

    trio.run(main)
    assert 2 <= len(dials) <= 4


@asynccontextmanager
async def beside_a_member() -> AsyncIterator[
    tuple[Libp2pTransport, Libp2pTransport, Libp2pTransport, Membership]
]:
    """A node, a member that it is connected to and has heard of, another peer, and the node's
    membership."""
    async with AsyncExitStack() as stack:
        node, member, old = [
            await stack.enter_async_context(open_libp2p_transport(Identity.generate(), LOOPBACK))
            for _ in range(3)
        ]
        await node.connect(member.addresses()[0])
        membership = Membership(node.peer_id)
        said = announce(addresses=tuple(member.addresses()))
        membership.announced(0.0, member.peer_id, said, (member.peer_id,))
        yield node, member, old, membership


def test_a_node_that_is_connected_to_a_member_dials_no_peer_that_is_not_heard_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery_module, "LOOK_SECONDS", 0.1)

    async def main() -> None:
        async with beside_a_member() as (node, member, old, membership):
            discovery = discovery_of(node, tmp_path, membership, old.addresses()[:1])
            with trio.move_on_after(1.0):
                await discovery.run()
            assert node.peers() == [member.peer_id]

    trio.run(main)


@pytest.mark.parametrize("is_in_file", [False, True])
def test_a_peer_that_nobody_speaks_of_is_dialled_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_in_file: bool
) -> None:
    """Two machines of a home that started before its router had each other, and looked no
    further: the run's other members were never found again."""
    monkeypatch.setattr(discovery_module, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr("gossamer.protocol.policy.redial.RELAYED_BACK_OFF_SECONDS_MIN", 0.2)

    async def main() -> None:
        async with beside_a_member() as (node, member, old, membership):
            addresses = tuple(old.addresses()[:1])
            discovery = discovery_of(node, tmp_path, membership, () if is_in_file else addresses)
            if is_in_file:
                discovery._known.saw({old.peer_id: addresses})
            with trio.move_on_after(2.0):
                await discovery.run()
            assert {*node.peers()} == {member.peer_id, old.peer_id}

    trio.run(main)


def test_every_peer_of_an_earlier_life_has_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first eight are gone for good. The ninth is in a part of the swarm that was cut off."""
    monkeypatch.setattr(discovery_module, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(discovery_module, "UNHEARD_LOOKS", 10)
    monkeypatch.setattr("gossamer.protocol.policy.redial.RELAYED_BACK_OFF_SECONDS_MIN", 0.2)

    async def main() -> None:
        async with beside_a_member() as (node, member, old, membership):
            discovery, found = discovery_of(node, tmp_path, membership), trio.Event()

            def look() -> None:
                if old.peer_id in node.peers():
                    found.set()

            node.on_peers_changed(look)
            with socket.socket() as nobody:
                nobody.bind(("127.0.0.1", 0))
                gone = (f"/ip4/127.0.0.1/tcp/{nobody.getsockname()[1]}",)
                discovery._known.saw({old.peer_id: tuple(old.addresses()[:1])})
                for _ in range(UNHEARD_MAX):
                    discovery._known.found(Identity.generate().peer_id, gone)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(discovery.run)
                    with trio.move_on_after(20.0):
                        await found.wait()
                    nursery.cancel_scope.cancel()
            assert {*node.peers()} == {member.peer_id, old.peer_id}

    trio.run(main)


def test_the_addresses_that_are_dialled_beside_a_member_are_few_and_the_first_ones_stay(
    tmp_path: Path,
) -> None:
    others = [(f"other {number}", discovery_module._Target(None, ("",))) for number in range(21)]
    discovery = Discovery.__new__(Discovery)
    half, seen = UNHEARD_MAX // 2, set[str]()
    for looks in range(0, 6 * UNHEARD_LOOKS, UNHEARD_LOOKS):
        discovery._num_looks = looks
        keys = [key for key, _ in discovery._in_turn(others)]
        assert len(keys) == len({*keys}) == UNHEARD_MAX
        assert keys[:half] == [key for key, _ in others[:half]]
        discovery._num_looks = looks + UNHEARD_LOOKS - 1
        assert [key for key, _ in discovery._in_turn(others)] == keys
        seen.update(keys)
    assert len(seen) == len(others)
    for few in (0, 3, UNHEARD_MAX):
        assert discovery._in_turn(others[:few]) == others[:few]


def kind_of(node: Libp2pTransport, peer: Libp2pTransport) -> str:
    """The kind of the path that a node's new streams to a peer take."""
    path = node.path(peer.peer_id)
    assert path is not None
    return path.kind
