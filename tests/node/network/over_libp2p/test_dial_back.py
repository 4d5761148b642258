"""A peer that always dials first learns from others whether its port is open; on loopback here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from gossamer.node.network import reachability
from gossamer.node.network.frames import receive_frame, send_frame
from gossamer.node.network.identity import Identity
from gossamer.node.network.over_libp2p.host import open_libp2p_transport
from gossamer.node.network.over_libp2p.nat_traversal import dial_back
from gossamer.node.network.over_libp2p.nat_traversal.dial_back import DialBacks
from gossamer.node.network.over_libp2p.transport import Libp2pTransport
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import PeerId
from gossamer.protocol.wire.dial_back_messages import (
    DIAL_BACK_BYTES_MAX,
    DIAL_BACK_PROTOCOL,
    DialBack,
    Dialled,
    decode_dial_back,
)

ASKER, HELPER = ("/ip4/127.0.0.1/tcp/0",), ("/ip4/127.0.0.2/tcp/0",)
"""Two hosts of loopback stand for two networks."""


def _run(
    story: Callable[[Libp2pTransport, Libp2pTransport], Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reachability, "is_private", lambda _host: False)
    monkeypatch.setattr(DialBacks, "_is_in_another_network", lambda _self, _host: True)

    async def main() -> None:
        with trio.fail_after(30):
            async with (
                open_libp2p_transport(Identity.generate(), ASKER) as asker,
                open_libp2p_transport(Identity.generate(), HELPER) as helper,
            ):
                await asker.connect(helper.addresses()[0])
                await story(asker, helper)

    trio.run(main)


async def _ask(asker: Libp2pTransport, helper: Libp2pTransport, *ports: int) -> int:
    stream = await asker.open_stream(helper.peer_id, DIAL_BACK_PROTOCOL)
    await send_frame(stream, to_msgpack(DialBack(ports)))
    data, _ = await receive_frame(
        stream, message_bytes_max=DIAL_BACK_BYTES_MAX, payload_bytes_max=0
    )
    await stream.reset()
    answer = decode_dial_back(data)
    assert isinstance(answer, Dialled)
    return answer.port


def test_a_peer_that_dialled_first_learns_that_its_port_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dial_back, "LOOK_SECONDS", 0.1)

    async def story(asker: Libp2pTransport, helper: Libp2pTransport) -> None:
        while asker.reach().reach != "open":  # noqa: ASYNC110 - a task of the transport learns it
            await trio.sleep(0.02)
        assert asker.reach().num_confirmed == 1
        # No connection has come of it.
        assert len(asker._swarm.get_connections()) == len(helper._swarm.get_connections()) == 1

    _run(story, monkeypatch)


def test_a_look_among_the_same_peers_asks_the_system_for_no_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dial_back, "LOOK_SECONDS", 0.02)
    looked: list[PeerId] = []

    def is_nowhere(_backs: DialBacks, peer: PeerId) -> None:
        looked.append(peer)

    monkeypatch.setattr(DialBacks, "_host_of", is_nowhere)

    async def story(asker: Libp2pTransport, helper: Libp2pTransport) -> None:
        await trio.sleep(0.5)
        assert looked.count(helper.peer_id) == 1
        async with open_libp2p_transport(Identity.generate(), HELPER) as another:
            await asker.connect(another.addresses()[0])
            await trio.sleep(0.5)
            assert looked.count(another.peer_id) == 1
            assert looked.count(helper.peer_id) == 2

    _run(story, monkeypatch)


def test_only_the_asker_itself_counts_as_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial_back, "LOOK_SECONDS", 1e6)
    monkeypatch.setattr(dial_back, "HELP_AGAIN_SECONDS", 0.0)

    async def story(asker: Libp2pTransport, helper: Libp2pTransport) -> None:
        async with open_libp2p_transport(Identity.generate(), ASKER) as neighbour:
            assert await _ask(asker, helper, neighbour.port) == 0
            assert await _ask(asker, helper, neighbour.port, asker.port) == asker.port
        assert await _ask(asker, helper, 1) == 0  # nothing listens there

    _run(story, monkeypatch)


def test_a_peer_is_dialled_back_now_and_then_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial_back, "LOOK_SECONDS", 1e6)

    async def story(asker: Libp2pTransport, helper: Libp2pTransport) -> None:
        assert await _ask(asker, helper, asker.port) == asker.port
        assert await _ask(asker, helper, asker.port) == 0

    _run(story, monkeypatch)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"nonsense",
        to_msgpack(DialBack(())),
        to_msgpack(DialBack((1, 2, 3, 4, 5))),
        to_msgpack(DialBack((0,))),
        to_msgpack(DialBack((65_536,))),
        to_msgpack(Dialled(-1)),
    ],
)
def test_messages_out_of_range_are_malformed(data: bytes) -> None:
    with pytest.raises(MalformedError):
        decode_dial_back(data)
