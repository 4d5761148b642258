"""Nodes of one network find each other without an address; the network here is loopback."""

from __future__ import annotations

import pytest
import trio
from zeroconf import ServiceInfo

from gossamer.node.base.settings import ConfigError
from gossamer.node.commands.daemon.join import only_run
from gossamer.node.network import lan
from gossamer.node.network.lan import LanNeighbours, Neighbour, info_of, look_around, neighbour_of
from gossamer.node.network.reachability import Endpoint
from gossamer.node.peers.run_exchange import JoinError
from gossamer.protocol.ids import PeerId
from tests.support.builders import peers

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
