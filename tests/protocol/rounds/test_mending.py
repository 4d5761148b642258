"""Rosters that leave out a ready peer: noted, and mended where their organiser does so again."""

from __future__ import annotations

import pytest

from gossamer.protocol.accounting.ledger import Ledger
from gossamer.protocol.codecs.payloads import SumPayloads
from gossamer.protocol.codecs.tensor_codecs import codec
from gossamer.protocol.ids import PeerId
from gossamer.protocol.rounds.actions import Action, LeftOut, Publish
from gossamer.protocol.rounds.commit import Parent
from gossamer.protocol.rounds.ring_order import encode_links, rank_order
from gossamer.protocol.rounds.roster import (
    MEND_HOLD_SECONDS,
    MEND_STEP_SECONDS,
    RoundHints,
    RoundRules,
    make_roster,
    preference,
)
from gossamer.protocol.rounds.round import Round
from gossamer.protocol.wire.statements import Ready, Roster, Signed
from tests.support.builders import HEAD, RUN_ID, peers, ready, sealed, sign_as, verify

ORGANISER, FIRST, SECOND, VICTIM = MEMBERS = rank_order(HEAD, 0, peers(4))
UNFAIR = RoundHints(unfair=frozenset({ORGANISER}))


def said(peer: PeerId, links: bytes = b"") -> tuple[Signed, Ready]:
    statement = ready(links=links)
    return sealed(peer, statement), statement


def at_work(
    me: PeerId, hints: RoundHints, heard: list[PeerId], links_of_victim: bytes = b""
) -> Round:
    """A machine at second 0 that expects all others and has heard the `Ready` of some."""
    machine = Round(
        me=me,
        run_id=RUN_ID,
        parent=Parent(HEAD, 4, 1000, Ledger()),
        rules=RoundRules(SumPayloads(codec("fp32")), 1024, 1, 20.0, 0.3, 5.0),
        sign=sign_as(me),
        verify=verify,
        now=-100.0,
        hints=hints,
    )
    machine.expect(-1.0, [peer for peer in MEMBERS if peer != me])
    machine.ready(0.0, ready())
    for peer in heard:
        machine.statement(0.0, *said(peer, links_of_victim if peer == VICTIM else b""))
    return machine


def without_victim() -> tuple[Signed, Roster]:
    envelopes = {peer: said(peer)[0] for peer in MEMBERS if peer != VICTIM}
    made = make_roster(HEAD, 5, 0, envelopes, "fp32", 1024)
    return sealed(ORGANISER, made), made


def rosters(actions: list[Action]) -> list[Roster]:
    found = [action.statement for action in actions if isinstance(action, Publish)]
    return [each for each in found if isinstance(each, Roster)]


def noted(actions: list[Action]) -> list[Action]:
    return [action for action in actions if isinstance(action, LeftOut)]


def num_members(machine: Round) -> int:
    return 0 if machine.ring is None else len(machine.ring.members)


def test_one_such_roster_is_noted_and_followed() -> None:
    machine = at_work(FIRST, RoundHints(), [SECOND, VICTIM])
    actions = machine.statement(1.0, *without_victim())
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
    other.statement(1.0, *without_victim())
    assert num_members(other) == 3
    old = other.ring
    other.statement(1.1, sealed(FIRST, mended), mended)
    assert num_members(other) == 4
    assert old is not None
    assert other.ring is not None
    assert preference(other.ring) < preference(old)
    other.statement(1.2, *without_victim())
    assert num_members(other) == 4
    # And the victim, which waits for the ring that it is not in.
    victim = at_work(VICTIM, RoundHints(), [FIRST, SECOND])
    victim.statement(1.0, *without_victim())
    assert num_members(victim) == 0
    victim.statement(1.1, sealed(FIRST, mended), mended)
    assert num_members(victim) == 4


def test_the_next_member_by_rank_mends_it_where_the_first_one_does_not() -> None:
    machine = at_work(SECOND, UNFAIR, [FIRST, VICTIM])
    assert rosters(machine.statement(1.0, *without_victim())) == []
    assert machine.statement(1.1, *without_victim()) == [], "it comes again"
    assert num_members(machine) == 0
    assert rosters(machine.tick(1.0 + MEND_STEP_SECONDS / 2)) == []
    assert len(rosters(machine.tick(1.0 + MEND_STEP_SECONDS))) == 1
    assert num_members(machine) == 4
    assert rosters(machine.tick(1.0 + 2 * MEND_STEP_SECONDS)) == []


def test_a_peer_that_is_not_ready_yet_is_waited_for_shortly() -> None:
    machine = at_work(FIRST, UNFAIR, [SECOND])
    actions = machine.statement(1.0, *without_victim())
    assert noted(actions) == [], "it may have come too late"
    assert num_members(machine) == 0
    machine.statement(1.0 + MEND_HOLD_SECONDS / 2, *said(VICTIM))
    assert len(rosters(machine.tick(1.0 + MEND_HOLD_SECONDS / 2))) == 1 or num_members(machine) == 4
    late = at_work(FIRST, UNFAIR, [SECOND])
    late.statement(1.0, *without_victim())
    assert rosters(late.tick(1.0 + MEND_HOLD_SECONDS)) == []
    assert num_members(late) == 3


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
