"""Which addresses of peers this node may be made to dial."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.node.network.dial_rules import (
    destinations,
    is_loopback,
    is_near,
    is_private,
    why_not_dialled,
)

LAN = (ipaddress.ip_network("192.168.1.0/24"), ipaddress.ip_network("fd12:3456::/64"))

OTHERS = [
    "10.0.0.1",
    "100.64.0.1",
    "172.31.255.255",
    "192.168.2.1",
    "169.254.7.7",
    "fd00::1",
    "fec0::1",
    "64:ff9b:1::7f00:1",
]
NOBODYS = [
    "0.0.0.0",
    "224.0.0.251",
    "255.255.255.255",
    "240.0.0.1",
    "::",
    "ff02::fb",
    "fe80::1",
    "fe80::1%eth0",
]
METADATA = ["169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16", "fd00:ec2::254"]
PUBLIC = ["203.0.113.7", "8.8.8.8", "2001:db8::1", "2a05:77::1", "node.example.org", "localhost"]


@pytest.mark.parametrize("host", [*OTHERS, *NOBODYS, *METADATA, "127.0.0.1", "127.8.8.8", "::1"])
def test_addresses_of_other_networks_are_not_dialled(host: str) -> None:
    reason = why_not_dialled(host, LAN, is_on_loopback=False)
    assert host.partition("%")[0] in reason
    assert is_private(host)


@pytest.mark.parametrize("host", [*PUBLIC, "192.168.1.200", "fd12:3456::9", "::ffff:192.168.1.200"])
def test_addresses_of_this_network_and_of_the_internet_are(host: str) -> None:
    assert why_not_dialled(host, LAN, is_on_loopback=False) == ""


@pytest.mark.parametrize("host", [*OTHERS, "192.168.1.7"])
def test_a_network_that_the_owner_names_is_this_machines(host: str) -> None:
    named = (ipaddress.ip_network(f"{host}/{8 if ':' not in host else 32}", strict=False),)
    assert why_not_dialled(host, named, is_on_loopback=False) == ""


@pytest.mark.parametrize("host", [*METADATA, *NOBODYS])
def test_no_network_makes_a_metadata_service_a_peer(host: str) -> None:
    everything = (ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0"))
    assert why_not_dialled(host, everything, is_on_loopback=True)


def test_loopback_is_for_nodes_on_loopback() -> None:
    for host in ("127.0.0.1", "::1", "::ffff:127.0.0.1"):
        assert why_not_dialled(host, (), is_on_loopback=True) == ""
        assert is_loopback(host)
        assert is_near(host, ())
        # An interface of loopback does not make it a network of peers.
        assert why_not_dialled(host, (ipaddress.ip_network("127.0.0.0/8"),), is_on_loopback=False)


def _holding(address: ipaddress.IPv4Address) -> dict[str, str]:
    """IPv6 addresses whose packets go to an IPv4 address, by the name of their form."""
    number = int(address)
    forms = {
        "mapped": 0xFFFF << 32 | number,
        "6to4": 0x2002 << 112 | number << 80 | 1,
        "NAT64": 0x64_FF9B << 96 | number,
        "Teredo client": 0x2001_0000 << 96 | 0xC633_6407 << 64 | (number ^ 0xFFFF_FFFF),
        "Teredo server": 0x2001_0000 << 96 | number << 64 | (0xC633_6407 ^ 0xFFFF_FFFF),
        "ISATAP": 0x2A05_0077 << 96 | 0x0000_5EFE << 32 | number,
        "ISATAP, unique": 0x2A05_0077 << 96 | 0x0200_5EFE << 32 | number,
    }
    return {name: str(ipaddress.IPv6Address(form)) for name, form in forms.items()}


@given(st.ip_addresses(v=4))
def test_an_ipv6_address_is_judged_by_the_ipv4_address_in_it(address: object) -> None:
    assert isinstance(address, ipaddress.IPv4Address)
    for is_on_loopback in (False, True):
        expected = why_not_dialled(str(address), LAN, is_on_loopback=is_on_loopback)
        for name, form in _holding(address).items():
            assert why_not_dialled(form, LAN, is_on_loopback=is_on_loopback) == expected, name


@pytest.mark.parametrize(
    "text", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "192.168.1.1", "203.0.113.7", "0.0.0.0"]
)
def test_each_form_is_seen_at_the_borders(text: str) -> None:
    address = ipaddress.IPv4Address(text)
    expected = why_not_dialled(text, LAN, is_on_loopback=False)
    for name, form in _holding(address).items():
        assert why_not_dialled(form, LAN, is_on_loopback=False) == expected, name
        assert address in destinations(ipaddress.ip_address(form)), name


@given(st.ip_addresses())
def test_every_address_has_an_answer(address: object) -> None:
    host = str(address)
    if not why_not_dialled(host, (), is_on_loopback=False):
        assert not is_private(host)
        assert not is_loopback(host)
