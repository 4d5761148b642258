"""Two contributions with one number are a proof, two averages of one chunk, two parts of one shared
step, and nothing else."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gossamer.protocol.errors import ForgedError, RemoteProtocolError
from gossamer.protocol.policy.conduct import equivocation
from gossamer.protocol.policy.conduct.bans import BAN_SECONDS_MAX, Bans
from gossamer.protocol.policy.conduct.equivocation import (
    READY_KEPT,
    ReadyWitness,
    number_of,
    open_equivocation,
    subject_of,
)
from gossamer.protocol.wire.average_signatures import FinishedAverage
from gossamer.protocol.wire.statement_checks import check_statement
from gossamer.protocol.wire.statements import Equivocation, Ready, Signed
from tests.support.builders import (
    HEAD,
    RUN_ID,
    announce,
    equivocation_of,
    finished_average,
    peer,
    ready,
    sealed,
    sealed_average,
    signed_step,
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


@pytest.mark.parametrize(
    "other",
    [finished_average(digest=HEAD), finished_average(contributors=b"\x03")],
    ids=["another digest", "other members"],
)
def test_two_averages_of_one_chunk_are_a_proof(other: FinishedAverage) -> None:
    proof = pair(sealed_average(LIAR, finished_average()), sealed_average(LIAR, other))
    check_statement(proof)
    assert open_equivocation(proof, RUN_ID, verify) == number_of(proof) == (3, 8)
    assert number_of(equivocation_of(LIAR)) == (3, 8)


@pytest.mark.parametrize(
    "other",
    [
        replace(sealed_average(peer(3), finished_average(chunk=3)), author=LIAR),
        sealed_average(LIAR, finished_average(chunk=3)),
        sealed_average(LIAR, finished_average(ring_id=HEAD)),
        sealed_average(LIAR, finished_average(sequence=9)),
        sealed_average(LIAR, finished_average(incarnation=4)),
        sealed_average(LIAR, finished_average(digest=HEAD), HEAD),
        sealed(LIAR, ready()),
        sealed_average(LIAR, finished_average(digest=b"")),
        sealed_average(LIAR, finished_average(ring_id=bytes(33))),
        sealed_average(LIAR, finished_average(contributors=bytes(33))),
        sealed_average(LIAR, finished_average(chunk=-1)),
    ],
    ids=[
        "another signer",
        "another chunk",
        "another ring",
        "another number",
        "another life",
        "another run",
        "a contribution",
        "no digest",
        "no ring",
        "too many members",
        "no chunk",
    ],
)
def test_an_average_and_anything_else_is_no_proof(other: Signed) -> None:
    with pytest.raises(RemoteProtocolError):
        open_equivocation(pair(sealed_average(LIAR, finished_average()), other), RUN_ID, verify)


def test_two_parts_of_one_step_are_a_proof() -> None:
    other = sealed_average(LIAR, signed_step(root=HEAD))
    proof = pair(sealed_average(LIAR, signed_step()), other)
    check_statement(proof)
    assert open_equivocation(proof, RUN_ID, verify) == number_of(proof) == (3, 8)
    assert subject_of(proof) == "parts of one shared step"
    assert subject_of(equivocation_of(LIAR)) == "contributions with one number"


@pytest.mark.parametrize(
    "other",
    [
        replace(sealed_average(peer(3), signed_step(root=HEAD)), author=LIAR),
        sealed_average(LIAR, signed_step(step=6)),
        sealed_average(LIAR, signed_step(ring_id=HEAD)),
        sealed_average(LIAR, signed_step(sequence=9)),
        sealed_average(LIAR, signed_step(root=HEAD), HEAD),
        sealed_average(LIAR, finished_average(chunk=5)),
        sealed_average(LIAR, signed_step(root=b"")),
        sealed_average(LIAR, signed_step(step=-1)),
    ],
    ids=[
        "another signer",
        "another step",
        "another ring",
        "another number",
        "another run",
        "an average",
        "no root",
        "no step",
    ],
)
def test_a_step_and_anything_else_is_no_proof(other: Signed) -> None:
    with pytest.raises(RemoteProtocolError):
        open_equivocation(pair(sealed_average(LIAR, signed_step()), other), RUN_ID, verify)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equivocation, "AUTHORS_MAX", 4)
    witness = ReadyWitness(RUN_ID, verify)
    for number in range(8):
        witness.heard(sealed(peer(number), ready()), ready())
    assert len(witness._heard) == 4
    for sequence in range(20):
        said(witness, ready(sequence=sequence))
    assert len(witness._heard[LIAR]) == READY_KEPT


def test_one_proof_is_a_ban_of_the_longest_kind() -> None:
    ban = Bans().offence(0.0, LIAR, "equivocation")
    assert ban is not None
    assert ban.seconds == BAN_SECONDS_MAX
