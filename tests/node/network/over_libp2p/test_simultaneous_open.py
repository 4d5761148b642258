"""Two ends that both dialled and got one connection agree on who answers."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as create_new_x25519_key_pair
from libp2p.io.trio import TrioTCPStream
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID
from libp2p.security.noise.exceptions import PeerIDMismatchesPubkey

from gossamer.node.network.identity import Identity
from gossamer.node.network.over_libp2p.addresses import libp2p_id
from gossamer.node.network.over_libp2p.noise.noise import FastNoiseTransport

NUM_TRIES = 12
"""Number of connections. Two random keys decide which end answers: it is always the same one in one
of 2,000 runs."""


async def _connected() -> tuple[trio.SocketStream, trio.SocketStream]:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        dialled = await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])
        return dialled, await listener.accept()


def _noise(identity: Identity) -> FastNoiseTransport:
    keys = create_new_key_pair(identity.private_bytes())
    return FastNoiseTransport(keys, noise_privkey=create_new_x25519_key_pair().private_key)


async def _both_dial(identities: list[Identity], expected: list[ID]) -> list[Any]:
    """The channels of both ends, each of which has begun the handshake; or what they raised."""
    ends: list[Any] = [None, None]

    async def dial(place: int, stream: trio.SocketStream) -> None:
        connection = RawConnection(TrioTCPStream(stream), True)
        try:
            ends[place] = await _noise(identities[place]).secure_outbound(
                connection, expected[place]
            )
        except Exception as error:
            ends[place] = error
            await stream.aclose()

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            for place, stream in enumerate(await _connected()):
                nursery.start_soon(dial, place, stream)
    return ends


def test_one_end_becomes_the_responder_and_both_understand_each_other() -> None:
    responders = set()

    async def main() -> None:
        for _ in range(NUM_TRIES):
            identities = [Identity.generate(), Identity.generate()]
            peers = [libp2p_id(identity.peer_id) for identity in identities]
            ends = await _both_dial(identities, peers[::-1])
            assert [end.get_remote_peer() for end in ends] == peers[::-1]
            assert ends[0].is_initiator != ends[1].is_initiator
            responders.add(ends[0].is_initiator)
            for one, other in (ends, ends[::-1]):
                await one.write(b"hello")
                assert await other.read(5) == b"hello"
            for end in ends:
                await end.close()

    trio.run(main)
    assert responders == {True, False}


@pytest.mark.parametrize("wrong", [0, 1])
def test_the_peer_that_was_dialled_is_the_one_that_must_answer(wrong: int) -> None:
    async def main() -> None:
        for _ in range(NUM_TRIES):
            identities = [Identity.generate(), Identity.generate()]
            expected = [libp2p_id(identity.peer_id) for identity in identities][::-1]
            expected[wrong] = libp2p_id(Identity.generate().peer_id)
            ends = await _both_dial(identities, expected)
            assert isinstance(ends[wrong], PeerIDMismatchesPubkey)
            if not isinstance(ends[1 - wrong], Exception):
                await ends[1 - wrong].close()

    trio.run(main)
