"""Relays that are of no use are not asked first for ever, whatever they say of their lines."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec.structs import replace

from gossamer.node.network.identity import Identity
from gossamer.node.network.over_libp2p.host import open_libp2p_transport
from gossamer.node.network.over_libp2p.nat_traversal.crossing import Crossing
from gossamer.node.network.over_libp2p.transport import Libp2pTransport
from gossamer.node.network.transport import ORDINARY_ENDS, Stream
from gossamer.node.peers.discovery import RELAYS_TRIED_MAX
from gossamer.protocol.ids import PeerId
from gossamer.protocol.policy.membership import Membership
from tests.node.peers.test_dials import LOOPBACK, discovery_of, wait_less
from tests.support.builders import announce

NOWHERE = "/ip4/127.0.0.1/tcp/1"
ASK = "/test/ask/1"
ANSWER_BYTES = 200_000
"""More than a liar passes on."""

PASSED_BYTES = 8192
"""Enough for a handshake, and for nothing else."""

PATIENCE_SECONDS = 60.0
"""Time for what takes five seconds on an idle machine."""


def _drop_what_follows(liar: Libp2pTransport) -> None:
    """It carries the handshake, and drops what follows."""
    circuits: Any = liar.paths.circuits
    pass_on = circuits._pass_on

    async def pass_little(circuit: Any, *rest: Any) -> None:
        circuit.left_bytes = min(circuit.left_bytes, PASSED_BYTES)
        await pass_on(circuit, *rest)

    circuits._pass_on = pass_little


def _refuse(liar: Libp2pTransport) -> None:
    """It says that its places are taken."""
    liar.relay_for(lambda _caller, _target: "this peer carries 32 circuits already")


def _lead_elsewhere(liar: Libp2pTransport) -> None:
    """It answers the handshake itself, in the other end's place."""
    circuits: Any = liar.paths.circuits

    async def reach(_caller: PeerId, _target: PeerId) -> Stream:
        return await liar.open_stream(_caller, "/gossamer/relayed/1")

    circuits._reach = reach


async def _answer(stream: Stream) -> None:
    await stream.receive_exactly(1)
    await stream.send(bytes(ANSWER_BYTES))


async def _is_of_use(node: Libp2pTransport, peer: PeerId) -> bool:
    try:
        with trio.fail_after(5.0):
            stream = await node.open_stream(peer, ASK)
            await stream.send(b"?")
            return len(await stream.receive_exactly(ANSWER_BYTES)) == ANSWER_BYTES
    except ORDINARY_ENDS:
        return False


@pytest.mark.parametrize(
    ("lie", "num_liars"),
    [
        (_drop_what_follows, 1),
        (_refuse, RELAYS_TRIED_MAX),
        (_lead_elsewhere, RELAYS_TRIED_MAX),
    ],
)
def test_another_relay_is_found_behind_liars_with_fast_lines(
    lie: Callable[[Libp2pTransport], None],
    num_liars: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They came first for each pair, and so two peers behind routers had no connection at all."""

    async def begin(*_arguments: object) -> bool:
        return False

    monkeypatch.setattr(Crossing, "begin", begin)
    wait_less(monkeypatch)

    async def main() -> None:
        async with AsyncExitStack() as stack:
            node, peer, honest, *liars = [
                await stack.enter_async_context(
                    open_libp2p_transport(Identity.generate(), LOOPBACK)
                )
                for _ in range(3 + num_liars)
            ]
            peer.handle(ASK, _answer)
            membership = Membership(node.peer_id)
            said = announce(addresses=(NOWHERE,))
            membership.announced(0.0, peer.peer_id, said, (honest.peer_id,))
            for relay in (honest, *liars):
                relay.relay_for(lambda _caller, _target: "")
                rate = 1e6 if relay is honest else 1e18
                said = announce(addresses=tuple(relay.addresses()))
                capacity = replace(said.capacity, bandwidth_bytes_per_second=rate)
                said = replace(said, capacity=capacity, reach="open")
                membership.announced(0.0, relay.peer_id, said, (relay.peer_id,))
                for end in (node, peer):
                    await end.connect(relay.addresses()[0])
            for liar in liars:
                lie(liar)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(discovery_of(node, tmp_path, membership).run)
                with trio.fail_after(PATIENCE_SECONDS):
                    while not await _is_of_use(node, peer.peer_id):  # noqa: ASYNC110 - the relays do it
                        await trio.sleep(0.1)
                path = node.path(peer.peer_id)
                assert path is not None
                assert path.relay == honest.peer_id
                nursery.cancel_scope.cancel()

    trio.run(main)
