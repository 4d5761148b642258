"""Members whose work a peer measured sit out of its rings, and liars let nobody honest sit out."""

from __future__ import annotations

import random

import pytest

from gossamer.protocol.ids import PeerId, digest_of
from gossamer.protocol.policy.auditing.audits import AUDITORS, MEMORY_ROUNDS, audit_after
from gossamer.protocol.policy.auditing.poor_work import MARKS_MAX, PoorWork
from gossamer.protocol.policy.auditing.verdicts import Verdicts
from gossamer.protocol.policy.conduct.sit_out import (
    FORGET_ROUNDS,
    SITS_OUT_ROUNDS,
    SITS_OUT_ROUNDS_MAX,
)
from gossamer.protocol.wire.audit_messages import Verdict

PEERS = tuple(PeerId(name) for name in "abcdefgh")
LIARS = frozenset(PEERS[:3])
A, B = PEERS[:2]


def found(work: PoorWork, first: int, times: int = MARKS_MAX) -> bool:
    """A's work is found poor so many times, in rounds from the first one on."""
    return [work.confirmed(A, first + each, first + each) for each in range(times)][-1]


def test_a_member_sits_out_after_some_findings_and_twice_as_long_each_time() -> None:
    work, now = PoorWork(), 1
    assert not found(work, now, MARKS_MAX - 1)
    assert not work.sits_out(now, A)
    work = PoorWork()
    for rounds in (1, 2, 4):
        assert found(work, now)
        last = now + MARKS_MAX - 1 + rounds * SITS_OUT_ROUNDS
        assert work.sits_out(last, A)
        assert not work.sits_out(last + 1, A)
        assert not work.sits_out(last, B)
        now = last + 1


def test_a_first_finding_after_it_is_back_is_not_enough() -> None:
    work = PoorWork()
    assert found(work, 1)
    assert not work.confirmed(A, 20, 20)


def test_no_member_sits_out_for_ever() -> None:
    work, now = PoorWork(), 1
    for _ in range(20):
        assert found(work, now)
        begun, now = now, now + MARKS_MAX
        while work.sits_out(now, A):
            now += 1
        assert now - begun <= MARKS_MAX + SITS_OUT_ROUNDS_MAX


def test_what_was_long_ago_is_forgotten() -> None:
    work = PoorWork()
    assert not work.confirmed(A, 1, 1)
    assert not work.confirmed(A, 1 + MEMORY_ROUNDS, 1 + MEMORY_ROUNDS)
    work = PoorWork()
    assert found(work, 1)
    later = MARKS_MAX + SITS_OUT_ROUNDS + FORGET_ROUNDS + 1
    assert found(work, later)
    assert not work.sits_out(later + MARKS_MAX + SITS_OUT_ROUNDS, A), "as the first time"


def test_the_members_that_were_found_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gossamer.protocol.policy.auditing.poor_work.PEERS_MAX", 2)
    work, third = PoorWork(), PEERS[2]
    for number, member in enumerate((A, B, A, third), start=1):
        work.confirmed(member, number, number)
    assert set(work._records) == {A, third}
    assert work.sits_out(4, A)


def test_marks_of_rounds_that_were_taken_back_are_as_old_as_the_rounds_since() -> None:
    """Their numbers are above those of the rounds that follow."""
    work = PoorWork()
    assert not work.confirmed(A, 500, 10)
    assert not work.confirmed(A, 10 + MEMORY_ROUNDS, 10 + MEMORY_ROUNDS), "that was long ago"
    work = PoorWork()
    assert not work.confirmed(A, 500, 500)
    work.rounds_back(490)
    assert work.confirmed(A, 11, 11)
    work = PoorWork()
    assert not work.confirmed(A, 500, 500)
    work.rounds_back(490)
    assert not work.confirmed(A, 10 + MEMORY_ROUNDS, 10 + MEMORY_ROUNDS)


def test_good_work_takes_findings_away() -> None:
    work = PoorWork()
    assert not work.confirmed(A, 1, 1)
    work.found_good(A)
    work.found_good(B)
    assert not work.confirmed(A, 2, 2)
    assert not work.sits_out(3, A)


