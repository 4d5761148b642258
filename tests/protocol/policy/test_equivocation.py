"""Two contributions with one number are a proof, and nothing else is."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gossamer.protocol.errors import ForgedError
from gossamer.protocol.policy import equivocation
from gossamer.protocol.policy.bans import BAN_SECONDS_MAX, Bans
from gossamer.protocol.policy.equivocation import READY_KEPT, ReadyWitness, open_equivocation
from gossamer.protocol.wire.statements import Equivocation, Ready, Signed
from tests.support.builders import (
    HEAD,
    RUN_ID,
    announce,
    equivocation_of,
    peer,
    ready,
    sealed,
    verify,
)

LIAR = peer(2)


def pair(one: Signed, other: Signed) -> Equivocation:
    first, second = sorted((one, other), key=lambda each: each.payload)
    return Equivocation(first, second)


def said(witness: ReadyWitness, statement: Ready) -> Equivocation | None:
    return witness.heard(sealed(LIAR, statement), statement)


def test_a_witness_makes_a_proof_that_another_node_can_check() -> None:
    witness = ReadyWitness(RUN_ID, verify)
    assert said(witness, ready()) is None
    assert said(witness, ready()) is None  # the same once more
    assert said(witness, ready(sequence=9, tokens=4096)) is None
    proof = said(witness, ready(tokens=4096))
    assert proof == equivocation_of(LIAR)
    assert open_equivocation(proof, RUN_ID, verify) == (3, 8)


def test_a_contribution_in_a_roster_counts_if_its_author_signed_it() -> None:
    witness = ReadyWitness(RUN_ID, verify)
    said(witness, ready())
    other = sealed(LIAR, ready(tokens=4096))
    assert witness.quoted(replace(other, signature=bytes(64))) is None
    assert witness.quoted(replace(other, payload=b"nonsense")) is None
    assert witness.quoted(replace(other, author=peer(3))) is None
    assert witness.quoted(sealed(LIAR, ready())) is None
    assert witness.quoted(other) == equivocation_of(LIAR)


@pytest.mark.parametrize(
    "proof",
    [
        pair(sealed(LIAR, ready()), replace(sealed(peer(3), ready(tokens=1)), author=LIAR)),
        pair(sealed(LIAR, ready()), sealed(LIAR, ready(sequence=9))),
        pair(sealed(LIAR, announce()), sealed(LIAR, announce(round=3))),
        pair(sealed(LIAR, ready(), HEAD), sealed(LIAR, ready(tokens=1), HEAD)),
    ],
    ids=["another signer", "two numbers", "announcements", "another run"],
)
def test_anything_else_is_no_proof(proof: Equivocation) -> None:
    with pytest.raises(ForgedError):
        open_equivocation(proof, RUN_ID, verify)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equivocation, "AUTHORS_MAX", 4)
    witness = ReadyWitness(RUN_ID, verify)
    for number in range(8):
        witness.heard(sealed(peer(number), ready()), ready())
    assert len(witness) == 4
    for sequence in range(20):
        said(witness, ready(sequence=sequence))
    assert len(witness._heard[LIAR]) == READY_KEPT


def test_one_proof_is_a_ban_of_the_longest_kind() -> None:
    ban = Bans().offence(0.0, LIAR, "equivocation")
    assert ban is not None
    assert ban.seconds == BAN_SECONDS_MAX
