"""The router is the one that this machine's traffic leaves by."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gossamer.node.network.home_router import default_gateway as module
from gossamer.node.network.home_router.default_gateway import (
    Gateway,
    NoGatewayError,
    default_gateway,
    gateway_of_answer,
    gateway_of_table,
    own_host_for,
    why_no_router,
)

HEAD = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
LAN = "eth0\t0000A8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0\n"
CABLE = "eth0\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
RADIO = "wlan0\t00000000\t0102A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0\n"
TUNNEL = "tun0\t00000000\t00000000\t0001\t0\t0\t50\t00000000\t0\t0\t0\n"
HALF = "tun0\t00000000\t0100080A\t0003\t0\t0\t0\t00000080\t0\t0\t0\n"
REJECT = "lo\t00000000\t0103A8C0\t0203\t0\t0\t10\t00000000\t0\t0\t0\n"

ANSWER = """   route to: default
destination: default
       mask: default
    gateway: 192.168.1.1
  interface: en0
      flags: <UP,GATEWAY,DONE,STATIC,PRCLONING,GLOBAL>
 recvpipe  sendpipe  ssthresh  rtt,msec    rttvar  hopcount      mtu     expire
       0         0         0         0         0         0      1500         0
"""
"""Of macOS, written from its manual: nobody has run it for this."""


@pytest.mark.skipif(sys.byteorder == "big", reason="these tables are of a little-endian machine")
@pytest.mark.parametrize(
    ("routes", "expected"),
    [
        (LAN + CABLE, "192.168.1.1"),
        (RADIO + LAN + CABLE, "192.168.1.1"),
        (RADIO, "192.168.2.1"),
        (CABLE + TUNNEL, ""),
        (HALF + CABLE, "192.168.1.1"),
        (REJECT + CABLE, "192.168.1.1"),
        (LAN, ""),
        ("", ""),
        ("\n" + CABLE[:20], ""),
    ],
)
def test_the_gateway_of_the_default_route_with_the_lowest_metric(
    routes: str, expected: str
) -> None:
    assert gateway_of_table(HEAD + routes) == expected


def test_the_gateway_where_no_file_tells_it() -> None:
    assert gateway_of_answer(ANSWER) == "192.168.1.1"
    assert gateway_of_answer(ANSWER.replace("192.168.1.1", "link#12")) == ""
    assert gateway_of_answer("route: writing to routing socket: not in table\n") == ""


@pytest.mark.parametrize(
    ("host", "problem"),
    [
        ("192.168.1.1", ""),
        ("10.0.0.1", ""),
        ("169.254.1.1", ""),
        ("100.64.0.1", ""),
        ("127.0.0.1", "this machine itself"),
        ("192.168.1.10", "this machine itself"),
        ("169.254.169.254", "metadata"),
        ("239.255.255.250", "no address of a single machine"),
        ("0.0.0.0", "no address of a single machine"),
        ("8.8.8.8", "no address of a home"),
    ],
)
def test_a_gateway_is_a_router_of_a_home(host: str, problem: str) -> None:
    reason = why_no_router(host, "192.168.1.10")
    assert problem in reason
    assert bool(problem) == bool(reason)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file that tells the routes."""
    path = tmp_path / "route"
    path.write_text(HEAD + CABLE)
    monkeypatch.setattr(module, "ROUTES", path)
    return path


def _roads(monkeypatch: pytest.MonkeyPatch, own_host: str, outside: str) -> None:
    hosts = {"192.168.1.1": own_host}
    monkeypatch.setattr(module, "own_host_for", lambda host: hosts.get(host, outside))


@pytest.mark.skipif(sys.byteorder == "big", reason="these tables are of a little-endian machine")
def test_the_router_has_to_be_the_way_out(monkeypatch: pytest.MonkeyPatch, told: Path) -> None:
    """A VPN may leave the default route as it is and take all traffic by others."""
    _roads(monkeypatch, "192.168.1.10", "192.168.1.10")
    assert default_gateway() == Gateway("192.168.1.1", "192.168.1.10")
    _roads(monkeypatch, "192.168.1.10", "10.8.0.2")
    with pytest.raises(NoGatewayError, match=r"not its router at 192\.168\.1\.1.*VPN"):
        default_gateway()
    told.write_text(HEAD + LAN)
    with pytest.raises(NoGatewayError, match="no default gateway"):
        default_gateway()
    told.write_bytes(b"\xff" + HEAD.encode())
    with pytest.raises(NoGatewayError, match="does not tell"):
        default_gateway()


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        (f"cat <<'END'\n{ANSWER}\nEND", ""),
        ("echo none", "no default gateway"),
        ("exec sleep 20", "does not tell its default gateway"),
    ],
)
def test_another_system_is_asked_by_its_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, problem: str
) -> None:
    monkeypatch.setattr(module, "ROUTES", tmp_path / "none")
    monkeypatch.setattr(module, "ROUTE_COMMAND", ("/bin/sh", "-c", script))
    if "sleep" in script:
        monkeypatch.setattr(module, "ROUTE_SECONDS_MAX", 0.2)
    _roads(monkeypatch, "192.168.1.10", "192.168.1.10")
    if problem:
        with pytest.raises(NoGatewayError, match=problem):
            default_gateway()
    else:
        assert default_gateway().host == "192.168.1.1"
    monkeypatch.setattr(module, "ROUTE_COMMAND", (str(tmp_path / "absent"),))
    with pytest.raises(NoGatewayError, match="does not tell"):
        default_gateway()


def test_the_own_address_is_that_of_the_route() -> None:
    assert own_host_for("127.0.0.7") == "127.0.0.1"
    with pytest.raises(NoGatewayError, match="no route leads to"):
        own_host_for("255.255.255.255")
