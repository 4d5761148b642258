"""Handshakes that strangers begin and do not finish are few, and keep nobody else out."""

from __future__ import annotations

import os
from contextlib import suppress

import pytest
import trio
import trio.testing
from libp2p.peer.id import ID

from gossamer.node.network.doorstep import (
    BUCKETS_MAX,
    HOST,
    KNOWN_MAX,
    NEAR,
    NETWORK,
    NETWORK_UNDER_WAY_MAX,
    TOTAL,
    UNDER_WAY_MAX,
    YIELD_SECONDS,
    Arrival,
    Doorstep,
    TurnedAwayError,
)
from gossamer.node.network.identity import Identity
from gossamer.node.network.over_libp2p.host import open_libp2p_transport
from gossamer.node.network.over_libp2p.noise import newcomers
from gossamer.node.network.over_libp2p.transport import Libp2pTransport
from gossamer.node.network.places import network_of
from gossamer.node.network.transport import ConnectError
from tests.support.measured import measured

LOOPBACK = ["/ip4/127.0.0.1/tcp/0"]
STRANGER, NEIGHBOUR, ELSEWHERE = "203.0.114.7", "203.0.114.8", "8.8.8.8"
BEGINNING = b"\x13/multistream/1.0.0\n\x07/noise\n\x00\x20"


def begin_many(door: Doorstep, now: float, host: str, number: int = 1000) -> list[Arrival]:
    """Begins handshakes until this host is turned away."""
    begun = []
    with suppress(TurnedAwayError):
        for _ in range(number):
            begun.append(door.arrive(now, host)[0])
    return begun


def test_a_crowd_that_finishes_is_not_slowed_down() -> None:
    door = Doorstep()
    for _ in range(1000):
        arrival, _ = door.arrive(0.0, STRANGER)
        door.end(arrival, is_proven=True)
    assert not len(door.under_way)


def test_unfinished_handshakes_of_one_host_are_few() -> None:
    door = Doorstep()
    total = 0
    for second in range(100):
        for arrival in begin_many(door, float(second), STRANGER):
            total += 1
            door.end(arrival, is_proven=False)
    assert total == pytest.approx(HOST.burst + 99 * HOST.per_second, abs=1)
    # The neighbours, and everybody else, are not turned away for it.
    assert len(begin_many(door, 100.0, NEIGHBOUR, 10)) == 10
    assert len(begin_many(door, 100.0, ELSEWHERE, 10)) == 10


def test_unfinished_handshakes_of_one_network_are_few() -> None:
    door = Doorstep()
    begun = [each for host in range(250) for each in begin_many(door, 0.0, f"203.0.114.{host}")]
    assert len(begun) == NETWORK.burst == NETWORK_UNDER_WAY_MAX
    assert len(begin_many(door, 0.0, ELSEWHERE)) == HOST.burst


def flood(door: Doorstep, now: float, number: int, times: int) -> int:
    """Handshakes from many networks that break off; returns how many began."""
    total = 0
    for _ in range(times):
        for each in range(number):
            host = f"20.{each}.0.1"
            try:
                arrival, _ = door.arrive(now, host)
            except TurnedAwayError:
                door.turned_away(now, host)
            else:
                door.end(arrival, is_proven=False)
                total += 1
    return total


def test_unfinished_handshakes_of_all_networks_are_few() -> None:
    door = Doorstep()
    total = sum(flood(door, 0.5 * tick, 100, 3) for tick in range(100))
    assert total <= 2 * (TOTAL.burst + 50 * TOTAL.per_second)


def test_those_that_begin_again_and_again_do_not_keep_others_out() -> None:
    door = Doorstep()
    door.know(network_of(ELSEWHERE))
    flood(door, 0.0, 100, 40)
    assert door.may_come(0.0, ELSEWHERE)  # a member's network
    for tick in range(1, 20):
        flood(door, 0.5 * tick, 100, 3)
    assert door.may_come(10.0, "9.9.9.9")


