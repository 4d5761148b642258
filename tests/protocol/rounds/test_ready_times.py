"""When the wait for the others begins: with work, or with a share of the stake."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.protocol.codecs.payloads import SumPayloads
from gossamer.protocol.codecs.tensor_codecs import codec
from gossamer.protocol.ids import PeerId
from gossamer.protocol.rounds.gathering import Gatherer
from gossamer.protocol.rounds.ready_times import ALL_DONE, SHARE, WHOLE
from gossamer.protocol.rounds.roster import RoundRules
from tests.support.builders import HEAD, peers, ready, sealed

ME, MEMBER, THIRD, STRANGER, OTHER = peers(5)
GATHER, ROUND, ATTEMPT = 10.0, 60.0, 5.0
TOKENS, STEPS = 1000, 10
LITTLE = Fraction(1, STEPS)
RULES = RoundRules(
    SumPayloads(codec("fp32")), 1024, 1, GATHER, 0.3, ATTEMPT,
    round_seconds=ROUND, round_tokens=TOKENS, round_steps=STEPS,
)  # fmt: skip
STAKES = {ME: 300, MEMBER: 300, THIRD: 300, OTHER: 30}


def gatherer(stakes: Mapping[PeerId, int] = STAKES) -> Gatherer:
    """Of a round that begins at 0."""
    state = Gatherer(ME, HEAD, 0.0, RULES)
    expect(state, 0.0, stakes)
    return state


def expect(state: Gatherer, now: float, stakes: Mapping[PeerId, int]) -> None:
    others = [peer for peer in (MEMBER, THIRD, OTHER) if peer in stakes]
    state.expect(now, [*others, STRANGER], strangers={STRANGER}, stakes=stakes)


def note(state: Gatherer, now: float, peer: PeerId, done: Fraction = ALL_DONE) -> None:
    state.note_ready(now, sealed(peer, ready()), done)


@pytest.mark.parametrize("done", [LITTLE, ALL_DONE])
def test_a_stranger_that_is_ready_at_once_does_not_begin_the_wait(done: Fraction) -> None:
    """Also where it says that it did a whole round."""
    state = gatherer()
    assert state.times.wait_began_seconds is None
    note(state, 0.1, STRANGER, done)
    assert state.times.wait_began_seconds == ROUND
    note(state, 3.0, MEMBER)
    assert state.times.wait_began_seconds == 3.0


def test_where_nobody_has_a_stake_the_first_that_is_ready_begins_the_wait() -> None:
    """Also if it has done nothing."""
    state = gatherer(dict.fromkeys(STAKES, 0))
    note(state, 20.0, MEMBER, Fraction(0))
    note(state, 30.0, THIRD)
    assert state.times.wait_began_seconds == 20.0


def test_a_wait_that_began_without_members_with_stake_does_not_begin_later_with_them() -> None:
    state = gatherer()
    note(state, 20.0, STRANGER)
    began_seconds = state.times.wait_began_seconds
    assert began_seconds is not None
    assert began_seconds < 1000.0
    note(state, 1000.0, MEMBER)
    assert state.times.wait_began_seconds == began_seconds


def test_a_member_that_does_little_does_not_begin_the_wait_either() -> None:
    state = gatherer()
    note(state, 0.1, OTHER, LITTLE)
    assert state.times.wait_began_seconds == ROUND
    note(state, 3.0, MEMBER)
    assert state.times.wait_began_seconds == 3.0


def test_a_member_that_has_done_a_round_begins_the_wait_whatever_its_stake() -> None:
    state = gatherer()
    note(state, 1.0, OTHER)
    assert state.times.wait_began_seconds == 1.0


@given(st.integers(1, 12))
def test_of_equal_peers_that_have_done_little_a_quarter_begins_the_wait(number: int) -> None:
    """In a small swarm that is one that leaves."""
    members = peers(number)
    state = Gatherer(members[0], HEAD, 0.0, RULES)
    state.expect(0.0, members[1:], stakes=dict.fromkeys(members, 7))
    for count, peer in enumerate(members, start=1):
        note(state, float(count), peer, LITTLE)
        if count >= SHARE * number:
            break
        assert state.times.wait_began_seconds == ROUND
    assert state.times.wait_began_seconds == math.ceil(SHARE * number)


def test_after_the_longest_training_each_ready_begins_the_wait() -> None:
    """So members with much stake that are frozen hold up no round for good."""
    state = gatherer({ME: 10, MEMBER: 1000})
    note(state, ROUND + 1.0, ME, LITTLE)
    assert state.times.wait_began_seconds == ROUND + 1.0


def test_where_no_peer_has_stake_the_first_ready_begins_the_wait() -> None:
    state = gatherer()
    note(state, 0.1, STRANGER)
    expect(state, 0.2, {})
    assert state.times.wait_began_seconds == 0.1


def test_the_stake_of_peers_that_are_not_expected_does_not_count() -> None:
    """They have left, or their machines are off."""
    stakes = {ME: 10, MEMBER: 1000}
    state = gatherer(stakes)
    note(state, 1.0, ME, LITTLE)
    assert state.times.wait_began_seconds == ROUND
    state.expect(2.0, [STRANGER], strangers={STRANGER}, stakes=stakes)
    assert state.times.wait_began_seconds == 1.0


def test_a_newcomer_that_is_faster_than_the_members_waits_for_them() -> None:
    """It would commit alone before they are ready."""
    state = gatherer({MEMBER: 300})
    note(state, 1.0, ME)
    assert state.decision(1.0 + GATHER).attempt is None
    note(state, 30.0, MEMBER)
    assert state.times.wait_began_seconds == 30.0
    note(state, 31.0, STRANGER)
    state.decision(31.0)  # all are ready
    assert state.decision(31.0 + ATTEMPT).reason.startswith(("attempt", "organiser"))


def test_a_newcomer_whose_members_are_gone_waits_no_longer() -> None:
    state = gatherer({MEMBER: 300})
    note(state, 1.0, ME)
    state.expect(5.0, [], stakes={MEMBER: 300})
    assert state.decision(5.0).attempt == 0


def test_a_newcomer_waits_no_longer_for_a_member_that_is_never_ready_than_a_round_lasts() -> None:
    state = gatherer({MEMBER: 300})
    note(state, 1.0, ME)
    assert state.decision(ROUND).attempt is None
    assert state.times.wait_began_seconds == ROUND
    assert state.decision(ROUND + GATHER).attempt is not None


def test_half_a_round_is_work_enough() -> None:
    part = int(WHOLE * TOKENS)
    assert RULES.done_by(ready(tokens=part, steps=STEPS)) == WHOLE
    assert RULES.done_by(ready(tokens=part - 1, steps=STEPS)) < WHOLE
    assert RULES.done_by(ready(tokens=2 * TOKENS, steps=STEPS // 2)) == WHOLE


@pytest.mark.parametrize("peer", [MEMBER, ME])
def test_work_of_earlier_rounds_does_not_begin_the_wait(peer: PeerId) -> None:
    """Of a member with much stake, which offers what it carries without training."""
    assert RULES.done_by(ready(tokens=3 * TOKENS, steps=0)) == 0
    state = gatherer({ME: 300, MEMBER: 300, THIRD: 300})
    note(state, 0.1, peer, Fraction(0))
    assert state.times.wait_began_seconds == ROUND
    note(state, 30.0, THIRD)
    assert state.times.wait_began_seconds == 30.0


def test_work_that_follows_an_offer_of_earlier_work_begins_the_wait_when_it_is_done() -> None:
    """The others' training would end in that instant if it began with the offer."""
    state = gatherer()
    note(state, 0.1, MEMBER, Fraction(0))
    note(state, 30.0, MEMBER)
    assert state.times.wait_began_seconds == 30.0


def test_members_that_only_carry_wait_for_no_training_that_nobody_does() -> None:
    state = gatherer({ME: 300, MEMBER: 300})
    state.expect(0.0, [MEMBER], stakes={ME: 300, MEMBER: 300})
    for peer in (ME, MEMBER):
        note(state, 0.1, peer, Fraction(0))
    assert state.decision(0.1).reason.startswith(("attempt", "organiser"))
