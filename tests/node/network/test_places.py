"""Idle connections of strangers keep neither newcomers out nor this node from dialling."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from gossamer.node.network import places
from gossamer.node.network.identity import Identity
from gossamer.node.network.over_libp2p.host import open_libp2p_transport
from gossamer.node.network.places import (
    CONNECTIONS_PER_NETWORK_MAX,
    NoPlaceError,
    Place,
    inbound_max,
    network_of,
    place_to_free,
)
from tests.support.measured import measured

if TYPE_CHECKING:
    from trio_typing import TaskStatus

LOOPBACK = ["/ip4/127.0.0.1/tcp/0"]
PLACES = 12


def test_addresses_that_one_owner_has_are_one_network() -> None:
    assert network_of("203.0.113.7") == network_of("203.0.113.200") == "203.0.113.0/24"
    assert network_of("203.0.114.7") != network_of("203.0.113.7")
    assert (
        network_of("2001:db8:1:2::5") == network_of("2001:db8:1:2:ffff::") != network_of("2001::")
    )
    assert network_of("::ffff:203.0.113.9") == "203.0.113.0/24"
    assert network_of("fe80::1%eth0") == "fe80::/64"
    assert network_of("") == ""


def test_while_places_are_free_no_connection_ends() -> None:
    assert place_to_free([Place("a", False)] * 3, "a", 4) is None


def test_the_network_whose_strangers_have_the_most_places_gives_one_up() -> None:
    crowd, home, member = Place("crowd", False), Place("home", False), Place("crowd", True)
    assert place_to_free([home, member, crowd, crowd], "home", 4) == 2


def test_members_keep_their_places() -> None:
    with pytest.raises(NoPlaceError, match="members have all 2 places"):
        place_to_free([Place("a", True), Place("b", True)], "c", 2)


def test_a_full_network_frees_a_place_of_its_own() -> None:
    taken = [Place("other", False), *[Place("full", False)] * CONNECTIONS_PER_NETWORK_MAX]
    assert place_to_free(taken, "full", 1000) == 1
    assert place_to_free(taken, "other", 1000) is None
    with pytest.raises(NoPlaceError, match="128 connections from full already"):
        place_to_free([Place("full", True)] * CONNECTIONS_PER_NETWORK_MAX, "full", 1000)


def test_idle_strangers_keep_nobody_out() -> None:
    """More idle connections than there are places, each of an identity of its own."""

    async def case() -> None:
        async with (
            open_libp2p_transport(Identity.generate(), LOOPBACK, connections_max=PLACES) as server,
            open_libp2p_transport(Identity.generate(), LOOPBACK) as other,
            trio.open_nursery() as nursery,
        ):
            members = [Identity.generate() for _ in range(3)]
            server.keep_places_of(
                lambda peer: peer in {each.peer_id for each in members}, lambda _: False
            )
            address = server.addresses()[0]

            async def stay(
                identity: Identity, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED
            ) -> None:
                async with open_libp2p_transport(identity, []) as idle:
                    await idle.connect(address)
                    task_status.started()
                    await trio.sleep_forever()

            for identity in [*members, *(Identity.generate() for _ in range(2 * PLACES))]:
                await nursery.start(stay, identity)
            assert len(server.peers()) <= inbound_max(PLACES)
            async with open_libp2p_transport(Identity.generate(), []) as newcomer:
                await newcomer.connect(address)
                with trio.fail_after(5):
                    while newcomer.peer_id not in server.peers():  # noqa: ASYNC110
                        await trio.sleep(0.05)
            # And this node can dial.
            await server.connect(other.addresses()[0])
            assert other.peer_id in server.peers()
            assert {each.peer_id for each in members} <= set(server.peers())
            measured(
                f"{3 + 2 * PLACES} idle connections on {PLACES} places: a newcomer came in, this "
                "node could dial, and 3 of 3 members stayed"
            )
            nursery.cancel_scope.cancel()

    trio.run(case)


def test_some_places_are_kept_for_dials() -> None:
    assert inbound_max(400) == 334
    assert inbound_max(1) == 1
    assert places.OUTBOUND_SHARE > 1
