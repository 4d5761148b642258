"""Rounds wait for strangers, and together for a share of the time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.protocol.codecs.payloads import SumPayloads
from gossamer.protocol.codecs.tensor_codecs import codec
from gossamer.protocol.rounds.gathering import GATHER_SECONDS_MIN, Gatherer
from gossamer.protocol.rounds.ring_order import rank_order
from gossamer.protocol.rounds.roster import (
    NO_WAIT,
    STRANGER_WAITS_MAX,
    STRANGERS_GOSSIP_SECONDS,
    STRANGERS_SHARE,
    RoundHints,
    RoundRules,
    StrangersWait,
)
from tests.support.builders import HEAD, peers, ready, ring_of, sealed

GATHER = 3.0
RULES = RoundRules(SumPayloads(codec("fp32")), 1024, 1, GATHER, 0.3, attempt_seconds=1.0)
PEERS = peers(6)
ME, MEMBER, *STRANGERS = rank_order(HEAD, 0, PEERS)
TICK = 0.1
SPENT = StrangersWait(STRANGER_WAITS_MAX * GATHER)


class Rounds:
    """The rounds of one peer, which organises all of them, beside a member and strangers."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self.wait = NO_WAIT
        self.held_seconds = 0.0

    def one(self, training_seconds: float, *, trailing: bool = False) -> float:
        """Returns for how long a round was held up by strangers that never become ready."""
        state = gatherer(self.wait, born=self.now)
        expect(state, self.now, trailing=trailing)
        self.now += training_seconds
        for peer in (ME, MEMBER):
            state.note_ready(self.now, sealed(peer, ready()))
        since = self.now
        while state.decision(self.now).attempt is None:
            self.now += TICK
            expect(state, self.now, trailing=trailing)
        state.followed(self.now, ring_of([ME, MEMBER]))
        self.wait = state.strangers_wait
        self.held_seconds += self.now - since
        return self.now - since


def gatherer(wait: StrangersWait, born: float = 0.0) -> Gatherer:
    return Gatherer(ME, HEAD, born, RULES, RoundHints(strangers_wait=wait))


def expect(state: Gatherer, now: float, *, trailing: bool = False) -> None:
    at_work = [MEMBER] if trailing else [MEMBER, *STRANGERS]
    state.expect(now, at_work, STRANGERS if trailing else [], frozenset(STRANGERS))


@given(
    st.lists(st.tuples(st.floats(0.05, 100.0), st.booleans()), min_size=1, max_size=60),
    st.floats(0.0, 1000.0),
)
def test_strangers_hold_up_rounds_for_a_share_of_the_time(
    rounds: list[tuple[float, bool]], now: float
) -> None:
    state = Rounds(now)
    for training_seconds, is_trailing in rounds:
        state.one(training_seconds, trailing=is_trailing)
    most = STRANGER_WAITS_MAX * (GATHER + TICK) + STRANGERS_SHARE * (state.now - now)
    assert state.held_seconds <= most


def test_after_all_waits_in_vain_there_is_another_one_within_so_many_waits() -> None:
    """So a newcomer gets in beside strangers that lie."""
    state = Rounds()
    in_vain = [state.one(0.5) > STRANGERS_GOSSIP_SECONDS for _ in range(2 * STRANGER_WAITS_MAX)]
    assert not in_vain[-1]
    since = state.now
    held = next(
        each for each in iter(lambda: state.one(0.5), None) if each > STRANGERS_GOSSIP_SECONDS
    )
    assert held >= GATHER_SECONDS_MIN - TICK
    assert state.now - since <= GATHER / STRANGERS_SHARE + held


@pytest.mark.parametrize("is_spent", [False, True])
def test_a_stranger_that_is_ready_in_time_is_in_the_ring_all_the_same(is_spent: bool) -> None:
    state = gatherer(SPENT if is_spent else NO_WAIT)
    expect(state, 0.0)
    for peer in (MEMBER, STRANGERS[0]):
        state.note_ready(1.0, sealed(peer, ready()))
    assert state.decision(1.0).attempt is None
    state.note_ready(1.0, sealed(ME, ready()))
    assert (state.decision(1.0).attempt == 0) == is_spent
    assert STRANGERS[0] in state.ready
    assert state.expected == {MEMBER, *STRANGERS}
    for peer in STRANGERS[1:]:
        state.note_ready(1.0, sealed(peer, ready()))
    assert state.decision(1.0).attempt == 0


@pytest.mark.parametrize("is_spent", [False, True])
def test_members_are_waited_for_whatever_strangers_do(is_spent: bool) -> None:
    state = gatherer(SPENT if is_spent else NO_WAIT)
    expect(state, 0.0)
    for peer in (ME, *STRANGERS[1:]):
        state.note_ready(1.0, sealed(peer, ready()))
    expect(state, 2.0)
    assert state.decision(2.0).attempt is None
    assert state.strangers_wait.spent_seconds <= SPENT.spent_seconds, "the member held it up"


