"""A node's knowledge of its own reach, from the addresses that others see."""

from __future__ import annotations

import ipaddress

import pytest

from gossamer.node.network.dial_rules import is_private
from gossamer.node.network.reachability import (
    OBSERVERS_MAX,
    Endpoint,
    Neighbourhood,
    Reachability,
)
from gossamer.protocol.ids import PeerId

MINE = Endpoint("203.0.113.7", 4610)


def test_one_observer_alone_is_not_believed() -> None:
    reachability = Reachability()
    reachability.saw(PeerId("a"), "198.51.100.1", MINE)
    assert (reachability.reach, reachability.addresses()) == ("unknown", [])
    assert reachability.candidates() == [MINE]
    reachability.saw(PeerId("b"), "198.51.100.1", MINE)  # of the same network
    assert reachability.reach == "unknown"
    reachability.saw(PeerId("c"), "198.51.101.1", MINE)
    assert (reachability.reach, reachability.addresses()) == ("crossable", [MINE])


@pytest.mark.parametrize(
    ("one", "other"),
    [("2a00:1:2:3::1", "2a00:1:2:3::2"), ("198.51.101.1", "198.51.101.2")],
)
def test_addresses_of_one_network_are_one_observer(one: str, other: str) -> None:
    reachability = Reachability()
    victim = Endpoint("203.0.113.200", 443)
    reachability.saw(PeerId("rogue 1"), one, victim)
    reachability.saw(PeerId("rogue 2"), other, victim)
    assert (reachability.reach, reachability.addresses()) == ("unknown", [])


def test_a_liar_changes_nothing_and_is_outnumbered() -> None:
    reachability = Reachability()
    reachability.saw(PeerId("liar"), "198.51.100.9", Endpoint("192.0.2.1", 80))
    for number in (1, 2):
        reachability.saw(PeerId(f"peer {number}"), f"198.51.{number}.1", MINE)
    assert reachability.addresses() == [MINE]


def test_a_router_that_gives_each_connection_another_port_is_strict() -> None:
    reachability = Reachability()
    for number in (1, 2, 3):
        seen = Endpoint(MINE.host, 5000 + number)
        reachability.saw(PeerId(f"peer {number}"), f"198.51.{number}.1", seen)
    assert (reachability.reach, reachability.addresses()) == ("strict", [])


def test_a_peer_of_another_network_that_dials_in_shows_that_it_can_be_done() -> None:
    reachability = Reachability()
    reachability.dialled_in(PeerId("neighbour"), "192.168.1.9")
    assert reachability.reach == "unknown"
    reachability.saw(PeerId("a"), "198.51.100.1", MINE)
    reachability.dialled_in(PeerId("housemate"), MINE.host)  # back over the own router
    assert reachability.reach == "unknown"
    reachability.dialled_in(PeerId("stranger"), "198.51.100.1")
    assert (reachability.reach, reachability.num_confirmed) == ("open", 1)


def test_what_was_seen_in_another_network_is_forgotten() -> None:
    reachability = Reachability()
    for number in (1, 2):
        reachability.saw(PeerId(f"peer {number}"), f"198.51.{number}.1", MINE)
    classes = [reachability.reach]
    reachability.dialled_in(PeerId("stranger"), "198.51.100.1")
    classes.append(reachability.reach)
    reachability.moved()
    classes.append(reachability.reach)
    assert classes == ["crossable", "open", "unknown"]
    assert reachability.addresses() == []


def test_neighbours_in_one_network_see_nothing_of_the_router() -> None:
    reachability = Reachability()
    for number in (1, 2):
        reachability.saw(
            PeerId(f"peer {number}"), f"192.168.1.{number}", Endpoint("192.168.1.7", 1)
        )
    assert reachability.candidates() == []


def test_observers_are_bounded() -> None:
    reachability = Reachability()
    for number in range(OBSERVERS_MAX + 10):
        host = str(ipaddress.ip_address("198.18.0.0") + number)
        reachability.saw(PeerId(f"peer {number}"), host, Endpoint(MINE.host, 1000 + number))
        reachability.dialled_in(PeerId(f"peer {number}"), host)
    assert len(reachability.candidates()) == OBSERVERS_MAX
    assert reachability.num_confirmed == OBSERVERS_MAX


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("10.1.2.3", True),
        ("100.64.0.1", True),
        ("fe80::1%eth0", True),
        ("fd00::1", True),
        ("203.0.113.7", False),
        ("2001:db8::1", False),
    ],
)
def test_private_addresses(host: str, expected: bool) -> None:
    assert is_private(host) == expected


LAN = ipaddress.ip_network("192.168.1.0/24")


@pytest.mark.parametrize(
    ("outer", "hosts", "expected"),
    [
        # a stranger of another home whose network has the same numbers
        ({"203.0.113.7"}, ["198.51.100.1", "192.168.1.5"], [True, False]),
        # a housemate; its other subnet is not this machine's
        ({"203.0.113.7"}, ["203.0.113.7", "192.168.1.5", "10.0.0.5"], [True, True, False]),
        # no router in between is known on one side
        ({"203.0.113.7"}, ["192.168.1.5", "10.0.0.5"], [True, False]),
        (set(), ["203.0.113.7", "192.168.1.5", "10.0.0.5"], [True, True, False]),
        # names are public
        ({"203.0.113.7"}, ["node.example.org", "192.168.1.5"], [True, False]),
        # loopback never, see below
        (set(), ["127.0.0.1"], [False]),
        (set(), ["192.168.1.5", "127.0.0.1"], [True, False]),
        # an IPv6 address is judged by the IPv4 address in it
        ({"203.0.113.7"}, ["::ffff:192.168.1.5", "::ffff:10.0.0.5"], [True, False]),
        ({"203.0.113.7"}, ["198.51.100.1", "::ffff:192.168.1.5"], [True, False]),
        (set(), ["::ffff:127.0.0.1", "::ffff:198.51.100.1"], [False, True]),
    ],
)
def test_addresses_that_are_worth_a_dial(
    outer: set[str], hosts: list[str], expected: list[bool]
) -> None:
    assert Neighbourhood(frozenset(outer), (LAN,)).worth_dialling(hosts) == expected


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        (["127.0.0.1"], [True]),
        (["127.0.0.1", "::1"], [True, True]),
        (["192.168.1.5", "127.0.0.1"], [True, False]),
        (["127.0.0.1", "169.254.169.254"], [False, False]),
    ],
)
def test_a_node_on_loopback_dials_peers_that_have_nothing_else(
    hosts: list[str], expected: list[bool]
) -> None:
    neighbourhood = Neighbourhood(frozenset(), (LAN,), is_on_loopback=True)
    assert neighbourhood.worth_dialling(hosts) == expected
