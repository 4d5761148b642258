"""Who audits which sum, and what follows from a verdict."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import get_args

import msgspec
import pytest

from gossamer.protocol.ids import PeerId, digest_of
from gossamer.protocol.manifest import Trust
from gossamer.protocol.policy.audits import MEMORY_ROUNDS
from gossamer.protocol.policy.sum_audits import (
    SumVerdicts,
    audited_chunk,
    auditor_after,
    has_roots,
    has_sum_audits,
)
from gossamer.protocol.sync_modes import SyncMode
from gossamer.protocol.wire.audit_messages import SumVerdict
from tests.support.builders import manifest, peers

ME, OTHER, THIRD, LIAR = peers(4)


def verdict_on(member: PeerId, number: int) -> SumVerdict:
    return SumVerdict(number, digest_of(number.to_bytes(4, "big")), member, False)


@pytest.mark.parametrize(("trust", "sync"), list(product(get_args(Trust), get_args(SyncMode))))
def test_sums_are_audited_where_members_trust_each_other(trust: Trust, sync: SyncMode) -> None:
    run = msgspec.structs.replace(manifest(trust=trust), sync=sync)
    assert has_sum_audits(run) == (trust == "members")
    assert has_roots(run) == (sync != "distro"), "shared steps are trained after the Ready"


def test_heads_pick_all_chunks_and_all_members() -> None:
    heads = [digest_of(number.to_bytes(4, "big")) for number in range(800)]
    chunks = Counter(audited_chunk(head, 8) for head in heads)
    auditors = Counter(auditor_after(head, peers(4)) for head in heads)
    assert sorted(chunks) == list(range(8))
    assert min(chunks.values()) > 60
    assert set(auditors) == set(peers(4))
    assert min(auditors.values()) > 140
    assert auditor_after(heads[0], [ME]) is None, "nobody could look at it"
    assert auditor_after(heads[0], peers(4)[::-1]) == auditor_after(heads[0], peers(4))


def test_one_auditor_alone_marks_nobody() -> None:
    verdicts = SumVerdicts(ME)
    for number in range(1, 9):
        assert verdicts.heard(ME, verdict_on(LIAR, number))
        assert not verdicts.marks(verdict_on(LIAR, number))
    assert verdicts.leave_outs() == frozenset()
    verdicts.heard(OTHER, verdict_on(THIRD, 9))
    assert not verdicts.marks(verdict_on(LIAR, 8)), "another one found somebody else"
    verdicts.heard(OTHER, verdict_on(LIAR, 10))
    assert verdicts.marks(verdict_on(LIAR, 8))
    assert verdicts.leave_outs() == {(ME, LIAR)}, "the other one has found it once"


def test_one_verdict_of_a_head_counts_and_is_forgotten_in_the_end() -> None:
    verdicts = SumVerdicts(ME)
    assert verdicts.heard(OTHER, verdict_on(LIAR, 1))
    assert not verdicts.heard(OTHER, verdict_on(LIAR, 1))
    assert not verdicts.heard(OTHER, verdict_on(THIRD, 1)), "it has said another one before"
    for number in range(2, MEMORY_ROUNDS + 2):
        verdicts.heard(ME, verdict_on(LIAR, number))
    assert not verdicts.marks(verdict_on(LIAR, MEMORY_ROUNDS + 1))
