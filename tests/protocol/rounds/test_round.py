"""One peer's round, event by event. What many peers do together is simulated in tests/sim."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from gossamer.protocol import limits
from gossamer.protocol.accounting.ledger import Ledger
from gossamer.protocol.codecs.contributions import add_record
from gossamer.protocol.codecs.payloads import Payloads, SumPayloads
from gossamer.protocol.codecs.sign_codec import SignCodec, SignUpdate
from gossamer.protocol.codecs.step_codec import StepCodec
from gossamer.protocol.codecs.step_payloads import SignPayloads
from gossamer.protocol.codecs.tensor_codecs import codec
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import LocalProtocolError
from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.policy.conduct.ring_conduct import VotesSeen
from gossamer.protocol.rounds import round as round_module
from gossamer.protocol.rounds.actions import (
    Action,
    AverageArrived,
    AverageFinished,
    BeginRing,
    Committed,
    Compute,
    Computed,
    Contested,
    Contribute,
    Contributed,
    FinishAverage,
    LinkBroken,
    Publish,
    Removed,
    Send,
    Signer,
    SumArrived,
)
from gossamer.protocol.rounds.commit import (
    DISAGREE_SECONDS,
    RECONCILE_SECONDS,
    SPREAD_SECONDS,
    VOTE_SECONDS,
    Parent,
)
from gossamer.protocol.rounds.commit_proof import open_commit
from gossamer.protocol.rounds.inventory import ArrivedSum, Average
from gossamer.protocol.rounds.ring.followed_ring import LONE_SECONDS, STALLED
from gossamer.protocol.rounds.ring.patience import (
    KEPT_SECONDS,
    KEPT_SECONDS_MIN,
    KEPT_STEP_SECONDS,
    STALL_SECONDS,
    STILL_SECONDS_MAX,
    SUSPECT_SECONDS,
    kept_seconds,
)
from gossamer.protocol.rounds.ring.ring_members import (
    ANSWER_SECONDS,
    BASELESS,
    FOLLOWS_ANOTHER,
    REPEATED,
)
from gossamer.protocol.rounds.ring_choice import OPENED_MEMBERS_MAX
from gossamer.protocol.rounds.ring_order import rank_order
from gossamer.protocol.rounds.roster import (
    NO_HINTS,
    Ring,
    RoundHints,
    RoundRules,
    make_roster,
    open_roster,
)
from gossamer.protocol.rounds.round import Round
from gossamer.protocol.rounds.round_view import EARLY_STATEMENTS_MAX, LATER_FACTOR
from gossamer.protocol.state.chain import Commit, signers_of
from gossamer.protocol.wire.envelopes import ring_id_of
from gossamer.protocol.wire.statements import Accusation, Ready, Roster, Signed, Vote
from tests.support.builders import HEAD, RING_RULES, RUN_ID, peers, ready, sealed, sign_as, verify

GATHER, ATTEMPT = 20.0, 5.0
TICK_SECONDS = 0.1
MEMBERS = rank_order(HEAD, 0, peers(3))
ME, NEXT, LAST = MEMBERS
SUMS = SumPayloads(codec("fp32"))
STEPS = SignPayloads(StepCodec([SignCodec([(1, 4)], 1)]))


def machine(
    me: PeerId = ME,
    began: float = -100.0,
    payloads: Payloads = SUMS,
    hints: RoundHints = NO_HINTS,
    accusers: int = 1,
) -> Round:
    return Round(
        signer=Signer(me, RUN_ID, sign_as(me)),
        parent=Parent(HEAD, 4, 1000, Ledger()),
        rules=RoundRules(payloads, 1024, 1, GATHER, 0.3, ATTEMPT, accusers=accusers),
        verify=verify,
        now=began,
        hints=hints,
    )


def envelopes(members: list[PeerId]) -> dict[PeerId, Signed]:
    return {member: sealed(member, ready()) for member in members}


def roster(members: list[PeerId], attempt: int = 0) -> tuple[Signed, Roster]:
    made = make_roster(HEAD, 5, attempt, envelopes(members), RING_RULES)
    return sealed(PeerId(made.members[0].author), made), made


def ring_of(members: list[PeerId], attempt: int = 0) -> Ring:
    return open_roster(*roster(members, attempt), RUN_ID, verify, RING_RULES)


def published(actions: list[Action]) -> list[object]:
    return [action.statement for action in actions if isinstance(action, Publish)]


def of(kind: type[Action], actions: list[Action]) -> list[Action]:
    return [action for action in actions if isinstance(action, kind)]


def state_of(round_: Round) -> str:
    """The state after an event; mypy takes that of `round_.state` for the one before."""
    return round_.state


def in_ring(
    me: PeerId = ME, members: list[PeerId] = MEMBERS, hints: RoundHints = NO_HINTS
) -> tuple[Round, Digest]:
    """A machine that follows the ring of these members, at second 0."""
    round_ = machine(me, hints=hints)
    round_.expect(0.0, [member for member in members if member != me])
    round_.ready(0.0, ready())
    round_.statement(0.0, *roster(members))
    assert round_.ring is not None
    return round_, round_.ring.ring_id


def accusation_of(
    ring_id: Digest, accused: PeerId
) -> Callable[[PeerId], tuple[Signed, Accusation]]:
    statement = Accusation(ring_id, accused, "reset")
    return lambda author: (sealed(author, statement), statement)


def test_one_peer_alone_commits_alone() -> None:
    round_ = machine()
    actions = round_.ready(0.0, ready())
    assert [type(statement) for statement in published(actions)] == [Ready, Roster]
    assert round_.ring is not None
    ring_id = round_.ring.ring_id
    assert of(Contribute, actions) == [Contribute(0, None)]
    assert round_.ring_event(1.0, ring_id, Contributed(0, b"sum")) == [FinishAverage(0, b"sum", 1)]
    (compute,) = round_.ring_event(2.0, ring_id, AverageFinished(0, b"f", digest_of(b"f")))
    assert isinstance(compute, Compute)
    actions = round_.ring_event(3.0, ring_id, Computed(compute.generation, digest_of(b"state")))
    (committed,) = of(Committed, actions)
    assert isinstance(committed, Committed)
    header = open_commit(committed.commit, RUN_ID, verify, RING_RULES)
    assert (header.round, header.parent, header.tokens_total) == (5, HEAD, 1000 + 8192)
    assert header.spans == ready().spans
    assert round_.state == "committed"
    assert round_.hints == RoundHints(replay_seconds=2.0)
    assert round_.tick(99.0) == []
    assert round_.tick(1e9) == []


@pytest.mark.parametrize("abstains", [False, True])
def test_a_round_in_which_no_member_has_a_part_is_none(abstains: bool) -> None:
    coder = StepCodec([SignCodec([(1, 4)], 1)])
    part = coder.encode(SignUpdate(np.array([2]), np.array([True])))
    step = add_record(None, 0, b"" if abstains else part)
    round_ = machine(payloads=SignPayloads(coder))
    round_.ready(0.0, ready())
    assert round_.ring is not None
    ring_id = round_.ring.ring_id
    round_.ring_event(1.0, ring_id, Contributed(0, step))
    (compute,) = round_.ring_event(2.0, ring_id, AverageFinished(0, step, digest_of(step)))
    assert isinstance(compute, Compute)
    actions = round_.ring_event(3.0, ring_id, Computed(compute.generation, digest_of(b"state")))
    assert bool(of(Committed, actions)) != abstains
    if abstains:  # and gathers again
        assert published(actions) == [Accusation(ring_id, ME, "nothing was done in it")]
        assert round_.state == "gathering"


def test_a_ring_that_lost_a_member_does_not_say_how_long_fetching_takes() -> None:
    before = RoundHints(replay_seconds=3.0)
    round_ = machine(hints=before)
    round_.expect(0.0, [NEXT])
    round_.ready(0.0, ready())
    round_.statement(0.0, *roster([ME, NEXT]))
    assert round_.ring is not None
    ring_id = round_.ring.ring_id
    round_.ring_event(6.0, ring_id, LinkBroken(NEXT, "timeout: silent"))
    round_.ring_event(7.0, ring_id, Contributed(0, b"sum"))
    (compute,) = of(
        Compute, round_.ring_event(8.0, ring_id, AverageFinished(0, b"f", digest_of(b"f")))
    )
    assert isinstance(compute, Compute)
    assert of(
        Committed,
        round_.ring_event(9.0, ring_id, Computed(compute.generation, digest_of(b"state"))),
    )
    assert round_.hints == before


def test_a_peer_that_was_late_for_a_ring_of_shared_steps_may_be_as_late_in_the_next_round() -> None:
    round_ = machine(payloads=STEPS)
    round_.ready(1.0, ready())
    assert round_.ring is not None
    assert round_.hints == RoundHints(came_late=True)
    round_.statement(5.0, sealed(NEXT, ready()), ready())
    assert round_.hints == RoundHints(came_late=True, replay_seconds=LATER_FACTOR * 4.0)


def test_ready_is_for_this_round_only() -> None:
    for other in (ready(round=6), ready(head=digest_of(b"other"))):
        with pytest.raises(LocalProtocolError):
            machine().ready(0.0, other)
        round_ = machine()
        round_.expect(0.0, [NEXT])
        round_.ready(0.0, ready())
        round_.statement(0.0, sealed(NEXT, other), other)
        assert round_.ring is None, "that one is not ready for this round"


def test_a_roster_is_for_this_round_only() -> None:
    """Its organiser gave another number to the round after the same head."""
    round_ = machine()
    round_.expect(0.0, [NEXT, LAST])
    round_.ready(0.0, ready())
    others = {peer: sealed(peer, ready(round=6)) for peer in (NEXT, LAST)}
    made = make_roster(HEAD, 6, 0, others, RING_RULES)
    round_.statement(0.0, sealed(PeerId(made.members[0].author), made), made)
    for peer in (NEXT, LAST):
        round_.statement(1.0, sealed(peer, ready()), ready())
    assert round_.ring is not None, "it waits for no ring elsewhere"


def test_the_organiser_publishes_when_all_expected_are_ready() -> None:
    round_ = machine()
    round_.expect(0.0, [NEXT, LAST])
    assert [type(s) for s in published(round_.ready(0.0, ready()))] == [Ready]
    assert round_.statement(1.0, sealed(NEXT, ready()), ready()) == []
    assert round_.stop_training_seconds == pytest.approx(0.7 * GATHER)
    actions = round_.statement(2.0, sealed(LAST, ready()), ready())
    assert [type(statement) for statement in published(actions)] == [Roster]
    (begin,) = of(BeginRing, actions)
    assert isinstance(begin, BeginRing)
    assert list(begin.ring.members) == MEMBERS
    assert round_.successor == NEXT


def test_at_the_deadline_it_goes_without_the_missing() -> None:
    round_ = machine()
    round_.expect(0.0, [NEXT, LAST])
    round_.ready(0.0, ready())
    assert not of(BeginRing, round_.tick(GATHER - 0.1))
    assert of(BeginRing, round_.tick(GATHER))


def test_a_peer_that_was_ready_too_late_stops_next_time_when_the_first_is_ready() -> None:
    late = machine()
    late.expect(0.0, [NEXT, LAST])
    late.statement(0.0, *roster([NEXT, LAST]))
    late.ready(1.0, ready())
    assert late.hints == RoundHints(came_late=True)
    again = machine(hints=late.hints)
    again.expect(0.0, [NEXT, LAST])
    assert again.stop_training_seconds is None
    again.statement(3.0, sealed(NEXT, ready()), ready())
    assert again.stop_training_seconds == 3.0


def test_a_preferred_roster_replaces_the_ring_and_the_others_hear_that_i_left() -> None:
    round_, first = in_ring(NEXT, [NEXT, LAST])
    actions = round_.statement(1.0, *roster(MEMBERS))
    assert published(actions) == [Accusation(first, NEXT, "follows another ring")]
    assert of(BeginRing, actions)
    assert round_.statement(2.0, *roster([NEXT, LAST])) == []
    assert round_.ring_event(3.0, first, Contributed(0, b"sum")) == []  # an answer for the old ring


def test_a_ring_without_me_is_waited_for() -> None:
    round_ = machine()
    round_.expect(0.0, [NEXT, LAST])
    assert round_.statement(0.0, *roster([NEXT, LAST])) == []
    for member in (NEXT, LAST):
        round_.statement(0.0, sealed(member, ready()), ready())
    assert not of(BeginRing, round_.ready(1.0, ready()))
    assert not of(BeginRing, round_.expect(2.0, []))  # both are gone: to a commit, most likely
    assert not of(BeginRing, round_.tick(2.0 + ATTEMPT - 0.1))
    assert of(BeginRing, round_.tick(2.0 + ATTEMPT))


def test_a_ring_without_me_that_its_members_left_has_no_commit_to_wait_for() -> None:
    round_ = machine()
    round_.expect(0.0, [NEXT, LAST])
    round_.statement(0.0, *roster([NEXT, LAST]))
    for member in (NEXT, LAST):
        round_.statement(0.0, sealed(member, ready()), ready())
    round_.ready(1.0, ready())
    ring_id = ring_of([NEXT, LAST]).ring_id
    round_.statement(1.0, *accusation_of(ring_id, LAST)(NEXT))
    assert of(BeginRing, round_.statement(1.0, *accusation_of(ring_id, NEXT)(NEXT)))


def test_what_was_said_of_a_ring_without_me_before_i_heard_of_it_counts() -> None:
    round_ = machine()
    round_.expect(0.0, [NEXT, LAST])
    ring_id = ring_of([NEXT, LAST]).ring_id
    for accused in (LAST, NEXT):
        round_.statement(0.0, *accusation_of(ring_id, accused)(NEXT))
    round_.statement(0.5, *roster([NEXT, LAST]))
    for member in (NEXT, LAST):
        round_.statement(1.0, sealed(member, ready()), ready())
    assert of(BeginRing, round_.ready(1.0, ready())), "no member of that ring is at work in it"


def test_a_ring_that_waits_for_my_life_before_a_restart_is_not_followed() -> None:
    round_ = machine()
    actions = round_.statement(0.0, *roster(MEMBERS))
    assert published(actions) == [Accusation(ring_of(MEMBERS).ring_id, ME, "restarted")]
    assert round_.statement(1.0, *roster(MEMBERS)) == []  # once
    assert round_.statement(1.0, sealed(ME, ready()), ready()) == []  # my own, come back
    assert not round_.is_ready
    assert round_.ring is None


def test_a_ring_that_waits_for_my_life_before_a_restart_is_not_followed_if_i_do_the_same() -> None:
    round_ = machine()
    round_.ready(0.0, ready(incarnation=4, sequence=1))
    assert round_.statement(1.0, *roster(MEMBERS)) == [
        Publish(sealed(ME, restarted), restarted)
        for restarted in [Accusation(ring_of(MEMBERS).ring_id, ME, "restarted")]
    ]
    assert round_.ring is None or round_.ring.members == (ME,)


def test_a_roster_with_what_i_said_in_anothers_name_is_not_mine() -> None:
    round_ = machine()
    round_.ready(0.0, ready())
    theirs = [NEXT, LAST]  # both say the same of their work as I do
    assert round_.statement(0.0, *roster(theirs)) == []
    assert round_.ring is None or round_.ring.members == (ME,)


def test_a_failed_link_is_an_accusation() -> None:
    round_, ring_id = in_ring()
    round_.ring_event(1.0, ring_id, Contributed(0, b"sum"))
    actions = round_.ring_event(2.0, ring_id, LinkBroken(NEXT, "reset"))
    assert published(actions) == [Accusation(ring_id, NEXT, "reset")]
    order = ME, NEXT, LAST
    removed = Removed(NEXT, "reset", "found here", ME, order, num_members=len(order))
    assert of(Removed, actions) == [removed]
    assert of(Send, actions) == [Send(LAST, 0, 0b001, None, b"sum")]
    assert round_.ring_event(3.0, ring_id, LinkBroken(NEXT, "reset")) == []
    assert round_.removed == {NEXT}
    assert sum(round_.attainable.values()) == 2 * 8192


def test_what_was_said_of_a_ring_before_i_follow_it_counts() -> None:
    round_ = machine()
    round_.expect(0.0, [NEXT, LAST])
    round_.ready(0.0, ready())
    ring_id = ring_of(MEMBERS).ring_id
    assert round_.statement(0.0, *accusation_of(ring_id, LAST)(NEXT)) == []
    actions = round_.statement(1.0, *roster(MEMBERS))
    order = ME, NEXT, LAST
    removed = Removed(LAST, "reset", f"says {NEXT}", NEXT, order, num_members=len(order))
    assert of(Removed, actions) == [removed]


def test_what_a_stranger_says_of_a_ring_is_not_answered() -> None:
    """Identities are free, so a doubted one would have every member publish and drop out."""
    stranger = next(peer for peer in peers(4) if peer not in MEMBERS)
    round_, ring_id = in_ring(hints=RoundHints(doubted=frozenset({stranger})))
    vote = Vote(ring_id, 1, digest_of(b"header"), ())
    assert round_.statement(1.0, *accusation_of(ring_id, ME)(stranger)) == []
    assert round_.statement(1.0, sealed(stranger, vote), vote) == []
    assert round_.successor == NEXT


def test_a_member_that_is_out_answers_nobody() -> None:
    round_, ring_id = in_ring(hints=RoundHints(doubted=frozenset({NEXT})))
    assert of(Removed, round_.statement(1.0, *accusation_of(ring_id, ME)(LAST)))
    assert round_.statement(2.0, *accusation_of(ring_id, ME)(NEXT)) == []


def test_a_member_stays_with_those_that_are_left_when_one_follows_another_ring() -> None:
    """Else one roster that reaches one member would end the ring of all."""
    round_, ring_id = in_ring()
    left = Accusation(ring_id, NEXT, FOLLOWS_ANOTHER)
    assert published(round_.statement(1.0, sealed(NEXT, left), left)) == []
    assert (round_.state, round_.successor) == ("reducing", LAST)
    left = Accusation(ring_id, LAST, FOLLOWS_ANOTHER)
    said = published(round_.statement(2.0, sealed(LAST, left), left))
    assert said == [Accusation(ring_id, ME, "left alone")]
    round_, ring_id = in_ring()
    lie = Accusation(ring_id, LAST, FOLLOWS_ANOTHER)
    round_.statement(1.0, sealed(NEXT, lie), lie)
    said = published(round_.ring_event(2.0, ring_id, LinkBroken(NEXT, "reset")))
    assert Accusation(ring_id, ME, "left alone") not in said, "nobody says so of itself"
    round_, ring_id = in_ring()
    for peer in (NEXT, LAST):
        stalled = Accusation(ring_id, peer, STALLED)
        said = published(round_.statement(1.0, sealed(peer, stalled), stalled))
    assert said == [], "they went to no other ring"


def test_that_one_member_alone_puts_out_all_others_is_told() -> None:
    round_, ring_id = in_ring()
    actions = round_.statement(1.0, *accusation_of(ring_id, ME)(NEXT))
    actions += round_.statement(1.0, *accusation_of(ring_id, LAST)(NEXT))
    found = [(each.peer, each.alone_of) for each in actions if isinstance(each, Removed)]
    assert found == [(ME, 0), (LAST, len(MEMBERS))]


def test_a_member_that_others_put_out_as_well_leaves_nobody_alone() -> None:
    round_, ring_id = in_ring()
    actions = round_.statement(1.0, *accusation_of(ring_id, ME)(LAST))
    actions += round_.statement(1.0, *accusation_of(ring_id, LAST)(NEXT))
    assert [each.alone_of for each in actions if isinstance(each, Removed)] == [0, 0]


def test_a_member_that_a_doubted_one_accuses_answers_and_stays() -> None:
    round_, ring_id = in_ring(hints=RoundHints(doubted=frozenset({NEXT})))
    actions = round_.statement(1.0, *accusation_of(ring_id, ME)(NEXT))
    assert published(actions) == [Accusation(ring_id, NEXT, BASELESS)]
    (removed,) = of(Removed, actions)
    assert isinstance(removed, Removed)
    assert (removed.peer, removed.accuser, removed.answers) == (NEXT, ME, "reset")
    assert round_.removed == {NEXT}
    assert round_.successor == LAST


def test_what_a_doubted_member_says_of_others_counts_unless_they_answer() -> None:
    doubting = RoundHints(doubted=frozenset({NEXT}))
    round_, ring_id = in_ring(hints=doubting)
    assert round_.statement(1.0, *accusation_of(ring_id, LAST)(NEXT)) == []
    order, still_seconds = (ME, NEXT, LAST), STILL_SECONDS_MAX
    removed = Removed(
        LAST, "reset", f"says {NEXT}", NEXT, order, still_seconds=still_seconds, num_members=3
    )
    assert of(Removed, round_.tick(1.0 + ANSWER_SECONDS)) == [removed]
    round_, ring_id = in_ring(hints=doubting)
    round_.statement(1.0, *accusation_of(ring_id, LAST)(NEXT))
    answer = Accusation(ring_id, NEXT, BASELESS)
    actions = round_.statement(1.1, sealed(LAST, answer), answer)
    assert round_.removed == {NEXT}
    # Its author holds this member to be in, so this one says it in its own name as well.
    assert published(actions) == [answer, Accusation(ring_id, NEXT, "is out")]
    assert round_.tick(99.0) == [] or round_.removed == {NEXT}


def test_a_member_that_one_alone_put_out_may_be_at_work_all_the_same() -> None:
    def said_by_itself(round_: Round, ring_id: Digest, reason: str) -> list[Action]:
        statement = Accusation(ring_id, LAST, reason)
        return of(Contested, round_.statement(2.0, sealed(LAST, statement), statement))

    at_work = f"accused by {NEXT}"
    round_, ring_id = in_ring()
    round_.statement(1.0, *accusation_of(ring_id, LAST)(NEXT))
    assert said_by_itself(round_, ring_id, "restarted") == [], "it had died"
    assert said_by_itself(round_, ring_id, at_work) == [Contested(NEXT, LAST, 3)]
    round_, ring_id = in_ring()
    round_.ring_event(1.0, ring_id, LinkBroken(LAST, "reset"))
    round_.statement(1.0, *accusation_of(ring_id, LAST)(NEXT))
    assert said_by_itself(round_, ring_id, at_work) == [], "two found the same"
    round_, ring_id = in_ring()
    actions = round_.statement(1.0, *accusation_of(ring_id, ME)(NEXT))
    assert of(Contested, actions) == [Contested(NEXT, ME, 3)]


def test_a_member_that_one_alone_says_is_out_may_be_at_work_all_the_same() -> None:
    """An honest member says so only of one that another member accuses."""

    def contested(round_: Round, ring_id: Digest, accused: PeerId) -> list[Action]:
        said = Accusation(ring_id, accused, REPEATED)
        actions = round_.statement(1.0, sealed(NEXT, said), said)
        if accused != ME:
            itself = Accusation(ring_id, accused, f"accused by {NEXT}")
            actions += round_.statement(2.0, sealed(accused, itself), itself)
        return of(Contested, actions)

    for accused in (LAST, ME):
        assert contested(*in_ring(), accused) == [Contested(NEXT, accused, 3)]
    round_, ring_id = in_ring()
    round_.statement(0.5, *accusation_of(ring_id, LAST)(LAST))
    assert contested(round_, ring_id, ME) == [Contested(NEXT, ME, 2)]
    round_, ring_id = in_ring()
    round_.statement(0.5, *accusation_of(ring_id, LAST)(LAST))
    round_.statement(0.5, *accusation_of(ring_id, ME)(LAST))
    assert contested(round_, ring_id, ME) == [Contested(LAST, ME, 3)], "it repeats what LAST says"


def test_what_a_member_repeats_is_the_word_of_the_one_that_said_it_first() -> None:
    """A hostile member accuses another one to one member alone, and itself to all others. That
    member says honestly that both are out, and the others hear that it accuses whom it cannot
    know."""
    me, honest, hostile, victim = ring_of(peers(4)).members
    for hears_hostile_first in (False, True):
        round_, ring_id = in_ring(me, peers(4))
        first, second = (victim, hostile) if hears_hostile_first else (hostile, victim)
        actions = round_.statement(1.0, *accusation_of(ring_id, first)(hostile))
        actions += round_.statement(1.0, *accusation_of(ring_id, second)(hostile))
        said = Accusation(ring_id, victim, REPEATED)
        actions += round_.statement(1.1, sealed(honest, said), said)
        found = [each for each in actions if isinstance(each, Removed)]
        (removed,) = [each for each in found if each.peer == victim]
        assert removed.accuser == hostile
        assert removed.order == (me, honest, hostile, victim)
        itself = Accusation(ring_id, victim, f"accused by {honest}")
        assert of(Contested, round_.statement(1.2, sealed(victim, itself), itself)) == [
            Contested(hostile, victim, 4)
        ]


def test_two_that_were_heard_before_it_was_repeated_lie_together() -> None:
    """One that two others accuse is not believed to be at work, and so neither of them doubted."""
    me, honest, one, other, victim = ring_of(peers(5)).members
    round_, ring_id = in_ring(me, peers(5))
    for hostile in (one, other):
        round_.statement(1.0, *accusation_of(ring_id, hostile)(honest))
        round_.statement(1.1, *accusation_of(ring_id, victim)(hostile))
    said = Accusation(ring_id, victim, REPEATED)
    assert of(Removed, round_.statement(1.2, sealed(honest, said), said))
    itself = Accusation(ring_id, victim, f"accused by {honest}")
    assert of(Contested, round_.statement(1.3, sealed(victim, itself), itself)) == []
    assert of(Contested, round_.statement(1.4, sealed(honest, itself), itself)) == []


class Voting:
    """A member of a ring of five that votes at 2 s. The others may vote for another header, with
    two votes at most: more would commit the ring."""

    def __init__(self) -> None:
        members = ring_of(peers(5)).members
        self.me, self.accuser, self.accused, self.other, _ = members
        self.round, self.ring_id = in_ring(self.me, peers(5))
        voting(self.round, self.ring_id)

    def votes(self, now: float, peer: PeerId, header: bytes = b"header") -> None:
        vote = Vote(self.ring_id, 1, digest_of(header), ())
        self.round.statement(now, sealed(peer, vote), vote)

    def accuses(self, now: float, accused: PeerId, others: Sequence[PeerId] = ()) -> list[Action]:
        """The accusation, that of others, and what the accused says of itself."""
        said = accusation_of(self.ring_id, accused)(self.accuser)
        itself = Accusation(self.ring_id, accused, f"accused by {self.accuser}")
        actions = self.round.statement(now, *said)
        for other in others:
            actions += self.round.statement(now, *accusation_of(self.ring_id, accused)(other))
        if accused == self.me:
            return actions
        return actions + self.round.statement(now, sealed(accused, itself), itself)


LATE_SECONDS = VOTE_SECONDS - SPREAD_SECONDS


def seen_at(
    seconds: float,
    accuser_voted: float | None,
    accused_voted: float | None = None,
    other_votes_for: bytes = b"header",
) -> VotesSeen:
    """What the member sees of the votes when one accuses another."""
    ring = Voting()
    ring.votes(3.0, ring.other, other_votes_for)
    if accuser_voted is not None:
        ring.votes(accuser_voted, ring.accuser)
    if accused_voted is not None:
        ring.votes(accused_voted, ring.accused, b"a third one")
    removed = of(Removed, ring.accuses(seconds, ring.accused))[0]
    assert isinstance(removed, Removed)
    return removed.votes


def test_a_member_delays_the_vote_if_this_peer_has_waited_for_it_as_well() -> None:
    assert seen_at(4.0, None) == VotesSeen(have_begun=True)
    assert seen_at(2.0 + LATE_SECONDS - 0.1, 4.0) == VotesSeen(have_begun=True)
    assert seen_at(2.0 + LATE_SECONDS, 4.0) == VotesSeen(have_begun=True, is_late=True)
    assert seen_at(4.0 + LATE_SECONDS, 4.0) == VotesSeen(True, is_late=True, may_be_late=True)
    assert seen_at(4.0 + LATE_SECONDS, 4.0, 4.0) == VotesSeen(True, may_be_late=True)
    differs = DISAGREE_SECONDS - SPREAD_SECONDS
    assert seen_at(4.0 + differs, 4.0, 4.0) == VotesSeen(True, is_late=True, may_be_late=True)


def test_a_vote_that_nobody_shares_is_no_sign_that_its_author_has_waited() -> None:
    """A hostile member may vote for nothing when the ring begins."""
    assert not seen_at(4.0 + LATE_SECONDS, 4.0, 4.0, b"another").may_be_late


def test_a_member_that_is_put_out_in_the_vote_contests_that_unless_it_may_be_late() -> None:
    """Its accuser has all averages first, and would keep it from voting in each round."""

    def contested(is_me: bool, seconds: float) -> list[Action]:
        ring = Voting()
        ring.votes(3.0, ring.accuser)
        ring.votes(3.0, ring.other)
        return of(Contested, ring.accuses(seconds, ring.me if is_me else ring.accused))

    names = Voting()
    for is_me, accused in ((True, names.me), (False, names.accused)):
        assert contested(is_me, 4.0) == [Contested(names.accuser, accused, 5)]
        assert contested(is_me, 3.0 + LATE_SECONDS) == [], "its accuser may have waited"
    assert contested(False, 2.0 + LATE_SECONDS) == [], "this peer has waited as well"
    ring = Voting()
    actions = ring.accuses(4.0, ring.accused, others=[ring.other])
    assert of(Contested, actions) == [Contested(ring.accuser, ring.accused, 5)], "two lie together"
    ring = Voting()
    ring.votes(3.0, ring.accuser)
    ring.votes(3.0, ring.other)
    ring.round.statement(4.0, *accusation_of(ring.ring_id, ring.accused)(ring.accuser))
    itself = Accusation(ring.ring_id, ring.accused, f"accused by {ring.accuser}")
    actions = ring.round.statement(4.0, sealed(ring.other, itself), itself)
    assert of(Contested, actions) == [], "only the accused knows that it is at work"


def test_a_few_votes_do_not_begin_the_vote_of_a_member_that_lacks_averages() -> None:
    round_, ring_id = in_ring()
    vote = Vote(ring_id, 1, digest_of(b"header"), ())
    round_.statement(0.5, sealed(NEXT, vote), vote)
    (removed,) = of(Removed, round_.statement(1.0, *accusation_of(ring_id, LAST)(NEXT)))
    assert isinstance(removed, Removed)
    assert removed.votes == VotesSeen()
    round_, ring_id = in_ring()
    for peer in (NEXT, LAST):
        round_.statement(0.5, sealed(peer, vote), vote)
    (removed,) = of(Removed, round_.statement(1.0, *accusation_of(ring_id, LAST)(NEXT)))
    assert isinstance(removed, Removed)
    assert removed.votes == VotesSeen(have_begun=True), "they may have committed the ring"


@pytest.mark.parametrize("accusers", [1, 2])
def test_the_last_of_a_ring_begins_again_where_two_accusers_are_needed(accusers: int) -> None:
    round_ = machine(accusers=accusers)
    round_.expect(0.0, [NEXT, LAST])
    round_.ready(0.0, ready())
    round_.statement(0.0, *roster(MEMBERS))
    assert round_.ring is not None
    ring_id = round_.ring.ring_id
    round_.ring_event(1.0, ring_id, Contributed(0, b"sum"))
    round_.ring_event(2.0, ring_id, LinkBroken(NEXT, "reset"))
    round_.ring_event(2.0, ring_id, LinkBroken(LAST, "reset"))
    round_.expect(2.0, [])
    (compute,) = of(
        Compute, round_.ring_event(2.0, ring_id, AverageFinished(0, b"f", digest_of(b"f")))
    )
    assert isinstance(compute, Compute)
    actions = round_.ring_event(3.0, ring_id, Computed(compute.generation, digest_of(b"state")))
    assert [type(each) for each in of(Committed, actions)] == [Committed] * (accusers == 1)
    if accusers == 1:
        return
    assert published(round_.tick(3.0 + LONE_SECONDS - 0.1)) == []
    said = published(round_.tick(3.0 + LONE_SECONDS))
    assert said[0] == Accusation(ring_id, ME, "too few are left to commit")
    rosters = [each for each in said if isinstance(each, Roster)]
    rosters += [each for each in published(round_.tick(99.0)) if isinstance(each, Roster)]
    assert [[member.author for member in each.members] for each in rosters] == [[ME]]


def test_a_member_that_is_out_says_so_and_listens() -> None:
    round_, ring_id = in_ring()
    actions = round_.statement(1.0, *accusation_of(ring_id, ME)(NEXT))
    assert published(actions) == [Accusation(ring_id, ME, f"accused by {NEXT}")]
    assert round_.successor is None
    assert round_.attainable == {}
    states = [round_.state]
    assert round_.ring_event(2.0, ring_id, LinkBroken(NEXT, "reset")) == []
    for seconds in (STALL_SECONDS - 0.1, STALL_SECONDS):
        round_.tick(1.0 + seconds)
        states.append(round_.state)
    assert states == ["reducing", "reducing", "gathering"]


def test_a_member_that_is_out_does_not_begin_the_same_ring_again() -> None:
    """Rosters come again by gossip."""
    round_, ring_id = in_ring()
    round_.statement(1.0, *accusation_of(ring_id, ME)(NEXT))
    assert round_.statement(2.0, *roster(MEMBERS)) == []
    assert round_.removed == {ME}


def test_when_no_other_member_is_left_in_the_ring_it_is_gathered_again() -> None:
    round_, ring_id = in_ring()
    round_.statement(1.0, *accusation_of(ring_id, ME)(NEXT))
    round_.statement(2.0, *accusation_of(ring_id, LAST)(NEXT))
    assert round_.state == "reducing"
    round_.expect(3.0, [LAST])  # NEXT, the only one in the ring, is dead
    assert state_of(round_) == "gathering"
    round_.statement(3.0, sealed(LAST, ready()), ready())
    now = 3.0 + ATTEMPT
    assert round_.tick(now - 0.1) == []
    while round_.ring is None or round_.ring.ring_id == ring_id:
        actions = round_.tick(now)
        now += ATTEMPT
    assert round_.ring.roster.attempt >= 1
    assert sorted(round_.ring.members) == sorted([ME, LAST])
    assert of(BeginRing, actions)
    assert round_.statement(60.0, *roster(MEMBERS)) == []  # that ring is void


def test_an_accusation_is_repeated_when_its_author_falls() -> None:
    members = rank_order(HEAD, 0, peers(4))
    round_, ring_id = in_ring(members[0], members)
    first = accusation_of(ring_id, members[2])(members[1])
    round_.statement(1.0, *first)
    actions = round_.statement(2.0, *accusation_of(ring_id, members[1])(members[3]))
    # Others may not have heard the first one, and would take mine for made up.
    mine = Accusation(ring_id, members[2], "is out")
    assert of(Publish, actions) == [Publish(*first), Publish(sealed(members[0], mine), mine)]
    again = accusation_of(ring_id, members[1])(members[3])
    assert round_.statement(3.0, *again) == [], "once, or gossip would have no end"


def ticked(round_: Round, since: float, until: float) -> list[tuple[float, Action]]:
    """What a member says while time passes, each with the seconds since then."""
    ticks = int((until - since) / TICK_SECONDS)
    times = [since + TICK_SECONDS * (number + 1) for number in range(ticks)]
    return [(now - since, action) for now in times for action in round_.tick(now)]


def passed_on(lacks: int, hints: RoundHints = NO_HINTS) -> tuple[Round, Digest, PeerId]:
    """A member that has passed on a sum which lacks so many members, at second 1. The third
    element is its successor."""
    me = MEMBERS[2 - lacks]
    round_, ring_id = in_ring(me, hints=hints)
    if lacks == 1:
        round_.ring_event(1.0, ring_id, SumArrived(0, ArrivedSum(ME, 1, b"one")))
    (send,) = round_.ring_event(1.0, ring_id, Contributed(0, b"sum"))
    assert isinstance(send, Send)
    return round_, ring_id, send.peer


@pytest.mark.parametrize("lacks", [1, 2])
def test_a_member_that_keeps_a_sum_is_accused_by_the_one_before_it_first(lacks: int) -> None:
    round_, ring_id, successor = passed_on(lacks)
    patience = kept_seconds(round_._rules, len(MEMBERS))
    if lacks > 1:
        patience = KEPT_SECONDS + KEPT_STEP_SECONDS * (lacks - 1)
    assert not of(Publish, [action for _, action in ticked(round_, 1.0, 1.0 + patience - 0.1)])
    said = ticked(round_, 1.0 + patience - 0.1, 1.0 + patience + 0.2)
    assert Accusation(ring_id, successor, STALLED) in published([action for _, action in said])
    (removed,) = of(Removed, [action for _, action in said])
    assert isinstance(removed, Removed)
    assert removed.still_seconds == pytest.approx(patience, abs=0.2)


@pytest.mark.parametrize("lacks", [1, 2])
def test_a_member_that_lately_kept_a_sum_is_accused_earlier_by_its_neighbour_alone(
    lacks: int,
) -> None:
    round_, _, successor = passed_on(lacks, RoundHints(suspected=frozenset(MEMBERS)))
    patience = kept_seconds(round_._rules, len(MEMBERS)) - SUSPECT_SECONDS
    assert ticked(round_, 1.0, 1.0 + patience - 0.1) == []
    ticked(round_, 1.0 + patience - 0.1, 1.0 + patience + 0.2)
    assert (successor in round_.removed) == (lacks == 1)


@pytest.mark.parametrize("trouble", ["out", "vote"])
def test_patience_is_long_where_members_are_out_or_have_all_averages(trouble: str) -> None:
    """The ring stands still for another reason than a sum that somebody keeps."""
    members = rank_order(HEAD, 0, peers(4))
    first, second, me, last = members
    round_, ring_id = in_ring(me, members)
    round_.ring_event(1.0, ring_id, SumArrived(0, ArrivedSum(second, 0b11, b"two")))
    round_.ring_event(1.0, ring_id, Contributed(0, b"sum"))
    if trouble == "out":
        round_.statement(1.0, *accusation_of(ring_id, first)(second))
    else:
        vote = Vote(ring_id, 1, digest_of(b"header"), ())
        round_.statement(1.0, sealed(first, vote), vote)
    ticked(round_, 1.0, KEPT_SECONDS + 0.9)
    assert last not in round_.removed
    ticked(round_, KEPT_SECONDS + 0.9, KEPT_SECONDS + 1.2)
    assert last in round_.removed


def test_a_sum_that_comes_before_the_accusation_does_not_hide_how_long_the_ring_stood_still() -> (
    None
):
    """The accuser goes on without the accused at once, and its sums are faster than gossip."""
    round_, ring_id = in_ring(LAST)
    ticked(round_, 0.0, 5.0)
    round_.ring_event(5.0, ring_id, SumArrived(0, ArrivedSum(ME, 1, b"one")))
    (removed,) = of(Removed, round_.statement(5.1, *accusation_of(ring_id, NEXT)(ME)))
    assert isinstance(removed, Removed)
    assert removed.still_seconds == pytest.approx(5.0, abs=0.2)
    assert round_.lost_seconds == removed.still_seconds


def test_a_member_that_did_not_run_accuses_nobody_of_keeping_sums() -> None:
    round_, _, _ = passed_on(lacks=1)
    assert round_.tick(1.0 + KEPT_SECONDS) == []
    left = kept_seconds(round_._rules, len(MEMBERS)) - STILL_SECONDS_MAX
    thawed = 1.0 + KEPT_SECONDS
    assert ticked(round_, thawed, thawed + left - 0.1) == []
    assert ticked(round_, thawed + left - 0.1, thawed + left + 0.2)


def test_patience_with_a_member_that_keeps_sums_follows_from_the_chunks() -> None:
    def patience(elements: int, num_members: int, payloads: Payloads = SUMS) -> float:
        return kept_seconds(RoundRules(payloads, elements, 1, GATHER, 0.3, ATTEMPT), num_members)

    assert KEPT_SECONDS_MIN < patience(1024, 4) < patience(16 * 1024, 4) < 11.0
    assert patience(1024, 4) < patience(1024, 8)
    assert patience(1024 * 1024, 3) == KEPT_SECONDS
    assert patience(1024, 3, STEPS) == KEPT_SECONDS


def test_a_ring_in_which_nothing_happens_is_left() -> None:
    round_, ring_id = in_ring()
    assert ticked(round_, 0.0, STALL_SECONDS - 0.1) == []
    assert published(round_.tick(STALL_SECONDS)) == [Accusation(ring_id, ME, "stalled")]
    ticked(round_, STALL_SECONDS, 2 * STALL_SECONDS - 0.1)
    assert round_.state == "reducing"  # the others may yet commit without me
    ticked(round_, 2 * STALL_SECONDS - 0.1, 2 * STALL_SECONDS + 0.2)
    assert state_of(round_) == "gathering"


def test_leaving_for_another_head_is_said() -> None:
    round_, ring_id = in_ring()
    assert published(round_.leave(1.0)) == [Accusation(ring_id, ME, "follows another head")]
    assert round_.leave(2.0) == []
    assert machine().leave(0.0) == []


def voting(round_: Round, ring_id: Digest) -> Vote:
    """Brings the machine to its vote for an average of all."""
    assert round_.ring is not None
    *others, last = round_.ring.members
    average = Average((2 << len(others)) - 1, digest_of(b"f"), len(others), b"f")
    (compute,) = of(Compute, round_.ring_event(1.0, ring_id, AverageArrived(last, 0, average)))
    assert isinstance(compute, Compute)
    assert round_.state == "computing"
    actions = round_.ring_event(2.0, ring_id, Computed(compute.generation, digest_of(b"state")))
    (vote,) = published(actions)
    assert isinstance(vote, Vote)
    return vote


def test_more_than_half_of_the_votes_commit() -> None:
    round_, ring_id = in_ring()
    vote = voting(round_, ring_id)
    assert not round_.is_over
    other = Vote(ring_id, 1, vote.header_digest, ())
    (committed,) = round_.statement(3.0, sealed(NEXT, other), other)
    assert isinstance(committed, Committed)
    assert committed.proposal.header.digest == vote.header_digest
    assert not round_.is_over, "the last one may lack averages"
    round_.statement(4.0, sealed(LAST, other), other)
    assert round_.is_over


def test_the_silent_are_accused_one_after_the_other_and_the_survivor_commits() -> None:
    """What the last one lacks may be with the next one."""
    round_, ring_id = in_ring()
    voting(round_, ring_id)
    actions: list[Action] = []
    for number, silent in enumerate((NEXT, LAST), start=1):
        assert round_.tick(2.0 + number * VOTE_SECONDS - 0.1) == []
        actions = round_.tick(2.0 + number * VOTE_SECONDS)
        said = [each.accused for each in published(actions) if isinstance(each, Accusation)]
        assert said == [silent]
    (committed,) = of(Committed, actions)
    assert isinstance(committed, Committed)
    open_commit(committed.commit, RUN_ID, verify, RING_RULES)


def test_whose_link_breaks_while_i_wait_for_its_vote_is_not_waited_for() -> None:
    round_, ring_id = in_ring()
    vote = voting(round_, ring_id)
    assert not of(Committed, round_.statement(3.0, *accusation_of(ring_id, LAST)(NEXT)))
    actions = round_.ring_event(4.0, ring_id, LinkBroken(NEXT, "reset"))
    assert len(of(Committed, actions)) == 1
    assert [s.header_digest for s in published(actions) if isinstance(s, Vote)] == [
        vote.header_digest
    ]


def test_a_better_average_is_computed_and_voted_for_again() -> None:
    round_, ring_id = in_ring()
    worse = Average(0b111, digest_of(b"worst"), 2, b"worst")
    assert worse.digest > digest_of(b"f")
    (first,) = of(Compute, round_.ring_event(1.0, ring_id, AverageArrived(LAST, 0, worse)))
    assert isinstance(first, Compute)
    vote = voting(round_, ring_id)
    assert vote.sequence == 1
    stale = round_.ring_event(3.0, ring_id, Computed(first.generation, digest_of(b"stale")))
    assert stale == []


def test_a_better_average_after_the_vote_is_computed_and_voted_for_again() -> None:
    round_, ring_id = in_ring()
    first = voting(round_, ring_id)
    received = round_.ring_event(3.0, ring_id, AverageArrived(LAST, 0, better_average()))
    (compute,) = of(Compute, received)
    assert isinstance(compute, Compute)
    assert round_.state == "computing"
    (vote,) = published(
        round_.ring_event(4.0, ring_id, Computed(compute.generation, digest_of(b"better")))
    )
    assert isinstance(vote, Vote)
    assert vote.sequence == 2
    assert vote.header_digest != first.header_digest


def better_average() -> Average:
    """An average of all members that is better than that of `voting`."""
    payload = min((b"a", b"b", b"c", b"d"), key=digest_of)
    assert digest_of(payload) < digest_of(b"f")
    return Average(0b111, digest_of(payload), 2, payload)


def test_while_a_better_average_is_computed_the_header_before_is_not_committed() -> None:
    """The state of that header is not at hand any more."""
    round_, ring_id = in_ring()
    vote = voting(round_, ring_id)
    assert of(Compute, round_.ring_event(3.0, ring_id, AverageArrived(LAST, 0, better_average())))
    other = Vote(ring_id, 1, vote.header_digest, ())
    for member in (NEXT, LAST):
        assert round_.statement(4.0, sealed(member, other), other) == []
    assert round_.state == "computing"


def test_after_its_commit_a_member_says_who_is_out_and_leaves_nothing() -> None:
    """Members that have yet to commit go on without that one."""
    round_, ring_id = in_ring()
    vote = voting(round_, ring_id)
    other = Vote(ring_id, 1, vote.header_digest, ())
    assert of(Committed, round_.statement(3.0, sealed(NEXT, other), other))
    reset = LinkBroken(NEXT, "reset")
    actions = round_.ring_event(4.0, ring_id, reset)
    assert [type(each) for each in actions] == [Publish, Removed]
    left = Accusation(ring_id, LAST, FOLLOWS_ANOTHER)
    assert published(round_.statement(5.0, sealed(LAST, left), left)) == []
    assert round_.state == "committed"
    assert round_.tick(99.0) == []


def test_what_comes_after_the_commit_changes_nothing() -> None:
    round_, ring_id = in_ring()
    vote = voting(round_, ring_id)
    other = Vote(ring_id, 1, vote.header_digest, ())
    assert of(Committed, round_.statement(3.0, sealed(NEXT, other), other))
    late = AverageArrived(LAST, 0, better_average())
    assert round_.ring_event(4.0, ring_id, late) == []
    round_.statement(5.0, *accusation_of(ring_id, ME)(LAST))
    round_.expect(6.0, [])
    round_.tick(1e6)
    assert round_.state == "committed"


def test_the_next_round_hears_of_a_member_that_this_one_waited_for_in_vain() -> None:
    round_ = machine()
    round_.expect(0.0, [NEXT, LAST])
    round_.ready(0.0, ready())
    round_.statement(1.0, sealed(NEXT, ready()), ready())
    round_.statement(1.0 + GATHER, *roster([ME, NEXT]))
    assert round_.ring is not None
    assert round_.hints.missed == (LAST,)


def test_what_was_computed_for_a_ring_that_put_this_peer_out_is_no_vote() -> None:
    round_, ring_id = in_ring()
    average = Average(0b111, digest_of(b"f"), 2, b"f")
    (compute,) = of(Compute, round_.ring_event(1.0, ring_id, AverageArrived(LAST, 0, average)))
    assert isinstance(compute, Compute)
    round_.statement(2.0, *accusation_of(ring_id, ME)(NEXT))
    done = Computed(compute.generation, digest_of(b"state"))
    assert round_.ring_event(3.0, ring_id, done) == []
    out, ring_id = in_ring()
    out.statement(1.0, *accusation_of(ring_id, ME)(NEXT))
    assert out.ring_event(2.0, ring_id, AverageArrived(LAST, 0, average)) == []


def test_a_successor_that_votes_for_another_header_gets_the_averages_once_more() -> None:
    """Two members whose averages differ would wait for each other for a minute else, and one of
    them would be put out."""
    round_, ring_id = in_ring()
    voting(round_, ring_id)
    other = Vote(ring_id, 1, digest_of(b"another"), ())
    round_.statement(3.0, sealed(NEXT, other), other)
    assert round_.tick(3.0 + RECONCILE_SECONDS - 0.1) == []
    (send,) = round_.tick(3.0 + RECONCILE_SECONDS)
    assert send == Send(NEXT, 0, 0b111, 2, b"f", digest_of(b"f"))
    assert round_.tick(4.0 + RECONCILE_SECONDS) == []


def test_the_commit_of_my_header_ends_the_round() -> None:
    round_, ring_id = in_ring()
    twin, _ = in_ring()
    vote = voting(round_, ring_id)
    voting(twin, ring_id)
    other = Vote(ring_id, 1, vote.header_digest, ())
    (committed,) = twin.statement(3.0, sealed(NEXT, other), other)
    assert isinstance(committed, Committed)
    assert of(Committed, round_.commit_received(committed.commit))
    assert round_.commit_received(committed.commit) == []
    fresh, _ = in_ring()
    assert fresh.commit_received(committed.commit) == []  # it has not computed it


def test_a_record_that_one_member_signed_alone_does_not_end_the_round() -> None:
    """It proves the header, because it calls all others removed. But its one signer may have signed
    another round in its place, and these two would weigh the same."""
    round_, ring_id = in_ring(members=rank_order(HEAD, 0, peers(5)))
    vote = voting(round_, ring_id)
    assert round_.ring is not None
    liar, *others = (peer for peer in round_.ring.members if peer != ME)
    alone = Vote(ring_id, 1, vote.header_digest, tuple(sorted([ME, *others])))
    proposal = round_._followed._proposal  # type: ignore[union-attr]
    assert proposal is not None
    record = Commit(to_msgpack(proposal.header), round_.ring.envelope, (sealed(liar, alone),))
    open_commit(record, RUN_ID, verify, RING_RULES)
    assert round_.commit_received(record) == []
    honest = Vote(ring_id, 1, vote.header_digest, ())
    assert round_.statement(3.0, sealed(others[0], honest), honest) == []
    (committed,) = of(Committed, round_.commit_received(record))
    assert isinstance(committed, Committed)
    assert signers_of(committed.commit) == {ME, liar, others[0]}


def test_few_rosters_of_one_organiser_are_opened_for_one_head(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To check one takes tens of milliseconds with many members that list their links."""
    opened: list[PeerId] = []

    def counting(signed: Signed, *rest: Any) -> Ring:
        opened.append(PeerId(signed.author))
        return open_roster(signed, *rest)

    monkeypatch.setattr(round_module, "open_roster", counting)
    round_ = machine()
    round_.expect(0.0, [NEXT, LAST])
    others = envelopes(peers(100)[3:])
    num_rosters = OPENED_MEMBERS_MAX // (len(others) + 1)
    for number in range(2 * num_rosters):
        members = {NEXT: sealed(NEXT, ready(sequence=number)), **others}
        flooded = make_roster(HEAD, 5, 0, members, RING_RULES)
        round_.statement(0.0, sealed(NEXT, flooded), flooded)
    assert opened == [NEXT] * num_rosters
    round_.ready(1.0, ready())
    round_.statement(1.0, *roster([LAST, ME]))
    assert round_.ring is not None


