"""The peers that count as living."""

from __future__ import annotations

import pytest

from gossamer.protocol import limits
from gossamer.protocol.ids import PeerId, digest_of
from gossamer.protocol.policy.membership import (
    ANNOUNCE_SECONDS,
    ANSWER_SECONDS,
    FAR_SECONDS,
    MEMBER_SECONDS,
    NEAR_ROUNDS,
    NUM_HERALDS,
    TRAILING_ROUNDS,
    Awaited,
    Membership,
    awaited,
    heralds,
    near_rounds,
)
from gossamer.protocol.wire.statements import Announce
from tests.support.builders import HEAD, announce, peer, peers

ME, OTHER = peer(0), peer(1)


def never(_announce: Announce) -> bool:
    """Returns whether a head loses: no head does."""
    return False


def test_a_peer_lives_while_it_announces_itself() -> None:
    membership = Membership(ME)
    assert not membership.is_living(0.0, OTHER)
    assert membership.announced(0.0, OTHER, announce(), [OTHER])
    assert membership.is_living(MEMBER_SECONDS, OTHER)
    assert not membership.is_living(MEMBER_SECONDS + 0.1, OTHER)
    assert membership.announced(MEMBER_SECONDS + 1, OTHER, announce(sequence=8), [OTHER])
    assert membership.is_living(MEMBER_SECONDS + 1, OTHER)


def test_a_sign_of_life_on_the_connection_does_for_an_announcement() -> None:
    membership = Membership(ME)
    membership.heard(0.0, OTHER)  # it has not said who it is
    assert not membership.is_living(0.0, OTHER)
    membership.announced(0.0, OTHER, announce(), [OTHER])
    membership.heard(100.0, OTHER)
    assert membership.is_living(100.0 + MEMBER_SECONDS, OTHER)
    assert not membership.is_living(100.1 + MEMBER_SECONDS, OTHER)


def test_where_signs_of_life_come_seldom_a_peer_has_longer() -> None:
    membership = Membership(ME)
    membership.announced(0.0, OTHER, announce(), [OTHER])
    membership.heard(100.0, OTHER)
    membership.signs_come_every(5.5)
    assert not membership.is_living(100.1 + MEMBER_SECONDS, OTHER)
    membership.signs_come_every(11.0)
    assert membership.living(111.0 + ANSWER_SECONDS)
    assert not membership.living(111.1 + ANSWER_SECONDS)


def test_what_repeats_is_no_news_while_its_author_lives() -> None:
    membership = Membership(ME)
    assert membership.announced(0.0, OTHER, announce(sequence=1), [OTHER])
    assert not membership.announced(10.0, OTHER, announce(sequence=2), [OTHER])
    assert membership.is_living(10.0 + MEMBER_SECONDS, OTHER), "it is a sign of life"
    assert membership.announced(11.0, OTHER, announce(sequence=3, round=5), [OTHER])
    membership.disconnected(OTHER)
    assert membership.announced(12.0, OTHER, announce(sequence=4, round=5), [OTHER])
    assert membership.announced(12.1 + FAR_SECONDS, OTHER, announce(sequence=5, round=5), [OTHER])


def test_members_of_a_ring_are_at_its_head_before_they_say_so() -> None:
    membership = Membership(ME)
    membership.announced(0.0, OTHER, announce(round=4), [OTHER])
    head = digest_of(b"next")
    membership.committed([ME, OTHER, peer(2)], head, 5, 700)
    [(author, said)] = membership.living(MEMBER_SECONDS).items()
    assert (author, said.round, said.head, said.tokens_total) == (OTHER, 5, head, 700)
    assert not membership.is_living(MEMBER_SECONDS + 0.1, OTHER), "a commit is no sign of life"
    membership.committed([OTHER], HEAD, 4, 600)
    assert membership.known()[OTHER].head == head, "it was further on"
    assert membership.announced(1.0, OTHER, announce(round=4, sequence=8), [OTHER])
    assert membership.known()[OTHER].round == 4, "its own word counts"


def test_few_members_announce_a_head_and_others_the_next_one() -> None:
    chosen = {head: heralds(digest_of(head), peers(32)) for head in (b"1", b"2", b"3")}
    assert {len(each) for each in chosen.values()} == {NUM_HERALDS}
    assert len({tuple(sorted(each)) for each in chosen.values()}) == 3
    assert heralds(digest_of(b"1"), peers(32)[::-1]) == chosen[b"1"]
    assert heralds(HEAD, peers(2)) in (peers(2), peers(2)[::-1])


