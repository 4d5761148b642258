"""Which neighbour keeps a sum or an average, and what a member says and hears of slow lines, event
by event of one ring. The times themselves are those of `patience` and `link_rates`."""

from __future__ import annotations

import pytest

from gossamer.protocol.accounting.ledger import Ledger
from gossamer.protocol.codecs.payloads import SumPayloads
from gossamer.protocol.codecs.tensor_codecs import codec
from gossamer.protocol.ids import PeerId, digest_of
from gossamer.protocol.rounds.actions import (
    Action,
    AverageArrived,
    Committed,
    Compute,
    Computed,
    Contributed,
    LinkBroken,
    LinkMeasured,
    Publish,
    RingEvent,
    Send,
    Signer,
    SumArrived,
)
from gossamer.protocol.rounds.commit import Parent
from gossamer.protocol.rounds.inventory import ArrivedSum, Average
from gossamer.protocol.rounds.measured_link import LinkMeasure
from gossamer.protocol.rounds.ring.followed_ring import SLOW, STALLED, FollowedRing
from gossamer.protocol.rounds.ring.link_rates import SLOW_FACTOR, RingLinkRates
from gossamer.protocol.rounds.ring.patience import (
    AVERAGES_SECONDS,
    KEPT_SECONDS,
    KEPT_STEP_SECONDS,
    STALL_SECONDS,
)
from gossamer.protocol.rounds.ring.ring import RingReduce
from gossamer.protocol.rounds.roster import NO_HINTS, Ring, RoundRules, make_roster, open_roster
from gossamer.protocol.wire.statements import Accusation, LinkRate, RingStatement, Statement, Vote
from tests.support.builders import HEAD, RING_RULES, RUN_ID, peer, peers, ready, sealed, sign_as
from tests.support.builders import verify as verify_signature

TICK_SECONDS = 0.1
CHUNK_BYTES = 1_000_000
FAST = 4_000_000.0
"""Of all lines, in bytes per second. Those slower than half a chunk per second are slow."""
SLOW_SECONDS = 2.1
"""After so long a line that has not carried one chunk may be called slow."""


def ring_of(num_members: int) -> Ring:
    envelopes = {member: sealed(member, ready()) for member in peers(num_members)}
    made = make_roster(HEAD, 5, 0, envelopes, RING_RULES)
    signed = sealed(PeerId(made.members[0].author), made)
    return open_roster(signed, made, RUN_ID, verify_signature, RING_RULES)


class Member:
    """A member of a ring from second 0 on, which the member at position 0 starts."""

    def __init__(self, num_members: int, position: int, num_chunks: int = 1) -> None:
        self.ring = ring = ring_of(num_members)
        self.me = me = ring.members[position]
        self.predecessor = ring.members[position - 1]
        self.successor = ring.members[(position + 1) % num_members]
        self.position, self.now = position, 0.0
        self.followed = FollowedRing(
            Signer(me, RUN_ID, sign_as(me)),
            Parent(HEAD, 4, 1000, Ledger()),
            ring,
            RoundRules(SumPayloads(codec("fp32")), 1024, num_chunks, 20.0, 0.3, 5.0),
            RingReduce(ring.members, me, num_chunks, (0,), lambda *_: b"", lambda *_: b""),
            RingLinkRates(
                ring.members,
                me,
                began_seconds=0.0,
                chunk_bytes=CHUNK_BYTES,
                num_chunks=40,
                round_seconds=0.0,
            ),
            NO_HINTS,
            0.0,
            waits_if_left=False,
        )
        self.followed.reduce.start()

    def event(self, event: RingEvent) -> list[Action]:
        return self.followed.event(self.now, event)

    def hears(self, author: PeerId, statement: RingStatement) -> list[Action]:
        return self.followed.statement(self.now, sealed(author, statement), statement)

    def hears_vote(self, author: PeerId) -> None:
        self.hears(author, Vote(self.ring.ring_id, 1, digest_of(b"header"), ()))

    def accused(self, until: float) -> dict[PeerId, float]:
        """The members that this one accuses while time passes, and when."""
        said: dict[PeerId, float] = {}
        while self.now < until - TICK_SECONDS / 2:
            self.now += TICK_SECONDS
            for statement in published(self.followed.tick(self.now)):
                assert isinstance(statement, Accusation)
                assert statement.reason == STALLED
                said[PeerId(statement.accused)] = self.now
        return said

    def passes_on(self) -> None:
        """A sum, at the present time."""
        if self.position > 0:
            sender, mask = self.predecessor, (1 << self.position) - 1
            self.event(SumArrived(0, ArrivedSum(sender, mask, b"before")))
        (send,) = self.event(Contributed(0, b"sum"))
        assert isinstance(send, Send)
        assert send.peer == self.successor

    def average_arrives(self, chunk: int = 0) -> list[Action]:
        mask = (1 << len(self.ring.members)) - 1
        average = Average(mask, digest_of(b"f"), len(self.ring.members) - 1, b"f")
        return self.event(AverageArrived(self.predecessor, chunk, average))

    def votes(self) -> Vote:
        (compute,) = [each for each in self.average_arrives() if isinstance(each, Compute)]
        (vote,) = published(self.event(Computed(compute.generation, digest_of(b"state"))))
        assert isinstance(vote, Vote)
        return vote

    def measures(self, bytes_per_second: float, receiver: PeerId | None = None) -> list[Statement]:
        """What this member says when it looks at its link. Much waits for that link."""
        acked_bytes = int(bytes_per_second * self.now)
        measure = LinkMeasure(acked_bytes, self.now, waiting_bytes=100_000_000)
        return published(self.event(LinkMeasured(receiver or self.successor, measure)))

    def hears_rates(self, bytes_per_second: float = FAST) -> None:
        """All others say how fast their lines are."""
        for author in self.ring.members:
            if author != self.me:
                word = LinkRate(self.ring.ring_id, 1, bytes_per_second, bytes_per_second)
                assert self.hears(author, word) == []


