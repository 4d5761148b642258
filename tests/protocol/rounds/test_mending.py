"""Rosters that leave out a peer. One that is ready: noted, and mended from the second time on. One
that is not ready yet: it is waited for."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gossamer.protocol.accounting.ledger import Ledger
from gossamer.protocol.codecs.payloads import SumPayloads
from gossamer.protocol.codecs.tensor_codecs import codec
from gossamer.protocol.ids import PeerId
from gossamer.protocol.rounds.actions import Action, LeftOut, Publish, Signer
from gossamer.protocol.rounds.commit import Parent
from gossamer.protocol.rounds.ring.ring_members import FOLLOWS_ANOTHER
from gossamer.protocol.rounds.ring_choice import (
    HURRY_SECONDS,
    IN_VAIN_ROUNDS_MAX,
    MEND_HOLD_SECONDS,
    MEND_STEP_SECONDS,
    REPLACE_SECONDS,
    waited_in_vain,
)
from gossamer.protocol.rounds.ring_order import encode_links, rank_order
from gossamer.protocol.rounds.roster import (
    RoundHints,
    RoundRules,
    Vain,
    make_roster,
    preference,
)
from gossamer.protocol.rounds.round import LEFT_RINGS_MAX, Round
from gossamer.protocol.wire.envelopes import ring_id_of
from gossamer.protocol.wire.statements import Accusation, Ready, Roster, Signed
from tests.support.builders import HEAD, RING_RULES, RUN_ID, peers, ready, sealed, sign_as, verify

ORGANISER, FIRST, SECOND, VICTIM = MEMBERS = rank_order(HEAD, 0, peers(4))
GATHER_SECONDS = 20.0
UNFAIR = RoundHints(unfair=frozenset({ORGANISER}))


def said(peer: PeerId, links: bytes = b"") -> tuple[Signed, Ready]:
    statement = ready(links=links)
    return sealed(peer, statement), statement


def at_work(
    me: PeerId, hints: RoundHints, heard: list[PeerId], links_of_victim: bytes = b""
) -> Round:
    """A machine at second 0 that expects all others and has heard the `Ready` of some."""
    machine = Round(
        signer=Signer(me, RUN_ID, sign_as(me)),
        parent=Parent(HEAD, 4, 1000, Ledger()),
        rules=RoundRules(SumPayloads(codec("fp32")), 1024, 1, GATHER_SECONDS, 0.3, 5.0),
        verify=verify,
        now=-100.0,
        hints=hints,
    )
    machine.expect(-1.0, [peer for peer in MEMBERS if peer != me])
    machine.ready(0.0, ready())
    for peer in heard:
        machine.statement(0.0, *said(peer, links_of_victim if peer == VICTIM else b""))
    return machine


def without_victim(attempt: int = 0) -> tuple[Signed, Roster]:
    envelopes = {peer: said(peer)[0] for peer in MEMBERS if peer != VICTIM}
    made = make_roster(HEAD, 5, attempt, envelopes, RING_RULES)
    return sealed(ORGANISER, made), made


def of_members(*members: PeerId, attempt: int = 0) -> tuple[Signed, Roster]:
    """The first of them organises it."""
    envelopes = {peer: said(peer)[0] for peer in members}
    made = make_roster(HEAD, 5, attempt, envelopes, RING_RULES)
    return sealed(members[0], made), made


def rosters(actions: list[Action]) -> list[Roster]:
    found = [action.statement for action in actions if isinstance(action, Publish)]
    return [each for each in found if isinstance(each, Roster)]


def noted(actions: list[Action]) -> list[Action]:
    return [action for action in actions if isinstance(action, LeftOut)]


def num_members(machine: Round) -> int:
    return 0 if machine.ring is None else len(machine.ring.members)


LATE = GATHER_SECONDS - HURRY_SECONDS
"""Time at which honest organisers publish rosters without peers that they have not heard."""


def test_one_such_roster_is_noted_and_followed() -> None:
    machine = at_work(FIRST, RoundHints(), [SECOND, VICTIM])
    actions = machine.statement(LATE, *without_victim())
    assert noted(actions) == [LeftOut(ORGANISER, (VICTIM,), is_mended=False)]
    assert rosters(actions) == []
    assert num_members(machine) == 3


def test_a_roster_of_an_unfair_organiser_is_mended_and_all_prefer_the_new_one() -> None:
    machine = at_work(FIRST, UNFAIR, [SECOND, VICTIM])
    actions = machine.statement(1.0, *without_victim())
    assert noted(actions) == [LeftOut(ORGANISER, (VICTIM,), is_mended=True)]
    (mended,) = rosters(actions)
    assert {member.author for member in mended.members} == {*MEMBERS}
    assert num_members(machine) == 4
    # One that believes the organiser, whichever of the two it hears first.
    other = at_work(SECOND, RoundHints(), [FIRST, VICTIM])
    other.statement(LATE, *without_victim())
    assert num_members(other) == 3
    old = other.ring
    other.statement(LATE + 0.1, sealed(FIRST, mended), mended)
    assert num_members(other) == 4
    assert old is not None
    assert other.ring is not None
    assert preference(other.ring) < preference(old)
    other.statement(LATE + 0.2, *without_victim())
    assert num_members(other) == 4
    # And the victim, which waits for the ring that it is not in.
    victim = at_work(VICTIM, RoundHints(), [FIRST, SECOND])
    victim.statement(1.0, *without_victim())
    assert num_members(victim) == 0
    victim.statement(1.1, sealed(FIRST, mended), mended)
    assert num_members(victim) == 4


def test_an_early_roster_is_mended_when_a_death_would_have_shown() -> None:
    machine = at_work(FIRST, RoundHints(), [SECOND, VICTIM])
    actions = machine.statement(1.0, *without_victim())
    assert actions == [LeftOut(ORGANISER, (VICTIM,), is_mended=True)]
    assert machine.tick(1.0 + 0.9 * MEND_STEP_SECONDS) == []
    actions = machine.tick(1.0 + MEND_STEP_SECONDS)
    assert [len(each.members) for each in rosters(actions)] == [4]
    assert num_members(machine) == 4
    dead = at_work(FIRST, RoundHints(), [SECOND, VICTIM])
    dead.statement(1.0, *without_victim())
    assert rosters(dead.expect(1.1, [ORGANISER, SECOND])) == []
    assert num_members(dead) == 3, "there is nothing to wait for any more"


@pytest.mark.parametrize("is_ready", [True, False])
def test_an_organiser_may_leave_out_whom_verdicts_name(is_ready: bool) -> None:
    hints = UNFAIR._replace(excused=frozenset({(ORGANISER, VICTIM)}))
    machine = at_work(FIRST, hints, [SECOND, VICTIM] if is_ready else [SECOND])
    actions = machine.statement(1.0, *without_victim())
    assert noted(actions) == []
    assert rosters(actions) == []
    assert num_members(machine) == 3
    others = UNFAIR._replace(excused=frozenset({(SECOND, VICTIM)}))
    machine = at_work(FIRST, others, [SECOND, VICTIM] if is_ready else [SECOND])
    machine.statement(1.0, *without_victim())
    machine.statement(1.1, *said(VICTIM))
    assert num_members(machine) == 4


def test_the_next_member_by_rank_mends_it_where_the_first_one_does_not() -> None:
    machine = at_work(SECOND, UNFAIR, [FIRST, VICTIM])
    assert rosters(machine.statement(1.0, *without_victim())) == []
    assert machine.statement(1.1, *without_victim()) == [], "it comes again"
    assert num_members(machine) == 0
    assert rosters(machine.tick(1.0 + MEND_STEP_SECONDS / 2)) == []
    assert len(rosters(machine.tick(1.0 + MEND_STEP_SECONDS))) == 1
    assert num_members(machine) == 4
    assert rosters(machine.tick(1.0 + 2 * MEND_STEP_SECONDS)) == []


def test_a_roster_without_a_wronged_peer_is_mended_whoever_made_it() -> None:
    machine = at_work(FIRST, RoundHints(wronged=frozenset({VICTIM})), [SECOND, VICTIM])
    actions = machine.statement(1.0, *without_victim())
    assert noted(actions) == [LeftOut(ORGANISER, (VICTIM,), is_mended=True)]
    assert len(rosters(actions)) == 1
    assert num_members(machine) == 4


@pytest.mark.parametrize("hints", [RoundHints(), UNFAIR])
def test_a_peer_that_is_not_ready_yet_is_waited_for_shortly(hints: RoundHints) -> None:
    machine = at_work(FIRST, hints, [SECOND])
    actions = machine.statement(1.0, *without_victim())
    assert noted(actions) == [], "it may have come too late"
    assert num_members(machine) == 0
    half = 1.0 + MEND_HOLD_SECONDS / 2
    actions = machine.statement(half, *said(VICTIM))
    assert [len(each.members) for each in rosters(actions)] == [4]
    assert num_members(machine) == 4
    late = at_work(FIRST, hints, [SECOND])
    late.statement(1.0, *without_victim())
    almost = 1.0 + 0.99 * MEND_HOLD_SECONDS
    assert late.tick(almost) == []
    assert num_members(late) == 0
    assert rosters(late.tick(1.0 + MEND_HOLD_SECONDS)) == []
    assert num_members(late) == 3


def test_a_roster_that_comes_when_the_gathering_ends_is_followed_at_once() -> None:
    for seconds, num in ((LATE, 3), (GATHER_SECONDS - 1.0, 0)):
        machine = at_work(FIRST, RoundHints(), [SECOND])
        machine.statement(seconds, *without_victim())
        assert num_members(machine) == num
    machine.tick(GATHER_SECONDS)
    assert num_members(machine) == 3, "nobody waits for longer than an honest organiser"


def test_a_late_roster_is_followed_whoever_is_missing_unless_its_author_is_unfair() -> None:
    """Every wait for one that is missing would be added to that of the organiser."""
    machine = at_work(SECOND, RoundHints(), [FIRST])
    machine.statement(LATE, *without_victim())
    assert num_members(machine) == 3
    machine = at_work(FIRST, UNFAIR, [SECOND])
    machine.statement(LATE, *without_victim())
    assert num_members(machine) == 0
    assert len(rosters(machine.statement(LATE + 1.0, *said(VICTIM)))) == 1
    assert num_members(machine) == 4


def test_a_roster_is_not_mended_any_more_once_a_preferred_ring_is_followed() -> None:
    machine = at_work(FIRST, RoundHints(), [SECOND, VICTIM])
    assert rosters(machine.statement(1.0, *without_victim(attempt=1))) == []
    machine.statement(1.1, *of_members(ORGANISER, FIRST, SECOND, VICTIM))
    assert num_members(machine) == 4
    assert machine.tick(1.0 + MEND_STEP_SECONDS) == []


def test_a_peer_that_dies_meanwhile_is_not_waited_for() -> None:
    machine = at_work(FIRST, RoundHints(), [SECOND])
    machine.statement(1.0, *without_victim())
    machine.expect(1.1, [ORGANISER, SECOND])
    assert num_members(machine) == 3
    assert machine.hints.in_vain == ()


def test_further_rosters_do_not_make_the_wait_longer() -> None:
    machine = at_work(FIRST, UNFAIR, [SECOND])
    machine.statement(1.0, *without_victim(attempt=3))
    machine.statement(0.9 + MEND_HOLD_SECONDS, *without_victim(attempt=2))
    assert num_members(machine) == 0
    machine.tick(1.0 + MEND_HOLD_SECONDS)
    assert machine.ring is not None
    assert machine.ring.roster.attempt == 2


def test_a_member_that_waits_follows_no_ring_that_is_less_preferred() -> None:
    """The others go to the preferred ring, which this one would not hear of again."""
    machine = at_work(FIRST, RoundHints(), [SECOND])
    machine.statement(1.0, *without_victim())
    machine.statement(1.1, *without_victim(attempt=1))
    assert num_members(machine) == 0
    machine.tick(1.0 + MEND_HOLD_SECONDS)
    assert machine.ring is not None
    assert machine.ring.roster.attempt == 0


def test_a_peer_that_made_others_wait_in_vain_is_not_waited_for_in_the_next_rounds() -> None:
    machine = at_work(FIRST, RoundHints(), [SECOND])
    machine.statement(1.0, *without_victim())
    machine.tick(1.0 + MEND_HOLD_SECONDS)
    known = machine.hints.in_vain
    assert known == (Vain(VICTIM, until=6, times=1),)
    again = at_work(FIRST, RoundHints(in_vain=(Vain(VICTIM, until=5, times=1),)), [SECOND])
    again.statement(1.0, *without_victim())
    assert num_members(again) == 3
    later = at_work(FIRST, RoundHints(in_vain=(Vain(VICTIM, until=4, times=1),)), [SECOND])
    later.statement(1.0, *without_victim())
    assert num_members(later) == 0
    later.tick(1.0 + MEND_HOLD_SECONDS)
    assert later.hints.in_vain == (Vain(VICTIM, until=7, times=2),)


def test_waits_in_vain_become_rare_and_are_forgotten() -> None:
    known: tuple[Vain, ...] = ()
    waited = []
    for number in range(200):
        is_waited_for = all(each.until < number for each in known)
        waited += [number] * is_waited_for
        known = waited_in_vain(known, [VICTIM] * is_waited_for, [FIRST], number)
    assert waited[:6] == [0, 2, 5, 10, 19, 36]
    assert {after - before for before, after in pairwise(waited[5:])} == {IN_VAIN_ROUNDS_MAX + 1}
    assert waited_in_vain(known, [], [VICTIM], 200) == ()
    assert waited_in_vain(known, [], [], known[0].until + IN_VAIN_ROUNDS_MAX + 1) == ()


@pytest.mark.parametrize("hints", [RoundHints(), UNFAIR])
def test_a_peer_that_nobody_is_linked_to_is_left_out_for_good_reason(hints: RoundHints) -> None:
    stranger = peers(5)[-1]
    apart = encode_links([stranger])
    machine = at_work(FIRST, hints, [SECOND, VICTIM], apart)
    assert noted(machine.statement(1.0, *without_victim())) == []
    assert num_members(machine) == 3


@pytest.mark.parametrize("hints", [RoundHints(), UNFAIR])
def test_a_peer_that_has_gone_is_not_missed(hints: RoundHints) -> None:
    machine = at_work(FIRST, hints, [SECOND, VICTIM])
    machine.expect(0.5, [ORGANISER, SECOND])
    assert noted(machine.statement(1.0, *without_victim())) == []
    assert num_members(machine) == 3


def test_a_late_roster_of_a_dead_organiser_takes_no_member_out_of_the_ring_that_followed() -> None:
    """The organiser died while it published, so some heard its roster after they had a new ring."""
    machine = at_work(FIRST, RoundHints(), [ORGANISER, SECOND, VICTIM])
    machine.expect(LATE, [SECOND, VICTIM])
    envelopes = {peer: said(peer)[0] for peer in (FIRST, SECOND, VICTIM)}
    made = make_roster(HEAD, 5, 0, envelopes, RING_RULES)
    machine.statement(LATE, sealed(SECOND, made), made)
    assert num_members(machine) == 3
    machine.statement(LATE + 0.3, *without_victim())
    for tick in range(1, 20):
        machine.tick(LATE + 0.3 + tick * 0.1)
    assert machine.ring is not None
    assert {*machine.ring.members} == {*MEMBERS}
    # Another member that heard it before follows the mended ring, and so does the victim.
    roster = machine.ring.roster
    other = at_work(SECOND, RoundHints(), [FIRST, VICTIM])
    other.statement(LATE, *without_victim())
    other.statement(LATE + 0.4, machine.ring.envelope, roster)
    assert num_members(other) == 4
    victim = at_work(VICTIM, RoundHints(), [FIRST, SECOND])
    victim.statement(LATE, sealed(SECOND, made), made)
    victim.statement(LATE + 0.4, machine.ring.envelope, roster)
    assert num_members(victim) == 4


def test_a_ring_that_was_followed_for_long_is_left_for_no_mended_one() -> None:
    """The others refuse that ring by then (`ring_choice`), so this member would be alone in it."""
    machine = at_work(SECOND, RoundHints(), [ORGANISER, FIRST, VICTIM])
    machine.expect(LATE, [FIRST, VICTIM])
    envelopes = {peer: said(peer)[0] for peer in (FIRST, SECOND, VICTIM)}
    made = make_roster(HEAD, 5, 0, envelopes, RING_RULES)
    machine.statement(LATE, sealed(FIRST, made), made)
    ring = machine.ring
    assert ring is not None
    signed, roster = without_victim()
    heard = LATE + REPLACE_SECONDS - MEND_STEP_SECONDS / 2
    actions = machine.statement(heard, signed, roster)
    for tick in range(1, 10):
        actions += machine.tick(heard + tick * 0.1)
    assert rosters(actions) == []
    assert machine.ring is ring
    assert SECOND in machine.members_at_work
    out = [
        action.statement.ring_id
        for action in actions
        if isinstance(action, Publish) and isinstance(action.statement, Accusation)
    ]
    assert out == [ring_id_of(signed)], "nobody waits for this member in the late ring"


def left_by_all(machine: Round, now: float) -> list[Action]:
    """The members of the second one's ring beside it say that they follow another one."""
    ring = machine.ring
    assert ring is not None
    actions: list[Action] = []
    for peer in sorted({*ring.members} - {SECOND}):
        statement = Accusation(ring.ring_id, peer, FOLLOWS_ANOTHER)
        actions += machine.statement(now, sealed(peer, statement), statement)
    return actions


