"""Nodes of one network find each other without an address; the network here is loopback."""

from __future__ import annotations

import threading
import time
from typing import Any, cast

import pytest
import trio
from zeroconf import ServiceInfo, ServiceStateChange, Zeroconf

from gossamer.node.base.settings.settings import ConfigError
from gossamer.node.commands.daemon.join import only_run
from gossamer.node.network import lan
from gossamer.node.network.lan import LanNeighbours, Neighbour, info_of, look_around, neighbour_of
from gossamer.node.network.reachability import Endpoint
from gossamer.node.peers.members.run_exchange import JoinError
from gossamer.protocol.ids import PeerId
from tests.support.builders import peers
from tests.support.daemons import poll

FIRST, SECOND, THIRD = peers(3)
RUN, OTHER_RUN = "ab" * 32, "cd" * 32
HERE = "127.0.0.1"

FIND_SECONDS = 20.0
"""A name is announced for a second or two before it counts as one's own; machines are slow."""


def test_a_record_says_who_listens_where() -> None:
    endpoints = [Endpoint("192.168.1.7", 4610), Endpoint("fd00::7", 4610)]
    found = neighbour_of(info_of(FIRST, RUN, endpoints))
    assert found == Neighbour(
        FIRST, RUN, tuple(f"{each.address}/p2p/{FIRST}" for each in endpoints)
    )
    assert found.link == f"/ip4/192.168.1.7/tcp/4610/p2p/{FIRST}#{RUN}"


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"id": FIRST},
        {"id": FIRST, "run": "ab"},
        {"id": FIRST, "run": "xy" * 32},
        {"id": "12D3KooWnonsense", "run": RUN},
        {"id": b"\xff\xfe", "run": RUN},
    ],
)
def test_a_record_that_is_not_one_of_a_node_leads_nowhere(
    properties: dict[str, str | bytes],
) -> None:
    info = ServiceInfo(
        lan.SERVICE,
        f"x.{lan.SERVICE}",
        addresses=[bytes((192, 168, 1, 7))],
        port=4610,
        properties=properties,
    )
    assert neighbour_of(info) is None


@pytest.mark.long
def test_nodes_of_one_run_find_each_other_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lan, "LOOK_SECONDS", 0.1)
    opened = lan._zeroconf
    monkeypatch.setattr(lan, "_zeroconf", lambda _hosts: opened([HERE]))
    found: dict[PeerId, dict[PeerId, tuple[str, ...]]] = {FIRST: {}, SECOND: {}, THIRD: {}}
    runs = {FIRST: RUN, SECOND: RUN, THIRD: OTHER_RUN}

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for number, (peer, run) in enumerate(runs.items()):
                endpoint = Endpoint(HERE, 5000 + number)
                node = LanNeighbours(
                    peer,
                    run,
                    lambda endpoint=endpoint: [endpoint],  # type: ignore[misc]
                    found[peer].__setitem__,
                )
                nursery.start_soon(node.run)
            with trio.fail_after(FIND_SECONDS):
                while not (found[FIRST] and found[SECOND]):  # noqa: ASYNC110 - threads of a library
                    await trio.sleep(0.05)
                # The node that finds nobody may be the last one whose name counts as its own.
                seen: dict[PeerId, str] = {}
                while len(seen) < len(runs):
                    seen = {each.peer: each.run_id for each in await look_around(3.0)}
            assert seen == runs
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert found == {
        FIRST: {SECOND: (f"/ip4/{HERE}/tcp/5001/p2p/{SECOND}",)},
        SECOND: {FIRST: (f"/ip4/{HERE}/tcp/5000/p2p/{FIRST}",)},
        THIRD: {},
    }


def test_a_network_that_does_not_take_part_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(_hosts: list[str] | None) -> None:
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(lan, "_zeroconf", no_network)

    async def main() -> None:
        node = LanNeighbours(FIRST, RUN, lambda: [Endpoint(HERE, 5000)], lambda *_: None)
        with trio.move_on_after(0.5) as scope:
            await node.run()
        assert scope.cancelled_caught

    trio.run(main)