def published(actions: list[Action]) -> list[Statement]:
    return [action.statement for action in actions if isinstance(action, Publish)]


# Neighbours that keep something


@pytest.mark.parametrize("voted_seconds", [1.0, 20.0])
def test_a_predecessor_that_has_voted_keeps_averages_and_the_successor_does_not(
    voted_seconds: float,
) -> None:
    """The successor may have finished the average of the sum that it got, and passed it on."""
    member = Member(4, 2)
    member.passes_on()
    member.accused(0.5)
    member.now = voted_seconds  # this process did not run, so nobody lost patience
    member.hears_vote(member.predecessor)
    accused = member.accused(voted_seconds + AVERAGES_SECONDS + 1.0)
    expected = pytest.approx(voted_seconds + AVERAGES_SECONDS, abs=1.2)
    assert accused == {member.predecessor: expected}


def test_a_member_that_passed_nothing_on_accuses_a_predecessor_that_has_voted() -> None:
    member = Member(4, 2)
    member.hears_vote(member.predecessor)
    expected = pytest.approx(AVERAGES_SECONDS, abs=0.2)
    assert member.accused(AVERAGES_SECONDS + 1.0) == {member.predecessor: expected}


def test_a_vote_of_another_member_says_nothing_of_the_predecessor() -> None:
    member = Member(5, 2)
    member.hears_vote(member.ring.members[4])
    assert member.accused(STALL_SECONDS - 1.0) == {}


def test_a_member_that_has_all_averages_accuses_no_predecessor_of_keeping_them() -> None:
    """The predecessor voted `AVERAGES_SECONDS` ago, and there is nothing that it could pass on."""
    member = Member(5, 2)
    member.hears_vote(member.predecessor)
    member.accused(1.0)
    member.votes()
    assert member.followed.state == "voting"
    assert member.accused(AVERAGES_SECONDS + 2.0) == {}


def test_in_a_ring_of_two_nobody_has_less_patience_with_the_other() -> None:
    """Each may follow another ring, and sees the other one keep what it sends."""
    member = Member(2, 0)
    member.passes_on()
    expected = pytest.approx(KEPT_SECONDS, abs=0.2)
    assert member.accused(KEPT_SECONDS + 1.0) == {member.successor: expected}


def test_in_a_ring_of_two_the_other_one_is_no_predecessor_that_keeps_averages() -> None:
    member = Member(2, 0)
    member.hears_vote(member.successor)
    assert member.accused(KEPT_SECONDS + 5.0) == {}, "nothing was passed on"
    member = Member(2, 0)
    member.passes_on()
    member.hears_vote(member.successor)
    expected = pytest.approx(KEPT_SECONDS + KEPT_STEP_SECONDS, abs=0.2)
    assert member.accused(KEPT_SECONDS + 5.0) == {member.successor: expected}


def test_a_successor_that_has_voted_is_accused_as_late_as_if_the_sum_lacked_everybody() -> None:
    """It has all averages, and so has passed them on: somebody behind it keeps one."""
    member = Member(4, 2)
    member.passes_on()
    member.hears_vote(member.successor)
    late = KEPT_SECONDS + 3 * KEPT_STEP_SECONDS
    assert member.accused(late + 1.0) == {member.successor: pytest.approx(late, abs=0.2)}


def test_a_link_to_a_stranger_that_breaks_is_no_accusation() -> None:
    member = Member(3, 0)
    assert member.event(LinkBroken(peer(99), "reset")) == []


