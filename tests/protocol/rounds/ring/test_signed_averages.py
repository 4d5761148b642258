"""An average is worth its finisher's signature, and two of them are a proof."""

from __future__ import annotations

import pytest

from gossamer.protocol.codecs.payloads import payloads_named
from gossamer.protocol.errors import ForgedError, MalformedError
from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.manifest import Trust
from gossamer.protocol.policy.conduct.equivocation import open_equivocation
from gossamer.protocol.rounds.actions import Contradicted, Signer
from gossamer.protocol.rounds.inventory import (
    NO_DIGEST,
    ArrivedSum,
    Average,
    SignedDigest,
    SumStep,
)
from gossamer.protocol.rounds.ring.ring_signatures import SignedAverages
from gossamer.protocol.rounds.roster import Ring
from tests.support.builders import RUN_ID, peers, ring_of, sign_as, verify

RING = ring_of(peers(3))
DIGEST = digest_of(b"an average")


def averages_of(me: PeerId, ring: Ring = RING, trust: Trust = "members") -> SignedAverages:
    identity = Signer(me, RUN_ID, sign_as(me))
    return SignedAverages(identity, ring, verify, payloads_named("fp32", trust=trust))


def average(mask: int, finisher: int, digest: Digest, signature: bytes) -> Average:
    return Average(mask, digest, finisher, b"an average", signature)


def test_what_a_finisher_signs_all_members_accept() -> None:
    for place, me in enumerate(RING.members):
        signature = averages_of(me).sign(5, 0b111, DIGEST)
        for other in RING.members:
            averages_of(other).check(5, average(0b111, place, DIGEST, signature))


@pytest.mark.parametrize(
    ("chunk", "mask", "finisher", "digest"),
    [
        (4, 0b111, 1, DIGEST),
        (5, 0b011, 1, DIGEST),
        (5, 0b111, 0, DIGEST),
        (5, 0b111, 1, digest_of(b"another average")),
    ],
    ids=["another chunk", "other members", "another finisher", "another average"],
)
def test_a_signature_is_good_for_nothing_else(
    chunk: int, mask: int, finisher: int, digest: Digest
) -> None:
    signature = averages_of(RING.members[1]).sign(5, 0b111, DIGEST)
    with pytest.raises(ForgedError):
        averages_of(RING.members[2]).check(chunk, average(mask, finisher, digest, signature))
    for none in (b"", bytes(64), signature[:-1]):
        with pytest.raises(ForgedError):
            averages_of(RING.members[2]).check(5, average(0b111, 1, DIGEST, none))


def test_a_signature_is_for_one_ring() -> None:
    later = ring_of(peers(3), attempt=1)
    me = RING.members[0]
    signature = averages_of(me).sign(5, 0b111, DIGEST)
    with pytest.raises(ForgedError):
        averages_of(me, later).check(5, average(0b111, later.members.index(me), DIGEST, signature))


@pytest.mark.parametrize(("mask", "finisher"), [(0b111, 3), (0b111, -1), (0b1111, 1)])
def test_members_that_the_ring_does_not_have_are_malformed(mask: int, finisher: int) -> None:
    with pytest.raises(MalformedError):
        averages_of(RING.members[2]).check(5, average(mask, finisher, DIGEST, bytes(64)))


def test_where_records_are_signed_averages_are_not() -> None:
    averages = averages_of(RING.members[1], trust="open")
    assert averages.sign(5, 0b111, DIGEST) == b""
    averages.check(5, average(0b111, 1, DIGEST, b""))
    with pytest.raises(MalformedError):
        averages.check(5, average(0b111, 1, DIGEST, bytes(64)))


def test_a_partial_sum_is_worth_its_senders_signature() -> None:
    """An audit names the member that signed what it should not have: nobody else can be named."""
    sender, me = RING.members[1:]
    signature = averages_of(sender).sign_sum(5, 0b011, DIGEST)
    came = ArrivedSum(sender, 0b011, b"sum", DIGEST, signature)
    averages_of(me).check_sum(5, came)
    other = digest_of(b"another sum")
    for chunk, wrong in (
        (4, came),
        (5, came._replace(sender=me)),
        (5, came._replace(mask=0b001)),
        (5, came._replace(digest=other)),
        (5, came._replace(signature=b"")),
        (5, came._replace(signature=averages_of(sender).sign(5, 0b011, DIGEST))),
    ):
        with pytest.raises(ForgedError):
            averages_of(me).check_sum(chunk, wrong)
    began = SumStep(None, 0, NO_DIGEST, b"", DIGEST)
    for unknown in (came._replace(sender=peers(4)[3]), came._replace(mask=0b1011), began):
        with pytest.raises(MalformedError):
            averages_of(me).check_sum(5, unknown)


def test_where_records_are_signed_partial_sums_are_not() -> None:
    sender, me = (averages_of(peer, trust="open") for peer in RING.members[1:])
    assert sender.sign_sum(5, 0b011, DIGEST) == b""
    came = ArrivedSum(RING.members[1], 0b011, b"sum", DIGEST)
    me.check_sum(5, came)
    with pytest.raises(MalformedError):
        me.check_sum(5, came._replace(signature=bytes(64)))


def test_two_signatures_of_one_member_are_a_proof_for_everybody() -> None:
    liar = averages_of(RING.members[1])
    both = [
        SignedDigest(0b111, digest, liar.sign(5, 0b111, digest))
        for digest in (DIGEST, digest_of(b"another average"))
    ]
    for one, other in (both, both[::-1]):
        proof = averages_of(RING.members[0]).proof(Contradicted(5, 1, one, other))
        assert proof.first.author == RING.members[1]
        assert proof.first.payload < proof.second.payload
        ready = RING.ready[1]
        assert open_equivocation(proof, RUN_ID, verify) == (ready.incarnation, ready.sequence)
