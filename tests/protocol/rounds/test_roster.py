"""The organiser of each attempt, and the ring that is followed when there are several."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.protocol import limits
from gossamer.protocol.codecs.payloads import SumPayloads
from gossamer.protocol.codecs.tensor_codecs import codec
from gossamer.protocol.errors import ForgedError, MalformedError
from gossamer.protocol.ids import PeerId, digest_of
from gossamer.protocol.rounds.gathering import GATHER_SECONDS_MIN, WAITS_MAX, Gatherer
from gossamer.protocol.rounds.ring_order import Standpoint, rank_order
from gossamer.protocol.rounds.roster import (
    Decision,
    Gathering,
    Ring,
    RoundHints,
    RoundRules,
    attempt_of,
    decide,
    is_complete,
    make_roster,
    open_roster,
    preference,
)
from gossamer.protocol.wire.envelopes import ring_id_of
from gossamer.protocol.wire.statements import Roster, Signed
from tests.support.builders import (
    HEAD,
    RING_RULES,
    RUN_ID,
    announce,
    peer,
    peers,
    ready,
    ring_of,
    sealed,
    verify,
)

GATHER, ATTEMPT = 20.0, 5.0
LONGEST = WAITS_MAX * GATHER
"""Wait for one ring without this peer."""
SUMS = SumPayloads(codec("fp32"))
MEMBERS = peers(3)
FIRST = rank_order(HEAD, 0, MEMBERS)[0]
OTHERS = [member for member in MEMBERS if member != FIRST]


def gathering(
    me: PeerId,
    ready_peers: list[PeerId],
    expected: list[PeerId],
    first: float | None = 100.0,
    complete: float | None = None,
) -> Gathering:
    return Gathering(me, HEAD, ready_peers, expected, first, complete)


def decision(now: float, state: Gathering) -> Decision:
    return decide(now, state, GATHER, ATTEMPT)


def test_a_peer_that_is_not_ready_does_nothing() -> None:
    state = gathering(FIRST, OTHERS, OTHERS)
    assert decision(1000.0, state) == Decision(None, "not ready")


def test_the_first_by_rank_organises_as_soon_as_all_are_ready() -> None:
    state = gathering(FIRST, MEMBERS, OTHERS, complete=110.0)
    assert is_complete(state)
    assert decision(110.0, state).attempt == 0


def test_it_waits_for_the_missing_until_the_deadline() -> None:
    missing = OTHERS[0]
    present = [member for member in MEMBERS if member != missing]
    state = gathering(FIRST, present, OTHERS)
    assert not is_complete(state)
    waiting = decision(119.9, state)
    assert waiting == Decision(None, "waiting for 1 peers")
    organiser = rank_order(HEAD, 0, present)[0]
    assert (decision(120.0, state).attempt == 0) == (organiser == FIRST)


def test_everybody_else_waits_for_the_next_attempt() -> None:
    second = rank_order(HEAD, 1, MEMBERS)[0]
    for me in OTHERS:
        state = gathering(me, MEMBERS, [m for m in MEMBERS if m != me], complete=110.0)
        assert decision(110.0, state).attempt is None
        assert decision(114.9, state).attempt is None
        assert decision(115.0, state).attempt == (1 if me == second else None)


def test_invented_peers_that_are_ready_organise_nothing() -> None:
    """Nobody is connected to them, so nobody waits for what they would do."""
    invented = peers(40)[3:]
    for attempt in range(20):
        state = gathering(FIRST, MEMBERS + invented, OTHERS, complete=110.0)
        seconds = 110.5 + attempt * ATTEMPT
        is_mine = rank_order(HEAD, attempt, MEMBERS)[0] == FIRST
        assert decision(seconds, state).attempt == (attempt if is_mine else None)


def test_one_peer_alone_organises_itself() -> None:
    assert decision(100.0, gathering(FIRST, [FIRST], [], complete=100.0)).attempt == 0


@given(
    st.floats(0, 1e6),
    st.floats(0.1, 3600.0),
    st.integers(0, 50),
    st.sampled_from(MEMBERS),
)
def test_each_peer_organises_the_attempts_that_are_its_own(
    due: float, attempt_seconds: float, first_attempt: int, me: PeerId
) -> None:
    state = Gathering(me, HEAD, MEMBERS, MEMBERS, due, due, first_attempt)
    for number in range(50):
        attempt = first_attempt + number
        found = decide(due + (number + 0.5) * attempt_seconds, state, 1e9, attempt_seconds)
        is_mine = rank_order(HEAD, attempt, MEMBERS)[0] == me
        assert found.attempt == (attempt if is_mine else None)


def test_every_attempt_has_one_organiser_and_not_always_the_same() -> None:
    organisers = [rank_order(HEAD, attempt, MEMBERS)[0] for attempt in range(50)]
    assert set(organisers) == set(MEMBERS)


def test_a_peer_that_comes_after_the_deadline_does_not_begin_the_attempts_anew() -> None:
    """The others may have gone on to a later one without it."""
    due = 100.0 + GATHER
    for number in range(5):
        now = due + (number + 0.5) * ATTEMPT
        found = decision(now, gathering(FIRST, MEMBERS, OTHERS, complete=now))
        organiser = rank_order(HEAD, number, MEMBERS)[0]
        assert found.attempt == (number if organiser == FIRST else None)


def test_attempts_are_bounded() -> None:
    late = decision(1e9, gathering(FIRST, MEMBERS, OTHERS, complete=0.0))
    assert late.attempt is None or late.attempt <= limits.ATTEMPTS_MAX
    last = [attempt_of(limits.ATTEMPTS_MAX + more) for more in range(3)]
    assert last == [limits.ATTEMPTS_MAX, 0, 1]


# Rosters


def envelopes(members: list[PeerId]) -> dict[PeerId, Signed]:
    return {member: sealed(member, ready()) for member in members}


def reopened(roster: Roster, organiser: PeerId | None = None, codec: str = "fp32") -> Ring:
    author = organiser or PeerId(roster.members[0].author)
    return open_roster(
        sealed(author, roster), roster, RUN_ID, verify, RING_RULES._replace(codec=codec)
    )


def test_a_roster_becomes_a_ring_in_rank_order() -> None:
    roster = make_roster(HEAD, 5, 2, envelopes(MEMBERS), RING_RULES)
    ring = reopened(roster)
    assert list(ring.members) == rank_order(HEAD, 2, MEMBERS)
    assert ring.weights == dict.fromkeys(MEMBERS, 8192)
    assert ring.ring_id == ring_id_of(sealed(ring.organiser, roster))


def test_only_the_best_ranked_fit_a_ring() -> None:
    roster = make_roster(HEAD, 5, 0, envelopes(MEMBERS), RING_RULES._replace(members_max=2))
    assert [member.author for member in roster.members] == rank_order(HEAD, 0, MEMBERS)[:2]
    sealed_roster = sealed(PeerId(roster.members[0].author), roster)
    open_roster(sealed_roster, roster, RUN_ID, verify, RING_RULES._replace(members_max=2))
    with pytest.raises(MalformedError, match="at most 1"):
        open_roster(sealed_roster, roster, RUN_ID, verify, RING_RULES._replace(members_max=1))


def test_strangers_take_no_places_of_members_that_the_organiser_knows() -> None:
    invented = peers(12)[3:]
    standpoint = Standpoint(FIRST, frozenset(OTHERS))
    ready_peers = envelopes(MEMBERS + invented)
    roster = make_roster(HEAD, 5, 0, ready_peers, RING_RULES._replace(members_max=4), standpoint)
    assert {member.author for member in roster.members} > {*MEMBERS}
    assert len(roster.members) == 4


def test_a_roster_stays_below_what_gossip_carries() -> None:
    wide = ready(spans=ready().spans * limits.SPANS_MAX)
    signed = {member: sealed(member, wide) for member in peers(200)}
    roster = make_roster(HEAD, 5, 0, signed, RING_RULES)
    assert 1 < len(roster.members) < 200
    assert len(sealed(FIRST, roster).payload) < limits.GOSSIP_BYTES_MAX // 2


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"codec": "fp16"}, MalformedError),
        ({"chunk_elements": 2048}, MalformedError),
        ({"attempt": 1}, MalformedError),  # another order
        ({"head": digest_of(b"other")}, MalformedError),
        ({"round": 6}, MalformedError),
        ({"members": "not ready"}, MalformedError),
        ({"members": "forged"}, ForgedError),
        ({"members": "idle"}, MalformedError),
    ],
)
def test_a_roster_that_says_what_it_may_not_is_refused(
    change: dict[str, object], error: type[Exception]
) -> None:
    members = peers(6)
    roster = make_roster(HEAD, 5, 0, envelopes(members), RING_RULES)
    if change.get("members") == "not ready":
        liar = PeerId(roster.members[0].author)
        change = {"members": (sealed(liar, announce()), *roster.members[1:])}
    elif change.get("members") == "forged":
        first = roster.members[0]
        change = {"members": (Signed(first.author, first.payload, bytes(64)), *roster.members[1:])}
    elif change.get("members") == "idle":
        idle = ready(tokens=0, spans=(), steps=0)
        change = {"members": tuple(sealed(PeerId(each.author), idle) for each in roster.members)}
    fields = {name: getattr(roster, name) for name in roster.__struct_fields__}
    with pytest.raises(error):
        reopened(Roster(**{**fields, **change}))


def test_an_organiser_is_a_member() -> None:
    roster = make_roster(HEAD, 5, 0, envelopes(MEMBERS), RING_RULES)
    with pytest.raises(MalformedError):
        reopened(roster, organiser=peer(9))


def test_the_earlier_attempt_then_the_larger_ring_is_preferred() -> None:
    small_early = ring_of(MEMBERS[:2], attempt=0)
    large_early = ring_of(MEMBERS, attempt=0)
    large_late = ring_of(MEMBERS, attempt=1)
    order = sorted([large_late, small_early, large_early], key=preference)
    assert order == [large_early, small_early, large_late]


# Gathering


def gatherer(
    *,
    born: float = -1000.0,
    ring_seconds: float = 0.0,
    steps_seconds: float = 0.0,
    replay_seconds: float = 0.0,
    accusers: int = 1,
) -> Gatherer:
    rules = RoundRules(SUMS, 1024, 1, GATHER, 0.3, ATTEMPT, ring_seconds, steps_seconds, accusers)
    return Gatherer(FIRST, HEAD, born, rules, RoundHints(replay_seconds=replay_seconds))


def test_an_expected_peer_that_is_gone_is_left_out() -> None:
    state = gatherer()
    state.expect(0.0, OTHERS)
    for member in MEMBERS:
        state.note_ready(1.0, sealed(member, ready()))
    state.expect(2.0, OTHERS[:1])
    assert sorted(state.ready) == sorted([FIRST, OTHERS[0]])
    state.expect(3.0, OTHERS)
    assert sorted(state.ready) == sorted(MEMBERS)


def test_a_ready_peer_that_was_not_heard_of_yet_is_no_reason_to_leave_it_out() -> None:
    state = gatherer()
    state.expect(0.0, [])
    state.note_ready(1.0, sealed(OTHERS[0], ready()))
    assert list(state.ready) == [OTHERS[0]]


def test_a_ring_without_me_is_waited_for_while_it_is_at_work() -> None:
    state = gatherer()
    ring = ring_of(OTHERS)
    state.expect(0.0, OTHERS)
    for member in MEMBERS:
        state.note_ready(1.0, sealed(member, ready()))
    assert state.decision(1.0).attempt == 0
    assert state.elsewhere.note(ring)
    assert not state.elsewhere.note(ring)
    assert state.decision(1.0).attempt is None
    state.elsewhere.note_accusation(ring.ring_id, OTHERS[0], OTHERS[1])
    assert state.decision(1.0).attempt is None
    state.elsewhere.note_accusation(ring.ring_id, OTHERS[0], OTHERS[0])
    assert state.decision(1.0).attempt == 0


@pytest.mark.parametrize("ring_seconds", [0.0, 300.0])
def test_a_ring_without_me_may_work_as_long_as_its_members_train_in_it(ring_seconds: float) -> None:
    state = gatherer(ring_seconds=ring_seconds)
    state.expect(0.0, OTHERS)
    for member in MEMBERS:
        state.note_ready(1.0, sealed(member, ready()))
    state.elsewhere.note(ring_of(OTHERS))
    patience = WAITS_MAX * (GATHER + ring_seconds)
    assert state.decision(1.0).attempt is None
    assert state.decision(0.9 + patience).attempt is None
    assert state.decision(1.1 + patience).attempt is not None


@pytest.mark.parametrize(
    ("took", "steps_seconds", "replay_seconds", "waits"),
    [
        (1.0, 0.0, 0.0, GATHER_SECONDS_MIN),
        (10.0, 0.0, 0.0, 3.0),
        (1.0, 9.0, 0.0, 3.0),
        (10.0, 0.0, 4.0, 4.0),
        (10.0, 0.0, 1e3, GATHER),
    ],
)
def test_the_unready_are_waited_for_as_long_as_fetching_the_last_round_takes(
    took: float, steps_seconds: float, replay_seconds: float, waits: float
) -> None:
    state = gatherer(born=0.0, steps_seconds=steps_seconds, replay_seconds=replay_seconds)
    state.expect(0.0, OTHERS)
    state.note_ready(took, sealed(FIRST, ready()))
    assert state.gather_seconds == waits
    assert state.decision(took + 0.9 * waits).attempt is None
    assert state.decision(took + waits).attempt == 0


def test_many_that_trail_are_waited_for_as_long_as_the_manifest_allows() -> None:
    state = gatherer(born=0.0)
    state.expect(0.0, [], OTHERS)
    state.note_ready(1.0, sealed(FIRST, ready()))
    assert state.gather_seconds == GATHER
    state.expect(2.0, OTHERS)  # they are nearly there
    assert state.gather_seconds == GATHER
    for other in OTHERS[1:]:
        state.note_ready(3.0, sealed(other, ready()))
    assert state.gather_seconds == GATHER
    state.expect(4.0, OTHERS[1:])  # one of them dies
    assert state.gather_seconds == GATHER_SECONDS_MIN


def test_a_peer_that_a_ring_left_behind_waits_for_its_commit() -> None:
    state = gatherer()
    state.expect(0.0, OTHERS)
    for member in MEMBERS:
        state.note_ready(1.0, sealed(member, ready()))
    state.elsewhere.note(ring_of(OTHERS))
    assert state.decision(1.0).attempt is None
    state.expect(2.0, [])
    waiting = state.decision(2.0)
    assert waiting.attempt is None
    assert state.decision(1.9 + ATTEMPT).attempt is None
    assert state.decision(2.0 + ATTEMPT).attempt is not None


def overruling() -> Gatherer:
    """A machine that organises a ring although one without it is at work, at second 1 + LONGEST."""
    state = gatherer()
    state.expect(0.0, OTHERS)
    for member in MEMBERS:
        state.note_ready(1.0, sealed(member, ready()))
    state.elsewhere.note(ring_of(OTHERS))
    assert state.decision(1.0).attempt is None
    assert state.decision(1.0 + LONGEST).attempt is not None
    assert state.elsewhere.state == "overruling"
    return state


def test_a_ring_that_was_overruled_may_still_be_left_or_committed() -> None:
    now = 2.0 + LONGEST
    dissolved, gone_on = overruling(), overruling()
    for other in OTHERS:
        dissolved.elsewhere.note_accusation(ring_of(OTHERS).ring_id, other, other)
    assert not dissolved.decision(now).reason.startswith("a ring without this peer")
    assert dissolved.elsewhere.state == "open"
    gone_on.expect(now, [])
    waiting = gone_on.decision(now)
    assert waiting.attempt is None
    assert waiting.reason == "a ring without this peer may be committed"
    assert gone_on.decision(now + ATTEMPT - 0.1).attempt is None
    assert gone_on.decision(now + ATTEMPT).attempt is not None


def test_members_that_come_back_while_their_commit_is_awaited_are_waited_for() -> None:
    state = gatherer()
    state.expect(0.0, OTHERS)
    for member in MEMBERS:
        state.note_ready(1.0, sealed(member, ready()))
    state.elsewhere.note(ring_of(OTHERS))
    assert state.decision(1.0).attempt is None
    state.expect(2.0, [])
    assert state.decision(2.0).reason == "a ring without this peer may be committed"
    state.expect(3.0, OTHERS)
    again = state.decision(3.0)
    assert again.reason == "a ring without this peer is at work on this head"
    left = WAITS_MAX * GATHER - 1.0 - ATTEMPT
    assert state.decision(2.9 + left).attempt is None
    assert state.decision(3.0 + left).attempt is not None


def come_and_go(state: Gatherer, away_seconds: float) -> float:
    """The others make ring after ring without this peer, and are away for a while before each wait
    for one ends. Returns the time at which this peer organises a ring, in seconds."""
    now = 1.0
    while now < 100 * GATHER:
        state.elsewhere.note(ring_of(OTHERS, attempt=int(now)))
        state.expect(now, OTHERS)
        for tick in range(int(0.9 * GATHER)):
            if state.decision(now + tick).attempt is not None:
                return now + tick
        now += 0.9 * GATHER
        state.expect(now, [])
        if state.decision(now).attempt is not None:
            return now
        now += away_seconds
    return now


@pytest.mark.parametrize("away_seconds", [0.5, ATTEMPT, 2 * ATTEMPT])
def test_rings_that_come_and_go_are_waited_for_twice_as_long_as_gathering(
    away_seconds: float,
) -> None:
    state = gatherer()
    state.expect(0.0, OTHERS)
    for member in MEMBERS:
        state.note_ready(1.0, sealed(member, ready()))
    organises = come_and_go(state, away_seconds)
    assert organises > 1.0 + GATHER
    assert organises <= 1.0 + WAITS_MAX * (GATHER + away_seconds)


def test_after_a_lost_ring_a_later_attempt_is_gathered_for() -> None:
    state = gatherer()
    state.expect(0.0, [])
    state.note_ready(1.0, sealed(FIRST, ready()))
    state.begin_again(2.0, failed_attempt=3)
    assert state.decision(1.9 + ATTEMPT).attempt is None
    assert state.decision(2.0 + ATTEMPT).attempt == 4


def test_after_two_lost_rings_the_attempts_of_both_are_over() -> None:
    state = gatherer()
    state.expect(0.0, [])
    state.note_ready(1.0, sealed(FIRST, ready()))
    state.begin_again(2.0, failed_attempt=3)
    state.begin_again(3.0, failed_attempt=1)
    assert state.decision(3.0 + ATTEMPT).attempt == 4


def test_a_peer_that_comes_when_all_are_ready_begins_their_attempts_anew() -> None:
    """Else each peer would count attempts from where it happened to hear of the newcomer."""
    state = gatherer()
    state.expect(0.0, OTHERS[:1])
    state.note_ready(1.0, sealed(FIRST, ready()))
    state.note_ready(1.0, sealed(OTHERS[0], ready()))
    state.expect(1.0, OTHERS)
    assert state.decision(1.0).reason.startswith("waiting for")
    for other in OTHERS[1:]:
        state.note_ready(1.0 + GATHER_SECONDS_MIN, sealed(other, ready()))
    assert state.decision(1.0 + GATHER_SECONDS_MIN).attempt == 0


def test_where_one_accuser_suffices_members_of_a_void_ring_may_be_in_the_next_one() -> None:
    state = gatherer(accusers=1)
    state.expect(0.0, [])
    for member in MEMBERS:
        state.note_ready(1.0, sealed(member, ready()))
    state.begin_again(2.0, failed_attempt=0, removed=MEMBERS)
    assert set(state.ready) == set(MEMBERS)


def test_members_that_are_not_here_are_left_out_of_the_ring_after_a_void_one() -> None:
    """After a restart this peer knows the `Ready` of peers that died before it."""
    state = gatherer(accusers=2)
    state.expect(0.0, [])
    for member in MEMBERS:
        state.note_ready(1.0, sealed(member, ready()))
    assert set(state.ready) == set(MEMBERS)
    state.begin_again(2.0, failed_attempt=0, removed=MEMBERS)
    assert set(state.ready) == {FIRST}
    state.expect(3.0, OTHERS[:1])
    assert set(state.ready) == {FIRST, OTHERS[0]}


def test_the_others_are_waited_for_a_part_of_what_the_first_one_took() -> None:
    def waits(took: float) -> float:
        state = gatherer(born=100.0)
        state.expect(100.0, OTHERS)
        state.note_ready(100.0 + took, sealed(FIRST, ready()))
        ends = 100.0 + took + state.gather_seconds
        assert state.decision(ends - 0.1).reason.startswith("waiting for")
        assert not state.decision(ends + 0.1).reason.startswith("waiting for")
        return state.gather_seconds

    assert waits(30.0) == pytest.approx(9.0)
    assert waits(1.0) == GATHER_SECONDS_MIN
    assert waits(1000.0) == GATHER
