"""Audits: who audits whom, on which data, and what verdicts lead to."""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec.structs import replace

from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.policy.auditing.audits import (
    AUDITORS,
    CONTRADICTIONS_MAX,
    MEMORY_ROUNDS,
    Audit,
    audit_after,
    can_judge,
    falls_short,
    gain_of,
    helps_from_start,
    names_its_data,
    rounds_between,
    share_of,
)
from gossamer.protocol.policy.auditing.verdicts import Finding, Verdicts
from gossamer.protocol.wire.audit_messages import SEQUENCES, Verdict
from gossamer.protocol.wire.statement_checks import check_statement
from gossamer.protocol.wire.statements import Span
from tests.support import builders

PEERS = tuple(PeerId(name) for name in "abcdefgh")
ME = PeerId("me")
"""Audits nobody."""
CREDITS = dict.fromkeys(PEERS, 1000)


def head_of(number: int) -> Digest:
    return digest_of(b"head", str(number).encode())


def audit_of(number: int = 1, round_number: int = 1) -> Audit:
    audit = audit_after(head_of(number), round_number, CREDITS, (PEERS,), PEERS, 1)
    assert audit is not None
    return audit


def verdict_of(audit: Audit, *, is_poor: bool) -> Verdict:
    return Verdict(audit.round, audit.head, is_poor, 0.1, 0.1)


# The member and its auditors


def test_nobody_audits_itself_and_all_have_their_turn() -> None:
    audited, auditing = Counter[PeerId](), Counter[PeerId]()
    for number in range(800):
        audit = audit_of(number)
        assert len({audit.member, *audit.auditors}) == AUDITORS + 1
        audited[audit.member] += 1
        auditing.update(audit.auditors)
    assert all(60 < audited[peer] < 140 for peer in PEERS)
    assert all(240 < auditing[peer] < 360 for peer in PEERS)


def test_the_order_of_the_members_does_not_matter() -> None:
    backwards = dict(reversed(CREDITS.items()))
    assert audit_after(head_of(1), 1, backwards, (PEERS[::-1],), PEERS[::-1], 1) == audit_of(1)


def test_one_round_in_so_many_has_an_audit() -> None:
    audits = [audit_after(head_of(n), 1, CREDITS, (PEERS,), PEERS, 8) for n in range(800)]
    assert 70 < sum(audit is not None for audit in audits) < 130


def test_newcomers_are_audited_and_audit_nobody() -> None:
    old, new = PEERS[:4], PEERS[4:]
    audits = [audit_after(head_of(number), 1, CREDITS, (PEERS,), old, 1) for number in range(100)]
    made = [audit for audit in audits if audit is not None]
    assert all(set(audit.auditors) <= set(old) for audit in made)
    assert any(audit.member in new for audit in made)


def test_members_without_tokens_have_no_part() -> None:
    credits = {**CREDITS, PEERS[0]: 0, PEERS[1]: 0}
    for number in range(50):
        audit = audit_after(head_of(number), 1, credits, (PEERS,), PEERS, 1)
        assert audit is not None
        assert not {*PEERS[:2]} & {audit.member, *audit.auditors}


def test_members_that_missed_rounds_are_audited_like_all_others() -> None:
    before = (PEERS[:4], PEERS[2:6], PEERS[:6])
    found = Counter[tuple[PeerId, int]]()
    for number in range(600):
        audit = audit_after(head_of(number), 1, CREDITS, before, PEERS, 1)
        assert audit is not None
        found[audit.member, audit.missed] += 1
    assert found.keys() == {*((peer, 0) for peer in PEERS[:4]), *((peer, 1) for peer in PEERS[4:6])}
    assert min(found.values()) > 60


def test_members_of_no_round_before_are_not_audited() -> None:
    """It is not known where their work began."""
    assert audit_after(head_of(1), 1, CREDITS, (), PEERS, 1) is None
    assert audit_after(head_of(1), 1, CREDITS, ((), ()), PEERS, 1) is None


@pytest.mark.parametrize("num_members", [0, 1, 2, 3])
def test_too_few_members_for_an_audit(num_members: int) -> None:
    credits = dict.fromkeys(PEERS[:num_members], 1000)
    assert audit_after(head_of(1), 1, credits, (PEERS,), PEERS, 1) is None