def test_a_sign_of_life_does_not_begin_a_life_anew() -> None:
    membership = Membership(ME)
    membership.announced(0.0, OTHER, announce(), [OTHER])
    membership.disconnected(OTHER)
    membership.heard(1.0, OTHER)
    assert not membership.is_living(1.0, OTHER)
    membership.announced(2.0, OTHER, announce(phase="leaving", sequence=8), [OTHER])
    membership.heard(3.0, OTHER)
    assert not membership.is_living(3.0, OTHER)


def test_a_peer_without_a_connection_may_be_silent_for_three_announcements() -> None:
    membership = Membership(ME)
    membership.announced(0.0, OTHER, announce())
    assert membership.is_living(3 * ANNOUNCE_SECONDS, OTHER)
    assert not membership.is_living(FAR_SECONDS + 0.1, OTHER)
    # Once it has given a sign of life on a connection it is held to giving more of them.
    membership.heard(1.0, OTHER)
    assert not membership.is_living(1.1 + MEMBER_SECONDS, OTHER)


def test_an_old_announcement_does_not_bring_back_the_dead() -> None:
    membership = Membership(ME)
    membership.announced(0.0, OTHER, announce())
    assert not membership.announced(60.0, OTHER, announce())
    assert not membership.announced(60.0, OTHER, announce(incarnation=2, sequence=99))
    assert not membership.is_living(60.0, OTHER)


def test_a_restart_replaces_the_life_before() -> None:
    membership = Membership(ME)
    membership.announced(0.0, OTHER, announce(incarnation=3, sequence=900))
    assert membership.announced(1.0, OTHER, announce(incarnation=4, sequence=1, phase="syncing"))
    assert membership.living(1.0)[OTHER].phase == "syncing"


def test_a_broken_connection_ends_a_life_until_the_next_announcement() -> None:
    membership = Membership(ME)
    membership.disconnected(OTHER)  # never heard of: nothing happens
    membership.announced(0.0, OTHER, announce())
    membership.disconnected(OTHER)
    assert not membership.is_living(0.0, OTHER)
    membership.announced(1.0, OTHER, announce(sequence=8))
    assert membership.is_living(1.0, OTHER)


def test_a_peer_that_leaves_is_not_living() -> None:
    membership = Membership(ME)
    membership.announced(0.0, OTHER, announce(phase="leaving"))
    assert not membership.is_living(0.0, OTHER)


@pytest.mark.parametrize("phase", ["paused", "failed"])
def test_a_peer_that_does_not_train_is_living_and_no_round_waits_for_it(phase: str) -> None:
    membership = Membership(ME)
    membership.announced(0.0, OTHER, announce(phase=phase))
    assert membership.is_living(0.0, OTHER)
    assert awaited(membership.living(0.0), [HEAD], 100, never) == Awaited([], [])


def test_a_round_waits_for_those_that_work_on_its_head() -> None:
    membership = Membership(ME)
    membership.announced(0.0, peer(1), announce(phase="training"))
    membership.announced(0.0, peer(2), announce(phase="averaging"))
    membership.announced(0.0, peer(3), announce(phase="paused"))
    membership.announced(0.0, peer(4), announce(head=digest_of(b"other")))
    assert awaited(membership.living(0.0), [HEAD], 100, never) == Awaited(
        sorted([peer(1), peer(2)]), []
    )
    assert sorted(membership.known()) == list(membership.known()) == sorted(peers(5)[1:])


def test_i_am_not_my_own_member() -> None:
    membership = Membership(ME)
    assert not membership.announced(0.0, ME, announce())
    assert membership.living(0.0) == {}


def test_a_newcomer_replaces_the_peer_that_has_been_silent_longest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "MEMBERS_MAX", 2)
    membership = Membership(ME)
    membership.announced(0.0, peer(1), announce())
    membership.announced(5.0, peer(2), announce())
    assert not membership.announced(6.0, peer(3), announce())  # both are living
    assert membership.announced(60.0, peer(3), announce())
    assert sorted(membership.known()) == sorted([peer(2), peer(3)])


def test_a_connected_peer_comes_before_an_invented_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "MEMBERS_MAX", 4)
    members = Membership(peer(0))
    for index in range(1, 5):
        assert members.announced(float(index), peer(index), announce())
    connected = [peer(2), peer(9), peer(10), peer(11)]
    assert not members.announced(5.0, peer(8), announce(), connected)
    for index in (9, 10, 11):
        assert members.announced(5.0, peer(index), announce(), connected)
    assert sorted(members.known()) == sorted(connected)
    assert not members.announced(5.0, peer(12), announce(), [*connected, peer(12)])


