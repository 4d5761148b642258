"""What the members of a ring have signed of their shared steps."""

from __future__ import annotations

import msgspec
import pytest

from gossamer.protocol.errors import ForgedError, MalformedError
from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.policy.conduct.equivocation import open_equivocation
from gossamer.protocol.rounds.actions import Signer
from gossamer.protocol.rounds.ring import ring_signatures
from gossamer.protocol.rounds.ring.ring_signatures import (
    MemberSignatures,
    SignedAverages,
    SignedSteps,
)
from tests.protocol.codecs.test_step_payloads import SIGNED
from tests.support.builders import RUN_ID, peers, ring_of, sign_as, verify

RING = ring_of(peers(3))
ROOT, OTHER_ROOT = digest_of(b"a root"), digest_of(b"another one")
STEP = 5


def signature_of(position: int, step: int = STEP, root: Digest = ROOT) -> bytes:
    me = RING.members[position]
    identity = Signer(me, RUN_ID, sign_as(me))
    return SignedAverages(identity, RING, verify, SIGNED).sign_step(step, root)


class Counting:
    """Members whose signatures are checked by `verify`, which is counted."""

    def __init__(self) -> None:
        self.num_verified = 0
        self.members = self.of_another_stream()

    def of_another_stream(self) -> MemberSignatures:
        return MemberSignatures(RUN_ID, RING, self.verify)

    def verify(self, author: PeerId, data: bytes, signature: bytes) -> bool:
        self.num_verified += 1
        return verify(author, data, signature)


def test_one_signature_of_a_member_and_step_is_verified_once() -> None:
    counting = Counting()
    for _chunk_and_way in range(8):
        for position in range(3):
            counting.members.check_step(position, STEP, ROOT, signature_of(position))
    assert counting.num_verified == 3
    counting.members.check_step(0, STEP + 1, ROOT, signature_of(0, STEP + 1))
    assert counting.num_verified == 4
    assert [each.step.step for each in counting.members.take_found()] == [STEP] * 3 + [STEP + 1]
    assert counting.members.take_found() == []


@pytest.mark.parametrize(
    "signature",
    [
        signature_of(1),
        signature_of(0, STEP + 1),
        signature_of(0, root=OTHER_ROOT),
        bytes(64),
        b"",
    ],
    ids=["another member's", "of another step", "of another root", "zeros", "none"],
)
def test_a_signature_of_anything_else_is_refused(signature: bytes) -> None:
    members = Counting().members
    with pytest.raises(ForgedError):
        members.check_step(0, STEP, ROOT, signature)
    members.check_step(0, STEP, ROOT, signature_of(0))  # nothing false is remembered
    with pytest.raises(ForgedError):
        members.check_step(0, STEP, ROOT, signature)
    assert len(members.take_found()) == 1


def test_a_member_that_the_ring_does_not_have() -> None:
    with pytest.raises(MalformedError, match="not in the ring"):
        Counting().members.check_step(3, STEP, ROOT, signature_of(0))


@pytest.mark.parametrize("streams", [1, 2])
def test_two_roots_of_one_step_are_a_proof_that_another_node_can_check(streams: int) -> None:
    counting, all_streams = Counting(), SignedSteps()
    one = counting.members
    other = one if streams == 1 else counting.of_another_stream()
    one.check_step(1, STEP, ROOT, signature_of(1))
    one.check_step(2, STEP, ROOT, signature_of(2))
    assert all_streams.add(one.take_found()) == []
    other.check_step(1, STEP, OTHER_ROOT, signature_of(1, root=OTHER_ROOT))
    other.check_step(2, STEP, ROOT, signature_of(2))
    (proof,) = all_streams.add(other.take_found())
    ready = RING.ready[1]
    assert open_equivocation(proof, RUN_ID, verify) == (ready.incarnation, ready.sequence)
    assert proof.first.author == RING.members[1]
    other.check_step(1, STEP, ROOT, signature_of(1))
    other.check_step(1, STEP, OTHER_ROOT, signature_of(1, root=OTHER_ROOT))
    assert all_streams.add(other.take_found()) == []  # one is enough


def test_one_step_of_two_rings_is_no_contradiction() -> None:
    counting, all_streams = Counting(), SignedSteps()
    counting.members.check_step(1, STEP, ROOT, signature_of(1))
    (found,) = counting.members.take_found()
    other_ring = msgspec.structs.replace(found.step, ring_id=OTHER_ROOT, root=OTHER_ROOT)
    assert all_streams.add([found, found._replace(step=other_ring)]) == []


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_signatures, "ROOTS_KEPT", 4)
    counting = Counting()
    for step in range(20):
        counting.members.check_step(0, step, ROOT, signature_of(0, step))
    assert len(counting.members._good) == 4
    counting.members.check_step(0, 0, ROOT, signature_of(0, 0))
    assert counting.num_verified == 21
    all_streams = SignedSteps()
    assert all_streams.add(counting.members.take_found()) == []
    assert {step for _author, _ring_id, step in all_streams._first} == {0, 17, 18, 19}, "the newest"