def test_no_two_of_one_branch_have_a_part() -> None:
    def branch_of(peer: PeerId) -> PeerId:
        return PeerId("abcdddd"["abcdefg".index(peer)]) if peer in "abcdefg" else peer

    for number in range(50):
        audit = audit_after(head_of(number), 1, CREDITS, (PEERS,), PEERS, 1, branch_of)
        assert audit is not None
        assert sum(peer in "defg" for peer in (audit.member, *audit.auditors)) <= 1


def test_an_audit_costs_a_small_part_of_the_rounds_that_it_is_for() -> None:
    manifest = builders.manifest()
    for steps, sequences in ((4, 2), (20, 8), (100, 8), (500, 128)):
        outer = replace(manifest.outer, inner_steps=steps, warmup_inner_steps=1, fragments=1)
        inner = replace(manifest.inner, sequences_per_step=sequences)
        every = rounds_between(replace(manifest, outer=outer, inner=inner))
        assert 0.03 * every * steps * sequences >= 5 * SEQUENCES / 3
    assert every == 1


# The measure


BEFORE = [2.0, 3.0, 4.0, 5.0]
CONTROL = [1.9, 2.9, 3.8, 4.9]
"""With a part of the average: it helps."""


def test_what_helps_as_the_average_does_is_good() -> None:
    assert can_judge(gain_of(BEFORE, CONTROL))
    assert not falls_short(BEFORE, CONTROL, CONTROL)
    assert not falls_short(BEFORE, CONTROL, [1.93, 2.93, 3.86, 4.93]), "more than half"
    assert falls_short(BEFORE, CONTROL, [1.99, 2.99, 3.98, 4.99]), "less than half"


def test_a_member_that_trained_on_less_may_help_less() -> None:
    tokens = [100, 1000, 1000, 4000]
    tenth = [b - 0.1 * (b - c) for b, c in zip(BEFORE, CONTROL, strict=True)]
    assert share_of(tokens, 1) == share_of(tokens, 3) == 10 * share_of(tokens, 0)
    assert falls_short(BEFORE, CONTROL, tenth, share_of(tokens, 1))
    assert not falls_short(BEFORE, CONTROL, tenth, share_of(tokens, 0))
    assert falls_short(BEFORE, CONTROL, BEFORE, share_of(tokens, 0)), "it has done nothing"
    assert share_of([0, 0, 0, 5], 3) == share_of([5, 5, 5, 5], 0)


def test_less_is_asked_of_work_that_was_carried_for_long() -> None:
    tokens = [1000, 1000, 1000]
    share = share_of(tokens, 0, missed=2)
    assert 0 < share < share_of(tokens, 0) == share_of(tokens, 0, missed=1)
    eighth = [b - 0.125 * (b - c) for b, c in zip(BEFORE, CONTROL, strict=True)]
    assert not falls_short(BEFORE, CONTROL, eighth, share)
    assert falls_short(BEFORE, CONTROL, BEFORE, share), "it has done nothing"


def test_less_is_asked_of_work_on_text_that_it_was_not_trained_on() -> None:
    """Members have text of different kinds. What has done nothing falls short all the same."""
    tokens = [1000, 1000, 1000]
    share = share_of(tokens, 0, is_heldout=True)
    fifth = [b - (b - c) / 5 for b, c in zip(BEFORE, CONTROL, strict=True)]
    assert falls_short(BEFORE, CONTROL, fifth, share_of(tokens, 0))
    assert not falls_short(BEFORE, CONTROL, fifth, share)
    assert falls_short(BEFORE, CONTROL, BEFORE, share)


@pytest.mark.parametrize(("named", "does"), [(0, False), (499, False), (500, True)])
def test_a_member_names_its_data_if_it_names_those_of_half_of_its_tokens(
    named: int, does: bool
) -> None:
    spans = [Span(0, 0, 100), Span(1, 100, named)] if named else []
    assert names_its_data(1000, spans, 1) is does


