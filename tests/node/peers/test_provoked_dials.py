"""Dials that a peer provokes with the addresses that it announces, on the real transport.

Each test puts a real `Discovery` over a real `Libp2pTransport`. Where the kernel has no such
network, the connection alone is replaced, below every rule.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import math
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
import trio.testing

from gossamer.node.base.awake_clock import AwakeClock
from gossamer.node.network.identity import Identity
from gossamer.node.network.over_libp2p.host import open_libp2p_transport
from gossamer.node.network.over_libp2p.nat_traversal import own_addresses
from gossamer.node.network.over_libp2p.nat_traversal.own_addresses import OwnAddresses
from gossamer.node.network.over_libp2p.tcp.tcp import PortReusingTcp
from gossamer.node.network.over_libp2p.transport import Libp2pTransport
from gossamer.node.network.reachability import Endpoint, Neighbourhood
from gossamer.node.peers.discovery import Discovery
from gossamer.node.storage.known_peers import KnownPeers
from gossamer.node.telemetry.gpus import Gpus
from gossamer.node.telemetry.metrics import Metrics
from gossamer.protocol.ids import digest_of
from gossamer.protocol.policy.membership import Membership
from gossamer.protocol.wire.statements import Announce, Capacity
from tests.support.measured import measured
from tests.support.open_entrance import OpenEntrance

LOOPBACK = ("/ip4/127.0.0.1/tcp/0",)
VICTIM = "198.51.100.7"
NUM_IDENTITIES = 12
SECONDS = 60.0

CAPACITY = Capacity("CPU", "cpu", 0, 2**30, 1, 1000.0, 1e6)

DIALS_MAX = 32
"""Dials to one host in `SECONDS`: 16 at once, and one every 5 s, with some room. Without a budget
there were 17 a second."""

DIALS_TO_NETWORK_MAX = 68
"""Dials to one /24 in `SECONDS`: 32 at once, and one every 2 s, with some room."""

DIALS_IN_ALL_MAX = 384
"""Dials in all in `SECONDS`: 128 at once, and 4 a second, with some room. Without a budget there
were 89 a second."""

CROSSING_DIALS_MAX = 66
"""Dials to one host in 30 s of crossings: 48 at once, and one every 2 s, with some room."""


def _in_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine has one network, 192.168.1.0/24, and listens in it."""
    lan = ipaddress.ip_network("192.168.1.0/24")
    monkeypatch.setattr(own_addresses, "interface_networks", lambda: (lan,))
    monkeypatch.setattr(OwnAddresses, "all", lambda _self: ["/ip4/192.168.1.9/tcp/4610"])


def _announcement(addresses: Sequence[str]) -> Announce:
    return Announce(
        sequence=1, incarnation=1, phase="training", round=0, head=digest_of(b"head"),
        tokens_total=0, checkpoint_round=0, claims=(), addresses=tuple(addresses),
        capacity=CAPACITY,
    )  # fmt: skip


async def _discover(
    transport: Libp2pTransport, announced: Sequence[Sequence[str]], folder: Path, seconds: float
) -> None:
    """Lets a node look for peers that announce these addresses, one identity each."""
    membership = Membership(transport.peer_id)
    for number, addresses in enumerate(announced):
        author = Identity.from_seed(digest_of(b"announcer", bytes([number]))).peer_id
        membership.announced(0.0, author, _announcement(addresses), (author,))
    discovery = Discovery(
        transport, KnownPeers(folder / "peers"), (), membership, Metrics(Gpus()),
        random.Random(1), AwakeClock(), OpenEntrance(),
    )  # fmt: skip
    with trio.move_on_after(seconds):
        await discovery.run()


def _dials_of(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    announced: Sequence[Sequence[str]],
    seconds: float = SECONDS,
) -> list[str]:
    """The hosts that a node in a home dials within some seconds, when peers announce these."""
    hosts: list[str] = []

    async def connect(_self: PortReusingTcp, host: str, _port: int) -> trio.SocketStream:
        hosts.append(host)
        await trio.sleep(0.05)
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(PortReusingTcp, "_connect", connect)
    _in_a_home(monkeypatch)

    async def main() -> None:
        async with open_libp2p_transport(Identity.generate(), LOOPBACK) as transport:
            await _discover(transport, announced, tmp_path, seconds)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.01))
    return hosts