def test_silent_connections_of_one_network_keep_no_other_one_out() -> None:
    door = Doorstep()
    for tick in range(40):  # each place is taken anew as soon as it gives way
        for host in range(100):
            with suppress(TurnedAwayError):
                door.arrive(0.5 * tick, f"203.0.114.{host}")
    assert door.may_come(20.0, ELSEWHERE)
    assert len(door.under_way) == NETWORK_UNDER_WAY_MAX


def test_networks_do_not_push_each_other_out_without_end() -> None:
    door = Doorstep()
    begun = 0
    for tick in range(400):
        for number in range(20):
            with suppress(TurnedAwayError):
                door.arrive(0.001 * tick, f"20.{number}.0.{tick % 200}")
                begun += 1
    assert begun <= 2 * UNDER_WAY_MAX


def test_a_silent_connection_gives_way_and_a_young_one_does_not() -> None:
    door = Doorstep()
    held = begin_many(door, 0.0, STRANGER)
    assert not door.may_come(YIELD_SECONDS / 2, STRANGER)
    arrival, ended = door.arrive(YIELD_SECONDS, STRANGER)
    assert ended is held[0]
    door.end(held[0], is_proven=True)  # what the swarm says of it later changes nothing
    door.end(arrival, is_proven=True)
    assert len(door.under_way) == len(held) - 1


def test_a_newcomer_ends_no_handshake_of_another_host_without_need() -> None:
    door = Doorstep()
    begin_many(door, 0.0, NEIGHBOUR, 3)
    for arrival in begin_many(door, 0.0, STRANGER):
        door.end(arrival, is_proven=False)
    assert not door.may_come(YIELD_SECONDS / 2, STRANGER)


def test_handshakes_under_way_are_bounded_with_members_too() -> None:
    door = Doorstep()
    for number in range(100):
        door.know(network_of(f"20.{number}.0.1"))
        begin_many(door, 0.0, f"20.{number}.0.1")
    assert len(door.under_way) == UNDER_WAY_MAX
    _, ended = door.arrive(YIELD_SECONDS, "20.99.0.1")
    assert ended is not None
    assert len(door.under_way) == UNDER_WAY_MAX


def test_what_is_remembered_is_bounded() -> None:
    door = Doorstep()
    for number in range(3 * BUCKETS_MAX):
        host = f"20.{number // 200}.{number % 200}.1"
        door.know(network_of(host))
        with suppress(TurnedAwayError):
            door.end(door.arrive(0.01 * number, host)[0], is_proven=False)
    assert len(door._hosts) <= BUCKETS_MAX
    assert len(door._networks) <= BUCKETS_MAX
    assert len(door._known) == KNOWN_MAX


def come_and_go(door: Doorstep, now: float, host: str) -> bool:
    """A newcomer that breaks off or is turned away; says whether it was let in."""
    try:
        door.end(door.arrive(now, host)[0], is_proven=False)
    except TurnedAwayError:
        door.turned_away(now, host)
        return False
    return True


def test_hosts_of_one_network_that_are_turned_away_are_forgotten_and_the_network_is_not() -> None:
    door = Doorstep()
    let_in = [
        come_and_go(door, 0.0004 * number, f"2a00:1:2:3::{number:x}") for number in range(5000)
    ]
    assert sum(let_in) <= NETWORK.burst + 2 * NETWORK.per_second
    assert len(door._hosts) <= BUCKETS_MAX
    assert not door.may_come(2.0, "2a00:1:2:3:ffff::1")
    assert door.may_come(2.0, ELSEWHERE)


def test_many_hosts_of_one_network_do_not_make_another_one_fresh() -> None:
    door = Doorstep()
    for host in range(100):
        come_and_go(door, 0.0, f"203.0.114.{host}")
    for number in range(3 * BUCKETS_MAX):
        come_and_go(door, 0.0, f"2a00:1:2:3::{number:x}")
    assert not door.may_come(0.0, STRANGER)