def test_rounds_that_are_taken_back_make_no_member_sit_out_longer() -> None:
    work, now = PoorWork(), 500
    assert found(work, now)
    work.rounds_back(400)
    last = now - 400 + MARKS_MAX - 1 + SITS_OUT_ROUNDS
    assert work.sits_out(last, A)
    assert not work.sits_out(last + 1, A)


def test_what_was_long_ago_stays_so_where_rounds_are_taken_back() -> None:
    work = PoorWork()
    assert not work.confirmed(A, 500, 500)
    work.rounds_back(400)
    assert not work.confirmed(A, 100 + MEMORY_ROUNDS, 100 + MEMORY_ROUNDS)
    assert work.confirmed(A, 101 + MEMORY_ROUNDS, 101 + MEMORY_ROUNDS), "as two new ones do"
    work = PoorWork()
    assert not work.confirmed(A, 500, 100), "the verdict came after that"
    assert not work.confirmed(A, 100 + MEMORY_ROUNDS, 100 + MEMORY_ROUNDS)


def lived(rounds: int, *, false_blame: float = 0.0) -> dict[PeerId, dict[PeerId, int]]:
    """Eight peers audit each other, of which three work poorly, and blame whom they like: all
    honest members, and none of themselves. Honest auditors say what they find, and blame honest
    work now and then. Returns by honest peer how often it let each other one sit out."""
    draw = random.Random(7)
    honest = [peer for peer in PEERS if peer not in LIARS]
    verdicts = {peer: Verdicts(peer) for peer in honest}
    works = {peer: PoorWork() for peer in honest}
    times = {peer: dict.fromkeys(PEERS, 0) for peer in honest}
    for number in range(1, rounds + 1):
        head = digest_of(b"round", str(number).encode())
        credits = dict.fromkeys(PEERS, 1000)
        audit = audit_after(head, number, credits, (PEERS,), PEERS, 1)
        assert audit is not None
        assert len(audit.auditors) == AUDITORS
        for auditor in audit.auditors:
            is_poor = audit.member in LIARS or draw.random() < false_blame
            if auditor in LIARS:
                is_poor = audit.member not in LIARS
            elif not is_poor:
                works[auditor].found_good(audit.member)
            for peer in honest:
                said = Verdict(number, head, is_poor, 0.0, 0.0)
                finding = verdicts[peer].heard(audit, auditor, said)
                if finding.confirmed is not None:
                    confirmed = works[peer].confirmed(finding.confirmed, number, number)
                    times[peer][finding.confirmed] += confirmed
    return times


def test_three_liars_of_eight_let_nobody_honest_sit_out_at_honest_peers() -> None:
    for peer, others in lived(2000).items():
        for other, times in others.items():
            if other in LIARS:
                assert times > 5, f"{peer} has not found {other}"
            else:
                assert not times


def test_honest_members_hardly_ever_sit_out_where_one_verdict_of_a_hundred_is_wrong() -> None:
    """The liars agree with every wrong verdict."""
    times = lived(2000, false_blame=0.01)
    assert sum(n for others in times.values() for p, n in others.items() if p not in LIARS) <= 2


def test_a_verdict_of_this_peer_alone_confirms_nothing() -> None:
    head = digest_of(b"head")
    audit = audit_after(head, 1, dict.fromkeys(PEERS, 1000), (PEERS,), PEERS, 1)
    assert audit is not None
    me, other, last = audit.auditors
    poor, good = (Verdict(1, head, is_poor, 0.0, 0.0) for is_poor in (True, False))
    mine = Verdicts(me)
    assert mine.heard(audit, me, poor).confirmed is None
    assert mine.heard(audit, other, good).confirmed is None
    assert mine.heard(audit, last, poor).confirmed == audit.member
    mine = Verdicts(me)
    said = [(other, poor), (last, poor), (me, good)]
    assert all(mine.heard(audit, *each).confirmed is None for each in said)
    mine = Verdicts(me)
    found = [mine.heard(audit, each, poor).confirmed for each in (other, me, last)]
    assert found == [None, audit.member, None], "once"