def test_announcements_that_name_a_third_party_flood_nobody(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Twelve free identities, eight ports each, one host."""
    announced = [
        [f"/ip4/{VICTIM}/tcp/{1000 + 8 * number + port}" for port in range(8)]
        for number in range(NUM_IDENTITIES)
    ]
    hosts = _dials_of(monkeypatch, tmp_path, announced)
    measured(f"{len(hosts)} dials to one host in {SECONDS:.0f} s")
    assert 1 <= len(hosts) <= DIALS_MAX


def test_a_third_partys_network_is_not_flooded_through_its_many_hosts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    announced = [
        [f"/ip4/198.51.100.{8 * number + host}/tcp/4610" for host in range(8)]
        for number in range(NUM_IDENTITIES)
    ]
    hosts = _dials_of(monkeypatch, tmp_path, announced)
    measured(f"{len(hosts)} dials to one network in {SECONDS:.0f} s")
    assert 1 <= len(hosts) <= DIALS_TO_NETWORK_MAX


@pytest.mark.long
def test_many_networks_together_have_a_bound(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    announced = [
        [f"/ip4/11.{number}.{host}.7/tcp/4610" for host in range(8)] for number in range(64)
    ]
    hosts = _dials_of(monkeypatch, tmp_path, announced)
    measured(f"{len(hosts)} dials to many networks in {SECONDS:.0f} s")
    assert 100 <= len(hosts) <= DIALS_IN_ALL_MAX


@pytest.mark.parametrize(
    "address",
    [
        "/ip4/127.0.0.1/tcp/6379",
        "/ip4/10.0.0.1/tcp/80",
        "/ip4/100.64.0.1/tcp/80",
        "/ip4/172.16.0.1/tcp/80",
        "/ip4/169.254.169.254/tcp/80",
        "/ip4/100.100.100.200/tcp/80",
        "/ip4/168.63.129.16/tcp/80",
        "/ip4/0.0.0.0/tcp/80",
        "/ip4/224.0.0.1/tcp/80",
        "/ip4/255.255.255.255/tcp/80",
        "/ip6/::1/tcp/80",
        "/ip6/::/tcp/80",
        "/ip6/fe80::1/tcp/80",
        "/ip6/fd00:ec2::254/tcp/80",
        "/ip6/ff02::1/tcp/80",
        "/ip6/::ffff:127.0.0.1/tcp/6379",
        "/ip6/::ffff:169.254.169.254/tcp/80",
        "/ip6/::127.0.0.1/tcp/80",
        "/ip6/2002:7f00:1::1/tcp/80",
        "/ip6/64:ff9b::a9fe:a9fe/tcp/80",
        "/ip6/2001:0:c633:6407:0:0:80ff:fffe/tcp/80",
        "/dns4/localhost/tcp/6379",
        "/dns/127.0.0.1/tcp/6379",
        "/dns4/2130706433/tcp/6379",
    ],
)
def test_an_announced_address_of_another_network_is_not_dialled(
    address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also where the peer claims to be behind the same router as this node."""
    hosts = _dials_of(
        monkeypatch, tmp_path, [[address], [address, "/ip4/192.168.1.7/tcp/4610"]], 15.0
    )
    assert set(hosts) <= {"192.168.1.7"}


def test_a_peer_that_claims_this_nodes_outer_address_opens_no_other_network(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What a node's outer address is, is no secret: it announces it."""
    neighbourhood = OwnAddresses.neighbourhood

    def seen_as_the_victim(own: OwnAddresses) -> Neighbourhood:
        return dataclasses.replace(neighbourhood(own), outer_hosts=frozenset({VICTIM}))

    monkeypatch.setattr(OwnAddresses, "neighbourhood", seen_as_the_victim)
    own = f"/ip4/{VICTIM}/tcp/4610"
    announced = [[own, "/ip4/10.0.0.5/tcp/22", "/ip4/169.254.169.254/tcp/80"]]
    assert set(_dials_of(monkeypatch, tmp_path, announced, 15.0)) == {VICTIM}


@pytest.mark.long
def test_an_address_that_the_owner_typed_is_dialled_whatever_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In this life or in an earlier one; what the peer announces beside it is not."""
    _in_a_home(monkeypatch)

    async def main() -> None:
        announcer = Identity.from_seed(digest_of(b"announcer", b"\0"))
        me = Identity.generate()
        async with open_libp2p_transport(announcer, LOOPBACK) as server:
            address = f"/ip4/127.0.0.1/tcp/{server.port}"
            async with open_libp2p_transport(me, LOOPBACK) as node:
                await _discover(node, [[address]], tmp_path, 4.0)
                assert node.peers() == []
            async with open_libp2p_transport(me, LOOPBACK, typed=[address]) as node:
                with trio.fail_after(30.0):
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(_discover, node, [[address]], tmp_path, math.inf)
                        while not node.peers():  # noqa: ASYNC110 - another task dials
                            await trio.sleep(0.05)
                        nursery.cancel_scope.cancel()
                assert node.peers() == [server.peer_id]

    trio.run(main)


@pytest.mark.long
def test_a_peer_that_crosses_routers_again_and_again_floods_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It names four ports of a third party, whose machine refuses each dial at once."""
    num_dials = 0

    async def refuse(_self: PortReusingTcp, host: str, _port: int) -> None:
        nonlocal num_dials
        assert host == VICTIM
        num_dials += 1
        await trio.sleep(0.01)
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(PortReusingTcp, "dial_from_listener", refuse)
    _in_a_home(monkeypatch)
    asker = Identity.from_seed(digest_of(b"asker")).peer_id
    endpoints = [Endpoint(VICTIM, port) for port in range(1000, 1004)]

    async def main() -> None:
        async with open_libp2p_transport(Identity.generate(), LOOPBACK) as transport:
            for _ in range(6):
                assert not await transport.paths._dial(asker, endpoints, 5.0)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.01))
    assert 1 <= num_dials <= CROSSING_DIALS_MAX
