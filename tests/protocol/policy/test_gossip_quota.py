"""The rates of gossip: what is dropped, and which peer is to blame."""

from __future__ import annotations

import pytest

from gossamer.protocol.ids import PeerId
from gossamer.protocol.policy.conduct.gossip_quota import (
    ASKER_RATE,
    AUTHOR_RATE,
    FLOOD_MESSAGES,
    FORWARDER_RATE,
    FORWARDER_STRANGERS_RATE,
    STRANGE_ASKERS_RATE,
    STRANGERS_RATE,
    TOTAL_BYTES_RATE,
    TOTAL_RATE,
    AnswerQuota,
    GossipQuota,
)
from gossamer.protocol.policy.conduct.throttle import THROTTLES_MAX, Rate

FORWARDER = PeerId("forwarder")


def blamed_by(
    quota: GossipQuota, author: PeerId, num_messages: int, connected: bool, now: float = 0.0
) -> set[PeerId]:
    """The peers that are blamed for so many messages at once that `FORWARDER` brings."""
    answers = [
        quota.admits(now, FORWARDER, author, is_connected=connected) for _ in range(num_messages)
    ]
    return {blamed for _, blamed in answers if blamed is not None}


def test_a_connected_author_that_floods_is_blamed_and_not_its_forwarder() -> None:
    author = PeerId("author")
    assert blamed_by(
        GossipQuota(), author, int(AUTHOR_RATE.burst) + FLOOD_MESSAGES, connected=True
    ) == {author}
    assert not blamed_by(
        GossipQuota(), author, int(AUTHOR_RATE.burst) + FLOOD_MESSAGES - 1, connected=True
    )


@pytest.mark.parametrize(("connected", "rate"), [(True, AUTHOR_RATE), (False, STRANGERS_RATE)])
def test_what_is_over_a_rate_is_dropped(*, connected: bool, rate: Rate) -> None:
    """Else a flood would fill every node of the run, whoever is blamed for it."""
    quota, author = GossipQuota(), PeerId("author")
    for now, num_taken in ((0.0, rate.burst), (1.0, rate.per_second)):
        answers = [
            quota.admits(now, FORWARDER, author, is_connected=connected) for _ in range(2000)
        ]
        assert sum(is_taken for is_taken, _ in answers) == num_taken


def test_a_flood_is_one_offence_for_each_hundred_messages() -> None:
    quota, author = GossipQuota(), PeerId("author")
    blamed_by(quota, author, int(AUTHOR_RATE.burst), connected=True)
    for _ in range(3):
        assert not blamed_by(quota, author, FLOOD_MESSAGES - 1, connected=True)
        assert blamed_by(quota, author, 1, connected=True) == {author}


def test_the_messages_and_the_bytes_of_all_forwarders_are_bounded() -> None:
    for num_messages, num_bytes in ((TOTAL_RATE.burst, 0), (0, int(TOTAL_BYTES_RATE.burst))):
        quota = GossipQuota()
        assert quota.total_wait_seconds(0.0, num_messages, num_bytes) == 0.0
        waits = [quota.total_wait_seconds(now, num_messages, num_bytes) for now in (0.0, 1.0)]
        assert 0.0 < waits[0] < waits[1] < 2 * waits[0]


def test_an_author_whose_messages_were_dropped_now_and_then_is_not_blamed() -> None:
    """Such as a machine that sleeps once an hour, and whose messages then come all at once."""
    author, quota = PeerId("author"), GossipQuota()
    num_messages = int(AUTHOR_RATE.burst) + FLOOD_MESSAGES // 2
    for hour in range(48):
        assert not blamed_by(quota, author, num_messages, connected=True, now=3600.0 * hour), hour


def test_an_author_that_stays_above_its_rate_is_blamed_again_and_again() -> None:
    author, quota = PeerId("author"), GossipQuota()
    num_blamed = sum(
        bool(blamed_by(quota, author, int(2 * AUTHOR_RATE.per_second), True, now=float(second)))
        for second in range(60)
    )
    assert num_blamed >= 60 * AUTHOR_RATE.per_second / FLOOD_MESSAGES - 7


def test_a_forwarder_of_many_strangers_is_blamed() -> None:
    assert blamed_by(
        GossipQuota(), PeerId("author"), int(FORWARDER_STRANGERS_RATE.burst) + FLOOD_MESSAGES, False
    ) == {FORWARDER}


def test_many_peers_at_the_rate_of_an_author_do_not_make_their_forwarder_look_like_a_flooder() -> (
    None
):
    """They are connected to the forwarder, and strangers to the next peer. The line between the two
    holds up the messages of two seconds at a time."""
    at_forwarder, at_next = GossipQuota(), GossipQuota()
    authors = [PeerId(f"peer{number}") for number in range(1, 41)]
    blamed: set[PeerId | None] = set()
    num_passed_on = num_taken = 0
    waiting: list[PeerId] = []
    for tick in range(2400):
        now = tick / 20
        for author in authors:  # each 20 times a second
            is_taken, _ = at_forwarder.admits(now, author, author, is_connected=True)
            if is_taken and at_forwarder.passes_on(now):
                waiting.append(author)
        if tick % 40 == 39:
            num_passed_on += len(waiting)
            for author in waiting:
                is_taken, who = at_next.admits(now, FORWARDER, author, is_connected=False)
                num_taken += is_taken
                blamed.add(who)
            waiting.clear()
    assert blamed == {None}
    assert num_passed_on > 120 * 45
    assert num_taken >= 0.9 * STRANGERS_RATE.per_second * 120


def test_throttles_are_bounded_also_where_none_is_full_again() -> None:
    quota = GossipQuota()
    for number in range(3 * THROTTLES_MAX):
        quota.forwarder_wait_seconds(0.0, PeerId(f"peer {number}"), 100.0, 1000)
    assert len(quota._forwarders) == THROTTLES_MAX
    assert quota.forwarder_wait_seconds(0.0, FORWARDER, 2 * FORWARDER_RATE.burst, 0) > 0
    assert quota.forwarder_wait_seconds(0.0, FORWARDER, 0.0, 0) > 0  # the newest stay


def test_peers_with_standing_are_answered_while_many_strangers_ask() -> None:
    quota = AnswerQuota()
    strangers = [PeerId(f"stranger {number}") for number in range(100)]
    num_answered = 0
    for tick in range(200):
        now = tick / 10
        for peer in strangers:
            num_answered += quota.admits(now, peer, has_standing=False)
        if tick % 5 == 0:
            assert quota.admits(now, FORWARDER, has_standing=True), "twice a second"
    assert num_answered <= STRANGE_ASKERS_RATE.burst + 20 * STRANGE_ASKERS_RATE.per_second
    assert num_answered > STRANGE_ASKERS_RATE.burst, "they are answered as well"


def test_a_peer_that_asks_too_often_is_answered_again_when_it_rests() -> None:
    quota = AnswerQuota()
    for _ in range(int(ASKER_RATE.burst)):
        assert quota.admits(0.0, FORWARDER, has_standing=True)
    assert not any(quota.admits(0.0, FORWARDER, has_standing=True) for _ in range(1000))
    assert quota.admits(1.0, FORWARDER, has_standing=True)
