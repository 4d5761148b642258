"""What is asked of a router that answers: ports, others if they are taken, and their end."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gossamer.node.network.home_router.default_gateway import Gateway
from gossamer.node.network.home_router.gateway_http import Place
from gossamer.node.network.home_router.igd import (
    CONNECTION_KINDS,
    Connection,
    RouterError,
    described,
)
from gossamer.node.network.home_router.upnp import LEASE_SECONDS, PORTS_TRIED, map_port, unmap_port
from tests.support.home_network import Asked, WebServer, page
from tests.support.home_router import (
    CONTROL,
    DESCRIPTION,
    OUTSIDE,
    HomeRouter,
    description,
    envelope,
    service,
)

PORT = 4610
HERE = Gateway("127.0.0.1", "192.168.1.10")


@contextmanager
def services_of(router: HomeRouter) -> Iterator[list[Connection]]:
    """The services of a router on loopback."""
    with WebServer(router).running() as server:
        text = description(*router.services, base=router.base)
        place = Place(server.host, server.port, DESCRIPTION)
        yield described(text.encode(), place, HERE, time.monotonic() + 10.0)


@pytest.mark.parametrize("kind", CONNECTION_KINDS)
def test_a_router_forwards_a_port_and_ends_it(kind: str) -> None:
    router = HomeRouter(services=(service(kind, CONTROL),))
    with services_of(router) as services:
        assert map_port(PORT, services) == (OUTSIDE, PORT)
        assert router.mapped == {PORT: (HERE.own_host, PORT, LEASE_SECONDS)}
        unmap_port(PORT, services)
    assert router.mapped == {}


def test_another_outer_port_is_asked_for_where_one_is_taken() -> None:
    router = HomeRouter(taken={PORT, PORT + 1})
    with services_of(router) as services:
        assert map_port(PORT, services) == (OUTSIDE, PORT + 2)
    assert router.mapped == {PORT + 2: (HERE.own_host, PORT, LEASE_SECONDS)}


def test_a_router_that_knows_no_leases_maps_without_an_end() -> None:
    router = HomeRouter(is_permanent=True, taken={PORT})
    with services_of(router) as services:
        assert map_port(PORT, services) == (OUTSIDE, PORT + 1)
        assert router.mapped == {PORT + 1: (HERE.own_host, PORT, 0)}
        unmap_port(PORT + 1, services)
    assert router.mapped == {}


@pytest.mark.parametrize(
    ("router", "problem"),
    [
        (HomeRouter(outer="10.1.2.3"), r"behind another one \(its address is 10.1.2.3\)"),
        (HomeRouter(outer="100.64.7.7"), "behind another one"),
        (HomeRouter(outer=""), "no outer address"),
        (HomeRouter(outer="0.0.0.0"), "no outer address"),
        (HomeRouter(outer="x" * 5000), "no outer address"),
        (HomeRouter(outer="2001:db8::7"), "no outer address"),
        (HomeRouter(taken=set(range(PORT, PORT + PORTS_TRIED))), "from 4610 on: Conflict.*718"),
        (HomeRouter(services=()), "no service for forwarded ports"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_router_that_does_not_is_told(router: HomeRouter, problem: str) -> None:
    with services_of(router) as services, pytest.raises(RouterError, match=problem):
        map_port(PORT, services)
    assert router.mapped == {}


def test_a_removal_that_fails_is_told() -> None:
    with (
        services_of(HomeRouter()) as services,
        pytest.raises(RouterError, match=r"NoSuchEntryInArray \(714\)"),
    ):
        unmap_port(PORT, services)


def test_the_line_with_a_public_address_is_taken() -> None:
    """A router with two lines, the first of which is not connected."""
    told = {"/idle": "0.0.0.0", "/line": OUTSIDE}
    asked: list[tuple[str, str]] = []

    def answer(request: Asked) -> Iterator[bytes]:
        action = request.headers["soapaction"].strip('"').rpartition("#")[2]
        asked.append((request.target, action))
        if action == "GetExternalIPAddress":
            host = f"<NewExternalIPAddress>{told[request.target]}</NewExternalIPAddress>"
            return page(envelope(f"<u:{action}Response>{host}</u:{action}Response>"))
        return page(envelope(f"<u:{action}Response/>"))

    kind = CONNECTION_KINDS[1]
    services = [service(kind, target) for target in told]
    with WebServer(answer).running() as server:
        place = Place(server.host, server.port, DESCRIPTION)
        text = description(*services).encode()
        found = described(text, place, HERE, time.monotonic() + 10.0)
        assert map_port(PORT, found) == (OUTSIDE, PORT)
    assert asked[-1] == ("/line", "AddPortMapping")


PROCESS = """
import sys
from gossamer.node.network.home_router import upnp
def connections(*_others):
    for _ in range(32):
        kept.append(bytearray(2**26))
    return []
kept = []
upnp.connections, upnp.default_gateway = connections, lambda: None
sys.argv = ["upnp", "map", "4610"]
upnp.main()
"""


def test_the_process_has_a_limit_of_memory() -> None:
    done = subprocess.run([sys.executable, "-c", PROCESS], capture_output=True, text=True)
    assert "MemoryError" in done.stderr
    assert done.returncode == 1
