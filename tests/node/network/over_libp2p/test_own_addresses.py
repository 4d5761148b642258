"""The addresses that a node tells others, and the port that it keeps."""

from __future__ import annotations

import errno
import os
import socket
from types import SimpleNamespace

import psutil
import pytest
import trio
from multiaddr import Multiaddr

from gossamer.node.network.identity import Identity
from gossamer.node.network.over_libp2p import addresses
from gossamer.node.network.over_libp2p.host import open_libp2p_transport
from gossamer.node.network.over_libp2p.tcp import tcp
from gossamer.node.network.reachability import Endpoint
from gossamer.node.network.transport import ListenError
from gossamer.protocol.ids import PeerId
from tests.support.ports import free_ports

LOOPBACK = "/ip4/127.0.0.1/tcp/0"
NAMED = "/dns/node.example.org/tcp/4610"


def test_what_the_operator_names_comes_first_then_global_seen_and_private_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hosts = {socket.AF_INET: ["192.168.1.10", "203.0.113.9"], socket.AF_INET6: []}
    monkeypatch.setattr(addresses, "interface_hosts", hosts.__getitem__)

    async def main() -> None:
        async with open_libp2p_transport(
            Identity.generate(), ["/ip4/0.0.0.0/tcp/0"], announced=[NAMED]
        ) as transport:
            for number in (1, 2):
                seen = Endpoint("198.51.100.7", 4610)
                observer = PeerId(f"peer {number}")
                transport.own.reachability.saw(observer, f"198.18.{number}.1", seen)
            found = [each.partition("/p2p/")[0] for each in transport.addresses()]
            port = transport.port
        assert found == [
            NAMED,
            f"/ip4/203.0.113.9/tcp/{port}",
            "/ip4/198.51.100.7/tcp/4610",
            f"/ip4/192.168.1.10/tcp/{port}",
        ]

    trio.run(main)


@pytest.mark.parametrize("other", [["192.168.1.10"], []])
def test_loopback_is_told_only_where_a_node_has_nothing_else(
    monkeypatch: pytest.MonkeyPatch, other: list[str]
) -> None:
    """With IPv4 alone most machines have loopback of IPv6 all the same."""
    hosts = {socket.AF_INET: other or ["127.0.0.1"], socket.AF_INET6: ["::1"]}
    monkeypatch.setattr(addresses, "interface_hosts", hosts.__getitem__)

    async def main() -> None:
        both = ["/ip4/0.0.0.0/tcp/0", "/ip6/::/tcp/0"]
        async with open_libp2p_transport(Identity.generate(), both) as transport:
            found = {each.split("/")[2] for each in transport.addresses()}
        assert found == (set(other) or {"127.0.0.1", "::1"})

    trio.run(main)


def test_a_process_without_a_free_file_keeps_its_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To ask the system for them takes a socket for a moment."""
    listens, family = Multiaddr("/ip4/0.0.0.0/tcp/4610"), socket.AF_INET
    before = addresses.dialable(listens), addresses.interface_networks()
    assert before[0] == [f"/ip4/{each}/tcp/4610" for each in addresses.interface_hosts(family)]

    def no_file() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(psutil, "net_if_addrs", no_file)
    assert (addresses.dialable(listens), addresses.interface_networks()) == before


def test_bridges_of_containers_are_not_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    def address(host: str) -> SimpleNamespace:
        return SimpleNamespace(family=socket.AF_INET, address=host, netmask="255.255.0.0")

    interfaces = {
        "docker0": [address("172.17.0.1")],
        "eth0": [address("192.168.1.10")],
        "lo": [address("127.0.0.1")],
        "veth12ab": [address("169.254.3.4")],
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: interfaces)
    assert addresses.interface_hosts(socket.AF_INET) == ["192.168.1.10"]
    assert [str(network) for network in addresses.interface_networks()] == [
        "192.168.0.0/16",
        "127.0.0.0/16",
    ]


def test_an_open_port_is_the_given_one_if_it_is_free_and_another_one_if_not() -> None:
    async def main() -> None:
        (port,) = free_ports(1)
        async with open_libp2p_transport(Identity.generate(), [LOOPBACK], port=port) as first:
            assert first.port == port
            async with open_libp2p_transport(Identity.generate(), [LOOPBACK], port=port) as second:
                assert second.port != port

    trio.run(main)


def test_a_machine_without_a_family_listens_on_the_other_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listening = tcp._listening

    def without_ipv6(host: str, port: int) -> socket.socket:
        if ":" in host:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return listening(host, port)

    monkeypatch.setattr(tcp, "_listening", without_ipv6)

    async def main() -> None:
        both = ["/ip4/0.0.0.0/tcp/0", "/ip6/::/tcp/0"]
        async with open_libp2p_transport(Identity.generate(), both) as transport:
            assert all("/ip4/" in address for address in transport.addresses())
        with pytest.raises(ListenError, match="not supported"):
            async with open_libp2p_transport(Identity.generate(), ["/ip6/::/tcp/0"]):
                pass

    trio.run(main)


def test_an_address_that_is_not_this_machines_is_an_error() -> None:
    async def main() -> None:
        listen = [LOOPBACK, "/ip4/192.0.2.1/tcp/0"]
        with pytest.raises(ListenError, match=r"192\.0\.2\.1"):
            async with open_libp2p_transport(Identity.generate(), listen):
                pass

    trio.run(main)


def test_a_newcomer_that_is_let_in_asks_again_where_others_see_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a stranger it got no answer on that connection."""

    async def main() -> None:
        known: set[PeerId] = set()
        async with (
            open_libp2p_transport(Identity.generate(), [LOOPBACK]) as server,
            open_libp2p_transport(Identity.generate(), [LOOPBACK]) as newcomer,
        ):
            seen: list[tuple[PeerId, str, Endpoint]] = []
            monkeypatch.setattr(
                newcomer.own.reachability, "saw", lambda *observation: seen.append(observation)
            )
            # Dials to this machine itself leave from other ports.
            monkeypatch.setattr(newcomer.own, "_listening_ports", lambda: range(65_536))
            server.admit(known.__contains__)
            await newcomer.connect(server.addresses()[0])
            await trio.sleep(1.0)
            assert seen == []
            known.add(newcomer.peer_id)
            server.let_in(newcomer.peer_id)
            newcomer.let_in(server.peer_id)
            with trio.fail_after(10):
                while not seen:  # noqa: ASYNC110 - an observation sets no event
                    await trio.sleep(0.05)
            observer, host, endpoint = seen[0]
            assert (observer, host, endpoint.host) == (server.peer_id, "127.0.0.1", "127.0.0.1")

    trio.run(main)
