"""Verdicts on rounds that are not on this node's own chain.

A member can sign a round alone, with the `Ready` of others in its roster, and as many of them as it
wants, until the head of one picks it as the auditor. Such rounds are known here, and no more.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from gossamer.node.rounds.auditing import Auditing
from gossamer.node.rounds.sum_auditing import SumAuditing
from gossamer.node.storage.chain.chain_store import ChainStore
from gossamer.node.storage.chain.known_rounds import KnownRounds
from gossamer.protocol import limits
from gossamer.protocol.codecs.payloads import SumPayloads
from gossamer.protocol.codecs.tensor_codecs import codec
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.policy.auditing.audits import audit_after
from gossamer.protocol.policy.auditing.sum_audits import AuditSecrets, commitment_to, is_auditor
from gossamer.protocol.policy.heads.head_choice import HeadChoice
from gossamer.protocol.state.chain import Commit, Header, Member
from gossamer.protocol.wire.audit_messages import AnyVerdict, SumVerdict, Verdict
from gossamer.protocol.wire.statements import Roster, Signed
from tests.node.rounds.test_heads import signed
from tests.support.builders import peers, ready, sealed, sign_as
from tests.support.node_world import in_no_thread

RUN_ID = Digest(bytes(32))
MEMBERS = peers(5)
VICTIM = MEMBERS[0]
SECRETS = {peer: AuditSecrets(RUN_ID, sign_as(peer)).of(1, 1) for peer in MEMBERS}
OWN_ROUNDS = 8


def roster_of(parent: Digest, number: int) -> Signed:
    """A roster of all members, each ready with the commitment to its secret."""
    said = [
        sealed(peer, ready(round=number, head=parent, commitment=commitment_to(secret)), RUN_ID)
        for peer, secret in SECRETS.items()
    ]
    return sealed(VICTIM, Roster(number, parent, 0, tuple(said), "fp32", 1024), RUN_ID)


class Chain:
    """Rounds of all members, and the listeners of a node to verdicts on them."""

    def __init__(self, directory: Path) -> None:
        self.store = ChainStore(directory, RUN_ID, Digest(bytes(32)))
        self.own: list[Digest] = []
        for _ in range(OWN_ROUNDS):
            self.own.append(self.add(self.own[-1] if self.own else RUN_ID))

    @property
    def committed(self) -> Any:
        entry = self.store.entry(self.own[-1])
        return SimpleNamespace(
            chain=self.store,
            head=self.own[-1],
            entry=entry,
            payloads=SumPayloads(codec("fp32")),
        )

    def add(self, parent: Digest, draw: int = 0) -> Digest:
        """A round of all members; another one for each draw."""
        before = self.store.entry(parent)
        header = Header(
            version=limits.PROTOCOL_VERSION,
            run_id=RUN_ID,
            round=before.round + 1,
            parent=parent,
            ring_id=digest_of(b"ring"),
            members=tuple(Member(peer, 100, 1.0) for peer in MEMBERS),
            tokens_total=before.tokens_total + 100 * len(MEMBERS),
            update_digest=bytes(32),
            state_digest=digest_of(b"%d" % draw),
            ledger_digest=bytes(32),
            spans=(),
        )
        votes = tuple(map(signed, MEMBERS))
        roster = roster_of(parent, header.round)
        return self.store.add(Commit(to_msgpack(header), roster, votes), header)

    def drawn(self, does_fit: Callable[[Digest], bool]) -> Digest:
        """A round beside the newest one, of as many as it takes to find one that fits."""
        draws = (self.add(self.own[-2], draw) for draw in range(1, 1000))
        return next(head for head in draws if does_fit(head))


def no_offence(*_arguments: object) -> None:
    raise AssertionError("an offence")


def sum_listener(chain: Chain) -> SumAuditing:
    swarm = SimpleNamespace(me=MEMBERS[1], offence=no_offence)
    line = SimpleNamespace(handle=lambda *_args, **_kinds: None)
    secrets = AuditSecrets(RUN_ID, sign_as(MEMBERS[1]))
    parts: list[Any] = [
        chain.committed, KnownRounds(chain.store), swarm, line, None, in_no_thread, secrets, Path(),
    ]  # fmt: skip
    return SumAuditing(*parts)


def listener(chain: Chain) -> Auditing:
    rounds = KnownRounds(chain.store)
    choice = HeadChoice(rounds, MEMBERS[1])
    swarm = SimpleNamespace(me=MEMBERS[1])
    return Auditing(chain.committed, rounds, choice, cast(Any, swarm), cast(Any, None), 1)


def sum_auditors(head: Digest) -> list[PeerId]:
    """The auditors of a round but for the victim."""
    return [
        peer
        for peer, secret in SECRETS.items()
        if peer != VICTIM and is_auditor(head, secret, len(MEMBERS))
    ]


def verdict_on_sum(chain: Chain, head: Digest) -> tuple[PeerId, SumVerdict]:
    auditor = sum_auditors(head)[0]
    number = chain.store.entry(head).round
    return auditor, SumVerdict(number, head, SECRETS[auditor], VICTIM, True)


def verdict_on_work(chain: Chain, head: Digest) -> tuple[PeerId, AnyVerdict]:
    audit = audit_after(head, 8, dict.fromkeys(MEMBERS, 100), (MEMBERS,), MEMBERS, 1)
    assert audit is not None
    return audit.auditors[0], Verdict(chain.store.entry(head).round, head, True, 0.0, 0.0)


@pytest.mark.parametrize("is_sum", [False, True], ids=["work", "sum"])
def test_a_verdict_on_a_round_beside_the_chain_counts_for_nothing(
    tmp_path: Path, *, is_sum: bool
) -> None:
    """One member could say of any other what it wanted, and make all forget what was found: 64
    audits are remembered."""
    chain = Chain(tmp_path)

    def is_mine(head: Digest) -> bool:
        """Whether it is the attacker's turn to judge the victim."""
        if is_sum:
            return bool(sum_auditors(head))
        audit = audit_after(head, 8, dict.fromkeys(MEMBERS, 100), (MEMBERS,), MEMBERS, 1)
        return audit is not None and audit.member == VICTIM

    beside = chain.drawn(is_mine)
    admits = (sum_listener(chain) if is_sum else listener(chain)).admits
    said = verdict_on_sum if is_sum else verdict_on_work
    assert not admits(*said(chain, beside))
    on_chain = [head for head in chain.own[1:] if not is_sum or is_mine(head)]
    assert on_chain
    assert all(admits(*said(chain, head)) for head in on_chain)
    later = chain.add(chain.own[-1])
    if is_mine(later):
        assert not admits(*said(chain, later)), "this node is not there yet"


def test_only_the_secret_behind_its_own_commitment_makes_a_member_an_auditor(
    tmp_path: Path,
) -> None:
    chain = Chain(tmp_path)
    admits = sum_listener(chain).admits
    head = next(each for each in chain.own[1:] if sum_auditors(each))
    author, verdict = verdict_on_sum(chain, head)
    assert admits(author, verdict)
    others = [peer for peer in MEMBERS if peer not in (author, VICTIM)]
    assert not any(admits(peer, verdict) for peer in others), "it is another one's secret"
    invented = next(
        secret
        for secret in map(digest_of, (bytes([number]) for number in range(256)))
        if is_auditor(head, secret, len(MEMBERS))
    )
    assert not admits(author, replace(verdict, secret=invented))
    idle = next(peer for peer in others if peer not in sum_auditors(head))
    assert not admits(idle, replace(verdict, secret=SECRETS[idle])), "its draw says no"
    assert not admits(author, replace(verdict, member=author))