def test_a_roster_that_leads_to_no_other_ring_is_not_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A member of a ring may have hundreds of them for a head from members that lie together."""
    round_, _ = in_ring()
    monkeypatch.setattr(round_module, "open_roster", None)
    for attempt in range(1, 10):
        round_.statement(0.0, *roster(MEMBERS, attempt))
    assert round_.state == "reducing"


def test_a_ring_of_the_last_attempt_leaves_its_round_to_others() -> None:
    """A member organises the last attempt and puts all others out. Another one has that attempt for
    good where attempts do not begin again, and organises nothing."""
    everybody = peers(5)
    silent = rank_order(HEAD, limits.ATTEMPTS_MAX, everybody)[0]
    liar, me, *_ = (peer for peer in everybody if peer != silent)
    others = [peer for peer in everybody if peer != me]
    round_ = machine(me)
    round_.expect(0.0, others)
    round_.ready(0.0, ready())
    made = make_roster(HEAD, 5, limits.ATTEMPTS_MAX, envelopes(everybody), RING_RULES)
    signed = sealed(liar, made)
    round_.statement(0.0, signed, made)
    assert round_.ring is not None
    for accused in everybody:
        if accused != liar:
            said = Accusation(round_.ring.ring_id, accused, "silent")
            round_.statement(0.1, sealed(liar, said), said)
    for peer in others:
        if peer != liar:
            round_.statement(0.2, envelopes([peer])[peer], ready())
    round_.expect(1.0, [peer for peer in others if peer != liar])  # it sits out
    said_by_me = [each for seconds in range(1, 100) for each in published(round_.tick(seconds))]
    assert any(isinstance(each, Roster) for each in said_by_me)


def test_one_author_does_not_push_out_what_others_said_of_a_ring_that_is_still_to_come() -> None:
    round_ = machine()
    round_.expect(0.0, [NEXT, LAST])
    signed, made = roster([ME, NEXT, LAST])
    left = Accusation(ring_id_of(signed), LAST, "restarted")
    round_.statement(0.0, sealed(LAST, left), left)
    for number in range(2 * EARLY_STATEMENTS_MAX):
        invented = Accusation(digest_of(str(number).encode()), LAST, "silent")
        round_.statement(0.0, sealed(NEXT, invented), invented)
    round_.ready(1.0, ready())
    round_.statement(1.0, signed, made)
    assert round_.ring is not None
    assert LAST not in round_.members_at_work
