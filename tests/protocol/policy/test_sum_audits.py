"""Who audits which sum, and what follows from a verdict."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import get_args

import msgspec
import pytest

from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.manifest import Trust
from gossamer.protocol.policy.auditing.audits import MEMORY_ROUNDS
from gossamer.protocol.policy.auditing.sum_audits import (
    AuditSecrets,
    SumVerdicts,
    audited_chunk,
    commitment_to,
    has_roots,
    has_sum_audits,
    is_auditor,
)
from gossamer.protocol.sync_modes import SyncMode
from gossamer.protocol.wire.audit_messages import SumVerdict
from tests.support.builders import RUN_ID, manifest, peers, sign_as

ME, OTHER, THIRD, LIAR = peers(4)
SECRET = digest_of(b"secret")


def verdict_on(member: PeerId, number: int) -> SumVerdict:
    return SumVerdict(number, digest_of(number.to_bytes(4, "big")), SECRET, member, False)


@pytest.mark.parametrize(("trust", "sync"), list(product(get_args(Trust), get_args(SyncMode))))
def test_sums_are_audited_where_members_trust_each_other(trust: Trust, sync: SyncMode) -> None:
    run = msgspec.structs.replace(manifest(trust=trust), sync=sync)
    assert has_sum_audits(run) == (trust == "members")
    assert has_roots(run) == (sync != "distro"), "shared steps are trained after the Ready"


def heads_of(num_heads: int) -> list[Digest]:
    return [digest_of(number.to_bytes(4, "big")) for number in range(num_heads)]


@pytest.mark.parametrize("num_members", [2, 4, 32])
def test_a_round_has_one_and_a_half_auditors_of_any_chunk(num_members: int) -> None:
    secrets = [digest_of(peer.encode()) for peer in peers(num_members)]
    draws = list(product(heads_of(1600), secrets))
    found = [(head, secret) for head, secret in draws if is_auditor(head, secret, num_members)]
    assert len(found) / 1600 == pytest.approx(1.5, abs=0.1)
    chunks = Counter(audited_chunk(head, secret, 8) for head, secret in found)
    assert sorted(chunks) == list(range(8))
    assert min(chunks.values()) > 240
    assert not any(is_auditor(head, secrets[0], 1) for head in heads_of(100)), "nobody to look at"


def test_a_head_that_one_member_chose_says_nothing_of_the_others() -> None:
    """The member that finishes the last average tries heads until it is an auditor itself, and of a
    chunk in which it has not lied. Each other one is an auditor as often as after any head, and of
    any chunk. Once the head alone said both: then nobody else was one."""
    mine, others = digest_of(b"mine"), [digest_of(peer.encode()) for peer in peers(3)]
    chosen = [
        head
        for head in heads_of(8000)
        if is_auditor(head, mine, 4) and audited_chunk(head, mine, 4) == 0
    ]
    assert len(chosen) > 600
    found = [secret for head in chosen for secret in others if is_auditor(head, secret, 4)]
    assert len(found) / len(chosen) == pytest.approx(3 * 1.5 / 4, abs=0.1)
    lies = [audited_chunk(head, secret, 4) > 0 for head in chosen for secret in others]
    assert sum(lies) / len(lies) == pytest.approx(3 / 4, abs=0.05)


def test_each_ready_has_a_secret_of_its_own_that_needs_no_memory() -> None:
    """A node that was started again between its `Ready` and the commit makes the same one. Nobody
    else does, and a `Ready` of the same round after a branch was left has another one: the earlier
    one may have been shown."""
    secrets, again = (AuditSecrets(RUN_ID, sign_as(ME)) for _ in range(2))
    assert secrets.of(3, 8) == again.of(3, 8)
    different = [
        secrets.of(3, 9),
        secrets.of(4, 8),
        AuditSecrets(RUN_ID, sign_as(OTHER)).of(3, 8),
        AuditSecrets(digest_of(b"another run"), sign_as(ME)).of(3, 8),
    ]
    assert len({secrets.of(3, 8), *different}) == 5
    assert commitment_to(secrets.of(3, 8)) not in {secrets.of(3, 8), *different}


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


def test_each_auditor_of_a_head_is_heard() -> None:
    verdicts = SumVerdicts(ME)
    assert verdicts.heard(OTHER, verdict_on(LIAR, 1))
    assert verdicts.heard(ME, verdict_on(LIAR, 1))
    assert verdicts.marks(verdict_on(LIAR, 1)), "two have found it in one round"


def test_one_verdict_of_an_auditor_and_head_counts_and_is_forgotten_in_the_end() -> None:
    verdicts = SumVerdicts(ME)
    assert verdicts.heard(OTHER, verdict_on(LIAR, 1))
    assert not verdicts.heard(OTHER, verdict_on(LIAR, 1))
    assert not verdicts.heard(OTHER, verdict_on(THIRD, 1)), "it has said another one before"
    for number in range(2, MEMORY_ROUNDS + 2):
        verdicts.heard(ME, verdict_on(LIAR, number))
    assert not verdicts.marks(verdict_on(LIAR, MEMORY_ROUNDS + 1))