def test_a_start_that_took_too_long_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the thread that was left alone would tell of a network that this node has left."""
    may_go_on, is_closed = threading.Event(), threading.Event()

    class Slow:
        def register_service(self, _info: ServiceInfo) -> None:
            may_go_on.wait(10)

        def close(self) -> None:
            is_closed.set()

    monkeypatch.setattr(lan, "TALK_SECONDS_MAX", 0.05)
    monkeypatch.setattr(lan, "_zeroconf", lambda _hosts: Slow())
    monkeypatch.setattr(lan, "_Browser", lambda *_: None)

    async def main() -> None:
        node = LanNeighbours(FIRST, RUN, lambda: [Endpoint(HERE, 5000)], lambda *_: None)
        with trio.move_on_after(0.3):
            await node.run()
        may_go_on.set()
        assert await trio.to_thread.run_sync(is_closed.wait, 10)

    trio.run(main)


@pytest.mark.parametrize("name", ["x.example.org.", "x", "", f".{lan.SERVICE}"])
def test_a_machine_of_the_network_cannot_end_the_search_by_a_name(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread asks what services are, and an error would end it."""

    class Network:
        def get_service_info(self, service_type: str, name: str, _milliseconds: int) -> Any:
            return ServiceInfo(service_type, name)

    monkeypatch.setattr(lan, "ServiceBrowser", lambda *_arguments, **_named: None)
    found: list[Neighbour] = []
    network = cast(Zeroconf, Network())
    browser = lan._Browser(network, found.append)
    browser._ask(network, lan.SERVICE, name)
    assert not found


def test_services_that_do_not_answer_hold_up_neither_the_library_nor_their_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the library hears waits for the thread that calls the handler, without a bound."""
    may_go_on = threading.Event()
    asked: list[str] = []

    class Network:
        def get_service_info(self, _type: str, name: str, _milliseconds: int) -> None:
            may_go_on.wait(10)
            asked.append(name)

    monkeypatch.setattr(lan, "ServiceBrowser", lambda *_arguments, **_named: None)
    network = cast(Zeroconf, Network())
    browser = lan._Browser(network, lambda _neighbour: None)
    began = time.monotonic()
    for number in range(10 * lan.FOUND_MAX):
        for change in (ServiceStateChange.Added, ServiceStateChange.Updated):
            browser._changed(network, lan.SERVICE, f"{number}.{lan.SERVICE}", change)
    assert time.monotonic() < began + 5
    assert len(browser._unasked) <= lan.FOUND_MAX
    may_go_on.set()
    poll(lambda: not browser._is_asking, "end of the questions")
    assert lan.FOUND_MAX <= len(asked) <= 2 * lan.FOUND_MAX
    assert not browser._names


def test_a_network_that_tells_of_services_without_an_end_is_left_alone_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The library remembers each name that it has heard."""
    opened: list[Any] = []

    class Network:
        is_closed = False

        def register_service(self, _info: ServiceInfo) -> None:
            """Nothing to do."""

        def close(self) -> None:
            self.is_closed = True

    def browser(_network: Any, _on_found: Any, on_heard: Any) -> None:
        opened.append(on_heard)

    networks = [Network(), Network()]
    monkeypatch.setattr(lan, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(lan, "REST_SECONDS", 0.2)
    monkeypatch.setattr(lan, "_zeroconf", lambda _hosts: networks[len(opened)])
    monkeypatch.setattr(lan, "_Browser", browser)

    async def main() -> None:
        node = LanNeighbours(FIRST, RUN, lambda: [Endpoint(HERE, 5000)], lambda *_: None)
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(node.run)
                while not opened:  # noqa: ASYNC110 - a thread
                    await trio.sleep(0.01)
                for _ in range(lan.HEARD_MAX):
                    opened[0]()
                while not networks[0].is_closed:  # noqa: ASYNC110 - a thread
                    await trio.sleep(0.01)
                assert len(opened) == 1
                while len(opened) < 2:  # noqa: ASYNC110 - a thread
                    await trio.sleep(0.01)
                assert not networks[1].is_closed
                nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_join_without_an_address_takes_the_only_run() -> None:
    here = [
        Neighbour(peer, RUN, (f"/ip4/192.168.1.{n}/tcp/4610/p2p/{peer}",))
        for n, peer in enumerate((FIRST, SECOND), 1)
    ]
    assert only_run(here) == tuple(each.link for each in here)
    with pytest.raises(JoinError, match="no node was found in this network"):
        only_run([])
    other = Neighbour(THIRD, OTHER_RUN, (f"/ip4/192.168.1.9/tcp/4610/p2p/{THIRD}",))
    with pytest.raises(ConfigError, match="several runs") as raised:
        only_run([*here, other])
    assert f"gossamer join {other.link}" in str(raised.value)