def test_bans_of_peers_are_bounded_and_the_longest_stay() -> None:
    async def case() -> None:
        refusals = newcomers.Refusals()
        for number in range(2 * newcomers.BANS_KEPT):
            seconds = 3600.0 if number == 5 else 60.0
            refusals.ban(ID(b"peer %d" % number), seconds, is_offender=True)
        assert len(refusals._banned) == newcomers.BANS_KEPT
        assert refusals.is_banned(ID(b"peer 5"))
        assert not refusals.is_banned(ID(b"peer 6"))
        await trio.sleep(61.0)
        refusals.ban(ID(b"another"), 60.0, is_offender=True)
        assert len(refusals._banned) == 2

    trio.run(case, clock=trio.testing.MockClock(autojump_threshold=0))


# Real connections


async def half_handshake(port: int, host: str) -> bool:
    """Begins a handshake from an address; returns whether the node has computed its answer."""
    received = 0
    with suppress(OSError, trio.BrokenResourceError):
        stream = await trio.open_tcp_stream("127.0.0.1", port, local_address=host)
        async with stream:
            await stream.send_all(BEGINNING + os.urandom(32))
            while received < 128 and (data := await stream.receive_some(4096)):
                received += len(data)
    return received >= 128


def port_of(server: Libp2pTransport) -> int:
    return int(server.addresses()[0].split("/")[4])


def test_half_handshakes_are_turned_away_and_other_networks_come_in() -> None:
    """Without the budget each of them gets its answer."""

    async def case() -> None:
        async with open_libp2p_transport(Identity.generate(), LOOPBACK) as server:
            port, answered = port_of(server), 0
            for _ in range(100):
                answered += await half_handshake(port, "127.7.7.7")
            assert NEAR.burst <= answered < NEAR.burst + 30
            async with open_libp2p_transport(Identity.generate(), LOOPBACK) as newcomer:
                await newcomer.connect(server.addresses()[0])
            with trio.fail_after(5):
                while server.reach().num_unfinished < answered:  # noqa: ASYNC110
                    await trio.sleep(0.01)
            assert server.reach().num_unfinished == answered
            assert server.reach().num_turned_away >= 100 - answered
            measured(f"{answered} of 100 half handshakes were answered; a newcomer came in")

    trio.run(case)


def test_one_that_dials_back_proves_its_key_and_counts_as_finished() -> None:
    async def case() -> None:
        async with (
            open_libp2p_transport(Identity.generate(), LOOPBACK) as server,
            open_libp2p_transport(Identity.generate(), LOOPBACK) as helper,
        ):
            peer = ID.from_base58(server.peer_id)
            for _ in range(3):
                assert await helper._swarm.answers_at(peer, "127.0.0.1", port_of(server))
            await trio.sleep(0.2)
            assert server.reach().num_unfinished == 0

    trio.run(case)


def test_a_network_of_banned_keys_is_refused_and_its_members_come_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(newcomers, "_bannable", lambda host: network_of(host))
    member, stranger = Identity.generate(), Identity.generate()

    async def comes_in(server: Libp2pTransport, identity: Identity) -> bool:
        async with open_libp2p_transport(identity, LOOPBACK) as newcomer:
            try:
                await newcomer.connect(server.addresses()[0])
            except ConnectError:
                return False
            with trio.move_on_after(1.0):
                while newcomer.peer_id not in server.peers():  # noqa: ASYNC110
                    await trio.sleep(0.01)
                return True
            return False

    async def case() -> None:
        async with open_libp2p_transport(Identity.generate(), LOOPBACK) as server:
            server.keep_places_of(
                lambda _: False, lambda _: False, lambda peer: peer == member.peer_id
            )
            one = Identity.generate()
            for identity in [one] * 4 + [Identity.generate() for _ in range(2)]:
                if identity is not one or not server._swarm.refusals._banned:
                    assert await comes_in(server, identity)
                server.ban(identity.peer_id, 0.5)
            # Three bad keys, one of them four times.
            assert await comes_in(server, stranger)
            for _ in range(5):  # others of the branch of a banned member count nothing
                other = Identity.generate()
                assert await comes_in(server, other)
                server.ban(other.peer_id, 0.5, is_offender=False)
            assert await comes_in(server, stranger)
            server.ban(stranger.peer_id, 0.0)
            assert not await comes_in(server, Identity.generate())
            assert await comes_in(server, member)

    trio.run(case)