def test_what_a_member_says_of_strangers_is_not_kept() -> None:
    """It may invent as many of them as it likes."""
    member = Member(3, 0)
    for number in range(90, 99):
        said = Accusation(member.ring.ring_id, peer(number), "made up")
        assert member.hears(member.successor, said) == []
    assert member.followed._words == {}


def test_a_ring_is_over_for_a_member_that_is_out_once_it_is_committed() -> None:
    """Until then it takes averages and learns the commit."""
    member = Member(3, 1)
    member.hears(member.successor, Accusation(member.ring.ring_id, member.me, "reset"))
    assert member.followed.is_out
    assert not member.followed.is_over
    member = Member(3, 1)
    vote = member.votes()
    member.hears(member.successor, Vote(vote.ring_id, 1, vote.header_digest, ()))
    assert not member.followed.is_over, "the predecessor may need it"
    member.hears(member.predecessor, Accusation(member.ring.ring_id, member.me, "reset"))
    assert member.followed.is_out
    assert member.followed.is_over


def test_a_better_average_does_not_make_fetching_look_longer() -> None:
    member = Member(3, 1)
    member.now = 1.0
    member.votes()
    member.now = 5.0
    payload = min((b"a", b"b", b"c", b"d"), key=digest_of)
    average = Average(0b111, digest_of(payload), 2, payload)
    actions = member.event(AverageArrived(member.predecessor, 0, average))
    assert any(isinstance(each, Compute) for each in actions)
    assert member.followed.reduced_seconds == 1.0


# Slow lines


def test_a_member_says_how_fast_its_line_is_and_how_fast_chunks_came() -> None:
    member = Member(4, 2, num_chunks=2)
    member.now = 1.0
    member.average_arrives()
    member.now = 2.0
    word = LinkRate(member.ring.ring_id, 1, FAST, CHUNK_BYTES)
    assert member.measures(FAST) == [word]
    assert member.measures(FAST) == [], "once, as long as it stays the same"


def test_a_sum_that_came_is_a_chunk_that_came() -> None:
    member = Member(4, 2, num_chunks=2)
    member.now = 0.5
    member.event(SumArrived(0, ArrivedSum(member.predecessor, 0b11, b"before")))
    member.now = 2.0
    assert member.measures(FAST) == [LinkRate(member.ring.ring_id, 1, FAST, 2 * CHUNK_BYTES)]


def test_a_link_that_does_not_lead_to_the_successor_is_no_line_of_the_ring() -> None:
    member = Member(4, 2)
    member.now = 2.0
    assert member.measures(FAST, receiver=member.predecessor) == []
    assert len(member.measures(FAST)) == 1


def test_a_successor_with_a_slow_line_is_accused() -> None:
    member = Member(5, 2, num_chunks=3)
    member.hears_rates()
    member.now = SLOW_SECONDS - 0.1
    for chunk in (0, 1):  # this member has enough to send
        member.average_arrives(chunk)
    member.now = SLOW_SECONDS
    said = member.measures(FAST / SLOW_FACTOR / 5)
    assert said[1:] == [Accusation(member.ring.ring_id, member.successor, SLOW)]
    assert isinstance(said[0], LinkRate)
    assert member.followed.link_rate.found_slow == {member.successor}


@pytest.mark.parametrize("others", [None, FAST / SLOW_FACTOR])
def test_no_line_is_slow_among_slow_lines_or_unknown_ones(others: float | None) -> None:
    member = Member(5, 2, num_chunks=3)
    if others is not None:
        member.hears_rates(others)
    member.now = SLOW_SECONDS - 0.1
    for chunk in (0, 1):
        member.average_arrives(chunk)
    member.now = SLOW_SECONDS
    assert [type(each) for each in member.measures(FAST / SLOW_FACTOR / 5)] == [LinkRate]


def test_a_line_that_one_member_accuses_of_being_slow_is_found_slow() -> None:
    """The others remember that in their next ring. Another reason says nothing of a line."""
    for reason, found in ((SLOW, True), ("reset", False)):
        member = Member(5, 2)
        accused = member.ring.members[0]
        member.hears(member.ring.members[4], Accusation(member.ring.ring_id, accused, reason))
        assert member.followed.removed == {accused}
        assert member.followed.link_rate.found_slow == ({accused} if found else set())


def test_lines_are_measured_while_a_member_votes_and_not_after_its_commit() -> None:
    """The rest of the ring may wait for this member although it has all averages."""
    member = Member(3, 1)
    member.now = 2.0
    vote = member.votes()
    assert [type(each) for each in member.measures(FAST)] == [LinkRate]
    member = Member(3, 1)
    member.now = 2.0
    member.votes()
    same = Vote(vote.ring_id, 1, vote.header_digest, ())
    assert [type(each) for each in member.hears(member.successor, same)] == [Committed]
    assert member.measures(FAST) == []