CHAIN = [digest_of(bytes([number])) for number in range(TRAILING_ROUNDS + 2)]
"""Newest first; one more than is looked at."""


@pytest.mark.parametrize("behind", range(len(CHAIN)))
def test_a_peer_that_is_nearly_at_the_head_is_waited_for(behind: int) -> None:
    living = at_work(3) | {OTHER: announce(phase="training", head=CHAIN[behind])}
    assert (OTHER in awaited(living, CHAIN[:-1], 100, never).at_work) == (behind <= NEAR_ROUNDS)


@pytest.mark.parametrize("behind", range(len(CHAIN)))
@pytest.mark.parametrize("phase", ["training", "syncing", "paused", "failed"])
def test_few_do_not_run_away_from_many(behind: int, phase: str) -> None:
    """Two are at work; of the others there are as many, or one less."""
    for num_trailing in (1, 2, 3):
        trailing = peers(10)[5 : 5 + num_trailing]
        living = at_work(1) | {peer: announce(phase=phase, head=CHAIN[behind]) for peer in trailing}
        found = awaited(living, CHAIN[:-1], 100, never)
        is_near = behind <= NEAR_ROUNDS and phase == "training"
        is_trailing = behind <= TRAILING_ROUNDS and phase in ("training", "syncing") and not is_near
        assert (set(trailing) <= set(found.at_work)) == is_near
        assert found.trailing == (sorted(trailing) if is_trailing and num_trailing >= 2 else [])


@pytest.mark.parametrize(
    ("number", "tokens", "is_waited_for"),
    [
        (100, 999, True),
        (100 - TRAILING_ROUNDS, 999, True),
        (100 + TRAILING_ROUNDS, 999, True),
        (99 - TRAILING_ROUNDS, 999, False),
        (101 + TRAILING_ROUNDS, 999, False),
        (100, 1000, False),
    ],
)
def test_nor_from_many_whose_branch_lost(number: int, tokens: int, is_waited_for: bool) -> None:
    others = peers(10)[5:8]
    theirs = announce(
        phase="training", head=digest_of(b"theirs"), round=number, tokens_total=tokens
    )
    found = awaited(
        dict.fromkeys(others, theirs), [CHAIN[0]], 100, lambda said: said.tokens_total < 1000
    )
    assert found == Awaited([], sorted(others) if is_waited_for else [])


def at_work(number: int) -> dict[PeerId, Announce]:
    return {peer: announce(phase="averaging", head=CHAIN[0]) for peer in peers(10)[1 : 1 + number]}


def test_a_peer_may_be_as_many_rounds_behind_as_end_in_two_seconds() -> None:
    slow = [70.0, 80.0, 90.0]
    quick = [97.0 + 0.25 * number for number in range(13)]
    assert near_rounds(100.0, []) == near_rounds(100.0, slow) == NEAR_ROUNDS
    assert near_rounds(100.0, quick) == 9
    assert near_rounds(110.0, quick) == NEAR_ROUNDS


def test_strangers_change_nothing_about_trailing_members() -> None:
    """Of peers with standing this one and another are at work, and one or two trail. Strangers
    neither outnumber these nor make them many."""
    members = {peer(1), peer(5), peer(6)}
    for num_trailing in (1, 2):
        trailing = [peer(5), peer(6)][:num_trailing]
        living = {peer(1): announce(phase="training", head=CHAIN[0])} | {
            each: announce(phase="syncing", head=CHAIN[3]) for each in trailing
        }
        for behind in (0, TRAILING_ROUNDS):
            strangers = peers(20)[10:18]
            said = announce(phase="training", head=CHAIN[behind])
            found = awaited(
                living | dict.fromkeys(strangers, said),
                CHAIN[:-1],
                100,
                never,
                has_standing=members.__contains__,
            )
            assert set(found.trailing) & members == (set(trailing) if num_trailing == 2 else set())
            assert found.strangers == set(strangers)
            assert set(strangers) <= {*found.at_work, *found.trailing}


def test_many_strangers_that_trail_are_waited_for_as_members_are() -> None:
    """All but the founder are strangers at the run's beginning."""
    for num_trailing in (1, 2, 3):
        trailing = peers(10)[5 : 5 + num_trailing]
        living = at_work(1) | {each: announce(phase="syncing", head=CHAIN[3]) for each in trailing}
        found = awaited(living, CHAIN[:-1], 100, never, has_standing=lambda _: False)
        assert found.trailing == (sorted(trailing) if num_trailing >= 2 else [])
        assert found.strangers == living.keys()
