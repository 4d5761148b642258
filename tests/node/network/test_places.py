"""Connections without standing keep neither newcomers out nor this node from dialling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest
import trio

from gossamer.node.network import places
from gossamer.node.network.identity import Identity
from gossamer.node.network.over_libp2p.addresses import libp2p_id
from gossamer.node.network.over_libp2p.host import open_libp2p_transport
from gossamer.node.network.over_libp2p.transport import Libp2pTransport
from gossamer.node.network.places import (
    CONNECTIONS_PER_NETWORK_MAX,
    NoPlaceError,
    Place,
    Rank,
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


def stranger(network: str) -> Place:
    return Place("stranger", network, Rank.STRANGER)


def announced(network: str) -> Place:
    return Place("announced", network, Rank.ANNOUNCED)


def in_ring(network: str) -> Place:
    return Place("in ring", network, Rank.IN_RING)


def member(network: str) -> Place:
    return Place("member", network, Rank.STANDING)


def newcomer_of(network: str, rank: Rank = Rank.ANNOUNCED) -> Place:
    return Place("newcomer", network, rank)


NEW = Place("newcomer", "new", Rank.STRANGER)
NEW_MEMBER = Place("newcomer", "new", Rank.STANDING)


def test_while_places_are_free_no_connection_ends() -> None:
    assert place_to_free([stranger("a")] * 3, NEW, 4) is None


def test_the_network_whose_strangers_have_the_most_places_gives_one_up() -> None:
    taken = [stranger("home"), member("crowd"), stranger("crowd"), stranger("crowd")]
    assert place_to_free(taken, NEW, 4) == 2
    assert place_to_free(taken, NEW_MEMBER, 4) == 2


def test_strangers_give_way_before_announced_peers() -> None:
    taken = [announced("crowd"), announced("crowd"), announced("crowd"), stranger("crowd")]
    assert place_to_free(taken, NEW, 4) == 3
    assert place_to_free(taken, NEW_MEMBER, 4) == 3
    assert place_to_free([*taken[:2], stranger("two"), stranger("two")], NEW, 4) == 2


def test_peers_with_standing_give_way_to_nobody() -> None:
    taken = [member("a"), member("a"), member("a")]
    for newcomer in (NEW, NEW_MEMBER, newcomer_of("a"), newcomer_of("new")):
        with pytest.raises(NoPlaceError, match="have all 3 places"):
            place_to_free(taken, newcomer, 3)


def test_announced_identities_of_few_networks_do_not_have_all_places() -> None:
    """The places of a node, all taken by identities that each announced themselves once."""
    places_max = inbound_max(400)
    taken = [announced(f"crowd {number % 3}") for number in range(places_max)]
    assert place_to_free(taken, NEW_MEMBER, places_max) == 0
    # Newcomers without standing come in until their network has as many as those of the crowd.
    for _ in range(83):
        freed = place_to_free(taken, newcomer_of("new"), places_max)
        assert freed is not None
        assert taken[freed].network.startswith("crowd")
        taken = [*taken[:freed], *taken[freed + 1 :], announced("new")]
    with pytest.raises(NoPlaceError, match="have all 334 places"):
        place_to_free(taken, newcomer_of("new"), places_max)
    with pytest.raises(NoPlaceError, match="have all 334 places"):
        place_to_free(taken, newcomer_of("crowd 0"), places_max)


def test_a_crowd_does_not_come_back_by_the_place_of_a_lonely_stranger() -> None:
    """A newcomer is a stranger until it has fetched what it needs to announce itself."""
    taken = [stranger("home"), *[announced("crowd")] * 5]
    with pytest.raises(NoPlaceError):
        place_to_free(taken, newcomer_of("crowd"), 6)
    with pytest.raises(NoPlaceError):
        place_to_free(taken, newcomer_of("crowd", Rank.STRANGER), 6)
    assert place_to_free(taken, NEW, 6) == 1
    assert place_to_free(taken, NEW_MEMBER, 6) == 1
    # A stranger of a network that nobody has come from still replaces the oldest stranger.
    assert place_to_free([stranger("a"), stranger("b")], NEW, 2) == 0


def test_in_a_run_where_nobody_has_standing_homes_keep_their_places() -> None:
    homes = [announced(f"home {number}") for number in range(10)]
    with pytest.raises(NoPlaceError):
        place_to_free(homes, NEW, 10)
    assert place_to_free(homes, NEW_MEMBER, 10) == 0


def test_a_ring_keeps_its_members_where_nobody_has_standing() -> None:
    laboratory = [*[in_ring("laboratory")] * 9, announced("home")]
    with pytest.raises(NoPlaceError):
        place_to_free(laboratory, NEW, 10)
    assert place_to_free([*laboratory, announced("laboratory")], NEW, 11) == 10
    # A newcomer with standing comes before them, but after all others.
    assert place_to_free(laboratory, NEW_MEMBER, 10) == 9
    assert place_to_free(laboratory[:9], NEW_MEMBER, 9) == 0


def test_a_peer_replaces_a_connection_of_its_own() -> None:
    taken = [announced("a"), newcomer_of("new"), member("new")]
    assert place_to_free(taken, newcomer_of("new"), 3) == 1
    assert place_to_free([member("a"), newcomer_of("b", Rank.STANDING)], NEW_MEMBER, 2) == 1


def test_a_full_network_frees_a_place_of_its_own() -> None:
    taken = [stranger("other"), *[stranger("full")] * CONNECTIONS_PER_NETWORK_MAX]
    assert place_to_free(taken, newcomer_of("full"), 1000) == 1
    assert place_to_free(taken, newcomer_of("other"), 1000) is None
    full = [announced("full")] * CONNECTIONS_PER_NETWORK_MAX
    for rank in (Rank.STRANGER, Rank.ANNOUNCED):
        with pytest.raises(NoPlaceError, match="128 connections from full already"):
            place_to_free([announced("other"), *full], newcomer_of("full", rank), 1000)
    newcomer = newcomer_of("full", Rank.STANDING)
    assert place_to_free([announced("other"), *full], newcomer, 1000) == 1
    with pytest.raises(NoPlaceError, match="128 connections from full already"):
        place_to_free([member("full")] * CONNECTIONS_PER_NETWORK_MAX, newcomer, 1000)


async def stay(
    address: str,
    identity: Identity,
    listen: Sequence[str] = (),
    task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """An idle connection, from the host on which it listens."""
    async with open_libp2p_transport(identity, listen) as idle:
        await idle.connect(address)
        task_status.started()
        await trio.sleep_forever()


async def comes_in(server: Libp2pTransport, identity: Identity) -> None:
    """Returns when a peer is connected."""
    with trio.fail_after(5):
        while identity.peer_id not in server.peers():  # noqa: ASYNC110
            await trio.sleep(0.05)


def test_idle_strangers_keep_nobody_out() -> None:
    """More idle connections than there are places, each of an identity of its own."""

    async def case() -> None:
        async with (
            open_libp2p_transport(Identity.generate(), LOOPBACK, connections_max=PLACES) as server,
            open_libp2p_transport(Identity.generate(), LOOPBACK) as other,
            trio.open_nursery() as nursery,
        ):
            members = [Identity.generate() for _ in range(3)]
            ids = {each.peer_id for each in members}
            server.keep_places_of(lambda _: False, ids.__contains__, lambda _: False)
            address = server.addresses()[0]

            for identity in [*members, *(Identity.generate() for _ in range(2 * PLACES))]:
                await nursery.start(stay, address, identity)
            assert len(server.peers()) <= inbound_max(PLACES)
            identity = Identity.generate()
            async with open_libp2p_transport(identity, []) as newcomer:
                await newcomer.connect(address)
                await comes_in(server, identity)
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


def test_announced_identities_without_standing_keep_nobody_out() -> None:
    """All places are taken from three networks, by identities that each announced themselves."""

    async def case() -> None:
        async with (
            open_libp2p_transport(
                Identity.generate(), ["/ip4/127.0.9.1/tcp/0"], connections_max=PLACES
            ) as server,
            trio.open_nursery() as nursery,
        ):
            members = [Identity.generate() for _ in range(3)]
            ids = {each.peer_id for each in members}
            server.keep_places_of(lambda _: True, ids.__contains__, lambda _: False)
            address = server.addresses()[0]

            async def come(identity: Identity, network: int) -> None:
                await nursery.start(stay, address, identity, [f"/ip4/127.0.{network}.1/tcp/0"])

            async def crowd(size: int) -> None:
                for number in range(size):
                    await come(Identity.generate(), 1 + number % 3)

            await crowd(inbound_max(PLACES))
            assert len(server.peers()) == inbound_max(PLACES)
            # One of the same network as the crowd, one of another, and one with no standing.
            newcomer = Identity.generate()
            for identity, network in [(members[0], 1), (members[1], 4), (newcomer, 5)]:
                await come(identity, network)
                await comes_in(server, identity)
            await crowd(PLACES)
            await come(members[2], 6)
            await comes_in(server, members[2])
            assert {*ids, newcomer.peer_id} <= set(server.peers())
            assert len(server.peers()) <= inbound_max(PLACES)
            measured(
                f"{inbound_max(PLACES) + PLACES} announced identities of three networks on "
                f"{PLACES} places: 3 of 3 members with standing and a newcomer of another "
                "network came in, and stayed"
            )
            nursery.cancel_scope.cancel()

    trio.run(case)


def test_what_a_peer_has_done_says_when_it_gives_way() -> None:
    async def case() -> None:
        async with open_libp2p_transport(Identity.generate(), []) as server:
            worked, ring, known, other = (Identity.generate().peer_id for _ in range(4))
            server.keep_places_of(
                lambda peer: peer in (worked, ring, known),
                lambda peer: peer == worked,
                lambda _: False,
            )

            def ranks() -> list[Rank]:
                return [server._swarm.rank_of(libp2p_id(p)) for p in (worked, ring, known, other)]

            end = server.listen([worked, ring])
            assert ranks() == [Rank.STANDING, Rank.IN_RING, Rank.ANNOUNCED, Rank.STRANGER]
            end()
            assert ranks() == [Rank.STANDING, Rank.ANNOUNCED, Rank.ANNOUNCED, Rank.STRANGER]

    trio.run(case)


def test_some_places_are_kept_for_dials() -> None:
    assert inbound_max(400) == 334
    assert inbound_max(1) == 1
    assert places.OUTBOUND_SHARE > 1