def test_a_member_that_the_others_leave_for_a_ring_with_it_goes_there_when_it_hears_of_it() -> None:
    """A commit of it alone would part from the one that they are about to make."""
    machine = at_work(SECOND, RoundHints(), [ORGANISER, FIRST])
    machine.expect(LATE, [ORGANISER, FIRST])
    machine.statement(LATE, *of_members(ORGANISER, FIRST, SECOND))
    actions = left_by_all(machine, LATE + 0.5)
    assert machine.state == "gathering"
    assert rosters(actions) == []
    machine.statement(LATE + 0.6, *of_members(*MEMBERS))
    assert num_members(machine) == 4


def test_a_member_that_is_left_again_and_again_ends_its_round_alone() -> None:
    """Otherwise one other member would keep it from all rounds."""
    machine = at_work(SECOND, RoundHints(), [FIRST])
    machine.expect(LATE, [FIRST])
    for attempt in range(LEFT_RINGS_MAX):
        machine.statement(LATE, *of_members(FIRST, SECOND, attempt=attempt))
        left_by_all(machine, LATE)
        assert machine.state == "gathering"
    machine.statement(LATE, *of_members(FIRST, SECOND, attempt=LEFT_RINGS_MAX))
    left_by_all(machine, LATE)
    assert machine.members_at_work == (SECOND,)