@pytest.mark.parametrize("is_spent", [False, True])
def test_no_roster_of_another_organiser_waits_for_strangers(is_spent: bool) -> None:
    state = gatherer(SPENT if is_spent else NO_WAIT)
    expect(state, 0.0)
    assert state.missing_beside(ring_of([ME, STRANGERS[0]])) == {MEMBER}


@pytest.mark.parametrize("is_spent", [False, True])
def test_the_waits_of_others_count_for_a_peer_that_does_not_wait(is_spent: bool) -> None:
    began = StrangersWait(SPENT.spent_seconds if is_spent else 0.0)
    waited = began.after(GATHER, GATHER).spent_seconds - began.spent_seconds
    assert waited == (GATHER - STRANGERS_GOSSIP_SECONDS if is_spent else GATHER)
    assert began.after(STRANGERS_GOSSIP_SECONDS / 2, GATHER).spent_seconds == pytest.approx(
        began.spent_seconds if is_spent else STRANGERS_GOSSIP_SECONDS / 2
    )


def test_time_makes_up_for_waits_and_never_goes_back() -> None:
    assert SPENT.at(10.0).spent_seconds == pytest.approx(
        SPENT.spent_seconds - 10.0 * STRANGERS_SHARE
    )
    assert SPENT.at(1e6).spent_seconds == 0.0
    assert SPENT.at(10.0).at(5.0) == SPENT.at(10.0)


def test_a_member_that_was_waited_for_in_vain_counts_as_a_stranger_until_it_is_in_a_ring() -> None:
    """It says that it trains, and is never ready."""
    third = STRANGERS[0]
    members = [MEMBER, third]

    def round_after(hints: RoundHints) -> Gatherer:
        state = Gatherer(ME, HEAD, 0.0, RULES, hints)
        state.expect(0.0, members)
        for peer in (ME, MEMBER):
            state.note_ready(1.0, sealed(peer, ready()))
        return state

    first = round_after(RoundHints())
    assert first.decision(1.0 + GATHER_SECONDS_MIN).attempt is not None
    first.followed(1.0 + GATHER_SECONDS_MIN, ring_of([ME, MEMBER]))
    assert first.missed == (third,)
    spent = RoundHints(missed=first.missed, strangers_wait=SPENT)
    second = round_after(spent)
    assert second.decision(1.0).attempt is not None, "this round does not wait for it"
    assert third not in second.missing_beside(ring_of([ME, MEMBER]))
    third_round = round_after(spent._replace(strangers_wait=NO_WAIT))
    assert third_round.decision(1.0).attempt is None, "for strangers there is time left"
    second.followed(1.0, ring_of([ME, *members]))
    assert second.missed == ()


def test_a_member_that_a_later_ring_of_a_round_lacks_was_not_waited_for_in_vain() -> None:
    """It may have gone with the ring that became void."""
    state = gatherer(NO_WAIT)
    state.expect(0.0, [MEMBER])
    for peer in (ME, MEMBER):
        state.note_ready(1.0, sealed(peer, ready()))
    state.followed(1.0, ring_of([ME, MEMBER]))
    state.expect(2.0, [MEMBER, STRANGERS[0]])
    state.followed(2.0 + 2 * STRANGERS_GOSSIP_SECONDS, ring_of([ME, MEMBER]))
    assert state.missed == ()


def test_a_stranger_that_is_ready_holds_a_round_up_no_longer() -> None:
    state = gatherer(NO_WAIT)
    state.expect(0.0, [MEMBER, STRANGERS[0]], strangers=[STRANGERS[0]])
    for peer in (ME, MEMBER):
        state.note_ready(1.0, sealed(peer, ready()))
    state.note_ready(2.0, sealed(STRANGERS[0], ready()))
    spent = state.strangers_wait.spent_seconds
    state.note_ready(3.0, sealed(STRANGERS[0], ready()))
    assert state.strangers_wait.spent_seconds == spent


def test_a_peer_that_is_not_ready_itself_waits_for_no_stranger() -> None:
    state = gatherer(NO_WAIT)
    state.expect(0.0, [STRANGERS[0]], strangers=[STRANGERS[0]])
    for now in (1.0, 2.0, 3.0):
        state.expect(now, [STRANGERS[0]], strangers=[STRANGERS[0]])
    state.note_ready(3.0, sealed(ME, ready()))
    assert state.strangers_wait.spent_seconds == 0.0


def test_members_of_a_ring_that_came_at_once_were_not_waited_for() -> None:
    """The round of this peer was hardly begun, or all others were ready."""
    state = gatherer(NO_WAIT)
    state.expect(0.0, [MEMBER, STRANGERS[0]])
    state.note_ready(1.0, sealed(MEMBER, ready()))
    state.note_ready(1.0, sealed(ME, ready()))
    state.followed(1.0 + STRANGERS_GOSSIP_SECONDS, ring_of([ME, MEMBER]))
    assert state.missed == ()
