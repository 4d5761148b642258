"""A network is banned for many bad keys, and never for one."""

from __future__ import annotations

from gossamer.protocol.policy.conduct.network_bans import (
    BAN_SECONDS,
    BAN_SECONDS_MAX,
    FORGET_SECONDS,
    KEYS_MAX,
    NETWORKS_MAX,
    NetworkBans,
)
from tests.support.builders import peer

HOME, OTHER = "203.0.113.0/24", "198.51.100.0/24"


def ban_keys(bans: NetworkBans, now: float, first: int, number: int = KEYS_MAX) -> float | None:
    length = None
    for each in range(first, first + number):
        length = bans.key_banned(now, HOME, peer(each), 60.0)
    return length


def test_one_key_bans_no_network_however_often() -> None:
    bans = NetworkBans()
    assert all(bans.key_banned(60.0 * n, HOME, peer(1), 60.0) is None for n in range(1000))
    assert not bans.is_banned(60_000.0, HOME)


def test_several_keys_ban_their_network_for_a_while_and_no_other_one() -> None:
    bans = NetworkBans()
    assert ban_keys(bans, 0.0, 1, KEYS_MAX - 1) is None
    assert bans.key_banned(0.0, HOME, peer(9), 60.0) == BAN_SECONDS
    assert bans.is_banned(BAN_SECONDS - 1, HOME)
    assert not bans.is_banned(BAN_SECONDS, HOME)
    assert not bans.is_banned(0.0, OTHER)


def test_bans_grow_and_are_forgotten() -> None:
    bans = NetworkBans()
    now, lengths = 0.0, []
    for number in range(10):
        length = ban_keys(bans, now, 10 * number)
        assert length is not None
        lengths.append(length)
        now += length
    assert lengths[:3] == [BAN_SECONDS, 2 * BAN_SECONDS, 4 * BAN_SECONDS]
    assert lengths[-1] == BAN_SECONDS_MAX
    assert ban_keys(bans, now + FORGET_SECONDS + 1, 200) == BAN_SECONDS


def test_keys_that_are_banned_during_a_ban_of_their_network_do_not_lengthen_it() -> None:
    """They were connected before, and a household could not come back for days."""
    bans = NetworkBans()
    ban_keys(bans, 0.0, 1)
    assert ban_keys(bans, BAN_SECONDS / 2, 10) is None
    assert not bans.is_banned(BAN_SECONDS, HOME)
    assert ban_keys(bans, BAN_SECONDS, 20, KEYS_MAX - 1) is None


def test_keys_are_forgotten() -> None:
    bans = NetworkBans()
    ban_keys(bans, 0.0, 1, KEYS_MAX - 1)
    assert bans.key_banned(FORGET_SECONDS + 61, HOME, peer(9), 60.0) is None


def test_a_flood_of_networks_frees_none_that_is_banned() -> None:
    bans = NetworkBans()
    ban_keys(bans, 0.0, 1)
    for number in range(2 * NETWORKS_MAX):
        bans.key_banned(1.0, f"{number}", peer(number % 200), 60.0)
    assert len(bans._conduct) == NETWORKS_MAX
    assert bans.is_banned(1.0, HOME)