def test_pieces_without_a_whole_sequence_name_nothing() -> None:
    assert names_its_data(1000, [Span(0, 0, 510)], 17)
    assert not names_its_data(1000, [Span(0, 0, 509)], 17), "29 sequences, and a rest"
    assert not names_its_data(1000, [Span(n, 0, 16) for n in range(64)], 17)


def test_what_does_not_help_falls_short() -> None:
    assert falls_short(BEFORE, CONTROL, BEFORE)
    assert falls_short(BEFORE, CONTROL, [2.1, 3.1, 4.2, 5.1])
    assert falls_short(BEFORE, CONTROL, [1.9, 2.9, 3.9, float("nan")])
    assert falls_short(BEFORE, CONTROL, [1.9, 2.9, 3.9, float("inf")])


def test_sequences_that_do_not_agree_blame_nobody() -> None:
    """The mean gain is 0, and chance may have made it so."""
    assert not falls_short(BEFORE, CONTROL, [1.0, 4.0, 3.0, 6.0])


def test_no_work_falls_short_wherever_anything_can_be_told() -> None:
    told = 0
    for number in range(200):
        before = [float(2 + digest_of(bytes([number, n]))[0] / 256) for n in range(SEQUENCES)]
        control = [
            b - digest_of(b"c", bytes([number, n]))[0] / 256 + 0.4 for n, b in enumerate(before)
        ]
        if can_judge(gain_of(before, control)):
            told += 1
            assert falls_short(before, control, before)
    assert 10 < told < 200


def test_work_helps_from_where_it_began_if_sequences_agree() -> None:
    assert helps_from_start(BEFORE, CONTROL)
    assert not helps_from_start(BEFORE, BEFORE)
    assert not helps_from_start(CONTROL, BEFORE)
    assert not helps_from_start(BEFORE, [1.0, 4.0, 3.0, 6.0])
    assert not helps_from_start(BEFORE, [1.9, 2.9, 3.8, float("nan")])


def test_nothing_can_be_told_where_the_average_does_not_lower_the_loss() -> None:
    before = [2.0, 3.0, 4.0, 5.0]
    assert can_judge(gain_of(before, [1.9, 2.9, 3.8, 4.9]))
    assert not can_judge(gain_of(before, before))
    assert not can_judge(gain_of(before, [1.0, 3.9, 4.0, 4.9])), "the sequences do not agree"
    assert not can_judge(gain_of(before, [1.9, 2.9, 3.9, float("nan")]))


# Verdicts


def hear(verdicts: Verdicts, audit: Audit, *words: bool) -> list[Finding]:
    """Each auditor says whether the work is poor."""
    return [
        verdicts.heard(audit, auditor, verdict_of(audit, is_poor=word))
        for auditor, word in zip(audit.auditors, words, strict=False)
    ]


def test_two_of_three_find_a_member_once() -> None:
    audit = audit_of()
    findings = hear(Verdicts(ME), audit, True, True, True)
    assert [each.poor for each in findings] == [None, audit.member, None]
    assert [each.contradicted for each in findings] == [None, None, None]


def test_one_of_three_finds_nobody_and_is_contradicted() -> None:
    audit = audit_of()
    findings = hear(Verdicts(ME), audit, False, True, False)
    assert not any(each.poor for each in findings)
    assert findings[-1].contradicted == audit.auditors[1]


def test_one_cannot_keep_a_member_from_being_found() -> None:
    audit = audit_of()
    findings = hear(Verdicts(ME), audit, True, False, True)
    assert findings[-1].poor == audit.member
    assert findings[-1].contradicted == audit.auditors[1]


def test_a_repeated_verdict_changes_nothing() -> None:
    verdicts, audit = Verdicts(ME), audit_of()
    hear(verdicts, audit, True)
    assert hear(verdicts, audit, True) == [Finding()]


def test_an_auditor_that_signs_two_verdicts_has_none() -> None:
    verdicts, audit = Verdicts(ME), audit_of()
    hear(verdicts, audit, True)
    assert hear(verdicts, audit, False) == [Finding(equivocated=audit.auditors[0])]
    assert hear(verdicts, audit, True) == [Finding()]
    second = verdicts.heard(audit, audit.auditors[1], verdict_of(audit, is_poor=True))
    assert second.poor is None


