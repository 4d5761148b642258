"""The process that asks the router asks the default gateway and no other machine.

The machines are network namespaces. The other tests of this client need none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal

import pytest

from gossamer.node.network.home_router.port_mapping import MappingError, UpnpGateway
from gossamer.node.network.home_router.ssdp import LOCATIONS_MAX
from gossamer.node.network.home_router.upnp import LEASE_SECONDS
from gossamer.node.network.reachability import Endpoint
from tests.support.home_network import (
    NODE,
    OTHER,
    ROUTER,
    Answer,
    Asked,
    HomeNetwork,
    WebServer,
    answering_searches,
    page,
)
from tests.support.home_router import (
    CONTROL,
    DESCRIPTION,
    DEVICE,
    IP_CONNECTION,
    OUTSIDE,
    HomeRouter,
    description,
    service,
)
from tests.support.netns import NamespacesUnavailable

PORT = 4610


@pytest.fixture(scope="module")
def network() -> Iterator[HomeNetwork]:
    try:
        with HomeNetwork() as network:
            yield network
    except NamespacesUnavailable as reason:
        pytest.skip(str(reason))


@contextmanager
def web(network: HomeNetwork, machine: int, answer: Answer, host: str = "") -> Iterator[WebServer]:
    host = host or network.host(machine)
    with WebServer(answer, host, partial(network.inside, machine)).running() as server:
        yield server


@contextmanager
def router_of(network: HomeNetwork, router: HomeRouter) -> Iterator[WebServer]:
    """The home's router, which answers searches for its device."""

    def locations(target: str) -> list[str]:
        return [server.url(DESCRIPTION)] if target == DEVICE else []

    with web(network, ROUTER, router) as server, answering_searches(network, ROUTER, locations):
        yield server


def test_a_router_forwards_a_port_and_ends_it(network: HomeNetwork) -> None:
    router = HomeRouter(taken={PORT, PORT + 1})
    with router_of(network, router) as server, network.inside(NODE):
        assert UpnpGateway().map(PORT) == Endpoint(OUTSIDE, PORT + 2)
        assert router.mapped == {PORT + 2: (network.host(NODE), PORT, LEASE_SECONDS)}
        UpnpGateway().unmap(PORT + 2)
    assert router.mapped == {}
    assert {each.target for each in server.asked} == {DESCRIPTION, CONTROL}


@pytest.mark.long
def test_a_home_without_upnp_is_told(network: HomeNetwork) -> None:
    with network.inside(NODE), pytest.raises(MappingError, match="no router answers UPnP"):
        UpnpGateway().map(PORT)


@pytest.mark.long
def test_a_router_that_answers_as_any_device_is_found(network: HomeNetwork) -> None:
    def locations(target: str) -> list[str]:
        return [server.url(DESCRIPTION)] if target == "upnp:rootdevice" else []

    router = HomeRouter()
    with (
        web(network, ROUTER, router) as server,
        answering_searches(network, ROUTER, locations),
        network.inside(NODE),
    ):
        assert UpnpGateway().map(PORT) == Endpoint(OUTSIDE, PORT)


# Machines that answer in the router's place


@dataclass
class Lies:
    """What another machine answers, and where requests arrive that nobody may send."""

    network: HomeNetwork
    stack: ExitStack
    victims: list[WebServer]

    def serve(self, machine: int, answer: Answer, host: str = "") -> WebServer:
        return self.stack.enter_context(web(self.network, machine, answer, host))

    def victim(self, machine: int, host: str = "") -> WebServer:
        self.victims.append(self.serve(machine, lambda _asked: page("<root/>"), host))
        return self.victims[-1]


def location_on_loopback(lies: Lies) -> list[str]:
    return [lies.victim(NODE, "127.0.0.1").url("/")]


def location_on_the_node(lies: Lies) -> list[str]:
    return [lies.victim(NODE).url("/")]


def location_on_another_machine(lies: Lies) -> list[str]:
    return [lies.victim(OTHER).url("/")]


def _control_at(lies: Lies, machine: int, host: str = "", base: bool = False) -> list[str]:
    victim = lies.victim(machine, host)
    told = service(IP_CONNECTION, CONTROL if base else victim.url(CONTROL))
    text = description(told, base=victim.url("/") if base else "")
    return [lies.serve(ROUTER, lambda _asked: page(text)).url("/lie.xml")]


def control_on_loopback(lies: Lies) -> list[str]:
    return _control_at(lies, NODE, "127.0.0.1")


def control_on_another_machine(lies: Lies) -> list[str]:
    return _control_at(lies, OTHER)


def base_on_loopback(lies: Lies) -> list[str]:
    return _control_at(lies, NODE, "127.0.0.1", base=True)