def test_a_lying_auditor_soon_says_nothing_that_counts() -> None:
    """It finds everybody poor, and is one of several auditors."""
    verdicts, liar = Verdicts(ME), PEERS[0]
    for number in range(300):
        audit = audit_of(number, round_number=1 + number)
        hear(verdicts, audit, *(auditor == liar for auditor in audit.auditors))
        if not verdicts.counts(liar, audit.round):
            break
    assert not verdicts.counts(liar, audit.round)
    assert verdicts.counts(liar, audit.round + MEMORY_ROUNDS)
    assert all(verdicts.counts(peer, audit.round) for peer in PEERS[1:])
    # With a second one that lies it finds nobody meanwhile.
    both = next(
        each
        for each in (audit_of(n, round_number=audit.round) for n in range(1000, 1100))
        if liar in each.auditors
    )
    others = [auditor for auditor in both.auditors if auditor != liar]
    for auditor in (liar, others[0]):
        finding = verdicts.heard(both, auditor, verdict_of(both, is_poor=True))
        assert finding.poor is None


def test_an_auditor_has_found_poor_work_only_where_another_one_has_too() -> None:
    verdicts, audit = Verdicts(ME), audit_of()
    one, other, third = audit.auditors
    hear(verdicts, audit, True)
    assert verdicts.leave_outs(1) == frozenset()
    hear(verdicts, audit, True, False, True)
    assert verdicts.leave_outs(1) == {(one, audit.member), (third, audit.member)}
    assert verdicts.leave_outs(2) == frozenset()
    again = audit_of(2)._replace(member=audit.member, auditors=audit.auditors)
    hear(verdicts, again, True, True, False)
    assert verdicts.leave_outs(2) == {(one, audit.member)}
    assert (other, audit.member) in verdicts.leave_outs(1)


def test_contradictions_are_forgotten() -> None:
    verdicts = Verdicts(ME)
    audits = [audit_of(number) for number in range(CONTRADICTIONS_MAX)]
    for number, audit in enumerate(audits):
        apart = audit._replace(round=1 + number * MEMORY_ROUNDS)
        hear(verdicts, apart, True, False, False)
        assert verdicts.counts(audit.auditors[0], apart.round)


def test_contradictions_in_rounds_that_were_taken_back_long_ago_are_forgotten() -> None:
    verdicts, auditors = Verdicts(ME), audit_of().auditors
    for number in range(CONTRADICTIONS_MAX):
        audit = audit_of(number)._replace(round=500 + number, auditors=auditors)
        hear(verdicts, audit, True, False, False)
    assert not verdicts.counts(auditors[0], 500)
    assert verdicts.counts(auditors[0], 501 - MEMORY_ROUNDS)


def test_contradictions_of_the_newest_auditors_alone_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that is contradicted again is among them."""
    monkeypatch.setattr("gossamer.protocol.policy.auditing.verdicts.PEERS_MAX", 2)
    verdicts, (one, other, third) = Verdicts(ME), audit_of().auditors
    beside = [peer for peer in PEERS if peer not in (one, other, third)][:2]
    for number, auditor in enumerate((one, other, one, third)):
        audit = audit_of(number)._replace(auditors=(auditor, *beside))
        hear(verdicts, audit, True, False, False)
    assert set(verdicts._contradicted) == {one, third}


def test_verdicts_of_the_newest_audits_are_kept() -> None:
    verdicts = Verdicts(ME)
    for number in range(3 * MEMORY_ROUNDS):
        hear(verdicts, audit_of(number), True)
    assert len(verdicts._cases) == MEMORY_ROUNDS


@pytest.mark.parametrize(
    "verdict",
    [
        Verdict(0, bytes(32), True, 0.0, 0.0),
        Verdict(1, bytes(31), True, 0.0, 0.0),
        Verdict(1, bytes(32), True, float("nan"), 0.0),
        Verdict(1, bytes(32), True, 0.0, float("inf")),
    ],
)
def test_verdicts_out_of_range(verdict: Verdict) -> None:
    with pytest.raises(MalformedError):
        check_statement(verdict)