def redirected(lies: Lies) -> list[str]:
    victim = lies.victim(NODE, "127.0.0.1")

    def answer(_asked: Asked) -> Iterator[bytes]:
        yield f"HTTP/1.1 302 Found\r\nLocation: {victim.url('/')}\r\n".encode()
        yield b"Content-Length: 0\r\n\r\n"

    return [lies.serve(ROUTER, answer).url("/lie.xml")]


def endless(lies: Lies) -> list[str]:
    def answer(_asked: Asked) -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\n\r\n<root>"
        while True:
            yield b" " * 2**16

    return [lies.serve(ROUTER, answer).url("/lie.xml")]


def endless_chunks(lies: Lies) -> list[str]:
    def answer(_asked: Asked) -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        while True:
            yield b"8000\r\n" + b" " * 2**15 + b"\r\n"

    return [lies.serve(ROUTER, answer).url("/lie.xml")]


def dripping(lies: Lies) -> list[str]:
    def answer(_asked: Asked) -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n"
        while True:
            yield b" "
            time.sleep(0.2)

    return [lies.serve(ROUTER, answer).url("/lie.xml")]


def bomb(lies: Lies) -> list[str]:
    """A billion laughs."""
    entities = '<!ENTITY a0 "ha">' + "".join(
        f'<!ENTITY a{each} "{f"&a{each - 1};" * 10}">' for each in range(1, 10)
    )
    text = f"<!DOCTYPE root [{entities}]><root>&a9;</root>"
    return [lies.serve(ROUTER, lambda _asked: page(text)).url("/lie.xml")]


def a_thousand_elsewhere(lies: Lies) -> list[str]:
    victim = lies.victim(OTHER)
    return [victim.url(f"/{number}") for number in range(1000)]


LIES = [
    location_on_loopback,
    location_on_the_node,
    location_on_another_machine,
    control_on_loopback,
    control_on_another_machine,
    base_on_loopback,
    redirected,
    endless,
    endless_chunks,
    dripping,
    bomb,
    a_thousand_elsewhere,
]

FAST = [location_on_loopback, control_on_another_machine]
"""Those that also run where no long tests do."""


@pytest.mark.parametrize("source", ["own address", "router's address"])
@pytest.mark.parametrize(
    "lie", [pytest.param(lie, marks=[] if lie in FAST else [pytest.mark.long]) for lie in LIES]
)
def test_a_lie_about_the_router_sends_no_request_anywhere(
    network: HomeNetwork,
    lie: Callable[[Lies], list[str]],
    source: Literal["own address", "router's address"],
) -> None:
    """The router's mapping is there all the same."""
    router = HomeRouter()
    with ExitStack() as stack:
        lies = Lies(network, stack, [])
        locations = lie(lies)
        stack.enter_context(
            answering_searches(
                network,
                OTHER,
                lambda target: locations if target == DEVICE else [],
                network.host(ROUTER) if source == "router's address" else None,
            )
        )
        stack.enter_context(router_of(network, router))
        began = time.monotonic()
        with network.inside(NODE):
            try:
                found: Endpoint | str = UpnpGateway().map(PORT)
            except MappingError as error:
                found = str(error)
        seconds = time.monotonic() - began
    print(f"{found} after {seconds:.1f} s")
    asked = [request for victim in lies.victims for request in victim.asked]
    assert asked == []
    assert found == Endpoint(OUTSIDE, PORT)
    assert router.mapped == {PORT: (network.host(NODE), PORT, LEASE_SECONDS)}


@pytest.mark.long
def test_a_router_that_is_not_the_way_out_is_not_asked(network: HomeNetwork) -> None:
    """It works, and no traffic from outside would find back through it."""
    router = HomeRouter()

    def locations(_target: str) -> list[str]:
        return [server.url(DESCRIPTION)]

    with web(network, OTHER, router) as server, answering_searches(network, OTHER, locations):
        problem = f"no router answers.*{network.host(OTHER)} answers, but {network.host(ROUTER)} is"
        with network.inside(NODE), pytest.raises(MappingError, match=problem):
            UpnpGateway().map(PORT)
    assert server.asked == []


@pytest.mark.long
def test_many_descriptions_in_the_routers_name_are_few_requests(network: HomeNetwork) -> None:
    with web(network, ROUTER, lambda _asked: page("<root/>")) as server:
        urls = [server.url(f"/{number}") for number in range(1000)]
        gateway = network.host(ROUTER)
        with (
            answering_searches(network, OTHER, lambda _target: urls, gateway),
            network.inside(NODE),
            pytest.raises(MappingError, match="no service for forwarded ports"),
        ):
            UpnpGateway().map(PORT)
    assert len(server.asked) == LOCATIONS_MAX
