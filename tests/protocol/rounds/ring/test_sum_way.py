"""What an auditor finds of a chunk, whatever its members did to it and say of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from gossamer.protocol.codecs.chunk_values import Buffer, Float32Array
from gossamer.protocol.codecs.contributions import add_record
from gossamer.protocol.codecs.payloads import (
    AuditedPayloads,
    SetPayloads,
    SumPayloads,
    payloads_named,
)
from gossamer.protocol.codecs.record_payloads import RecordPayloads
from gossamer.protocol.codecs.sign_codec import SignCodec
from gossamer.protocol.codecs.sparse_codec import SparseCodec
from gossamer.protocol.codecs.step_codec import StepCodec
from gossamer.protocol.codecs.step_payloads import SignPayloads
from gossamer.protocol.codecs.tensor_codecs import codec
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.rounds.actions import Contribute, FinishAverage, RingAction, Send, Signer
from gossamer.protocol.rounds.inventory import NO_DIGEST, ArrivedSum, Average, SumStep, worth
from gossamer.protocol.rounds.ring.ring import RingReduce
from gossamer.protocol.rounds.ring.ring_parts import RingPart, SumPart
from gossamer.protocol.rounds.ring.ring_signatures import SignedAverages
from gossamer.protocol.rounds.ring.set_parts import SetPart
from gossamer.protocol.rounds.ring.sum_way import (
    AddedAgain,
    ReplacedSum,
    SumWay,
    decode_step,
    encode_step,
    opened_bytes_max,
)
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.wire.opening_messages import STEPS_MAX
from tests.protocol.codecs.test_sign_codec import random_update
from tests.support.builders import RUN_ID, peers, ring_of, sign_as, verify

NUM_MEMBERS = 4
RING = ring_of(peers(NUM_MEMBERS))
ELEMENTS = 1024
PLAN = ChunkPlan(ELEMENTS * NUM_MEMBERS, ELEMENTS)
TOKENS = [RING.weights[member] for member in RING.members]
EVERYBODY = (1 << NUM_MEMBERS) - 1
SET_MEMBERS_MAX = 2
SHAPES, KEPT = [(2, 64), (1, 10)], 4
"""Tiles of a shared step's chunk, and the signs of each."""


def signed_by(member: PeerId) -> SignedAverages:
    return SignedAverages(Signer(member, RUN_ID, sign_as(member)), RING, verify, payloads())


def payloads(name: str = "fp32") -> AuditedPayloads:
    if name == "steps":
        return SignPayloads(StepCodec([SignCodec(SHAPES, KEPT)]))
    if name == "sparse sums":
        return SetPayloads(SparseCodec(512), codec("int4", is_widening=True), SET_MEMBERS_MAX)
    found = payloads_named(name)
    assert not isinstance(found, RecordPayloads)
    return found


class StepParts:
    """A member's parts of shared steps (a `RingPart`)."""

    def __init__(self, place: int) -> None:
        self.place = place

    def block(self, chunk: int) -> bytes:
        update = random_update(SHAPES, KEPT, seed=PLAN.num_chunks * self.place + chunk)
        return SignCodec(SHAPES, KEPT).encode(update)

    def add(self, chunk: int, payload: Buffer | None, mask: int) -> Buffer:
        return add_record(payload, self.place, self.block(chunk))

    def finish_average(self, chunk: int, payload: Buffer, mask: int) -> Buffer:
        return payload

    def error_of(self, chunk: int) -> None:
        return None


@dataclass
class Swarm:
    """A ring of machines whose chunks go round in one process. `forged`: (position, chunk) of the
    sums that a member replaces."""

    name: str
    forged: Sequence[tuple[int, int]] = ()
    works: list[Float32Array] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.made = payloads(self.name)
        generator = np.random.default_rng(7)
        self.works = [
            generator.standard_normal(PLAN.num_elements, np.float32) for _ in RING.members
        ]
        self.parts = [self._part(work, place) for place, work in enumerate(self.works)]
        self.rings = []
        for member in RING.members:
            signed = signed_by(member)
            reduce = RingReduce(
                RING.members, member, PLAN.num_chunks, RING.starters, signed.sign, signed.sign_sum
            )
            self.rings.append(reduce)
        tasks = [(place, each) for place, ring in enumerate(self.rings) for each in ring.start()]
        while tasks:
            place, action = tasks.pop(0)
            tasks += self._do(place, action)

    def _part(self, work: Float32Array, place: int) -> RingPart:
        match made := payloads(self.name):
            case SumPayloads():
                return SumPart(work, PLAN, made.coder, TOKENS, place)
            case SetPayloads():
                return SetPart(work, PLAN, made, TOKENS, place, 0.9)
            case _:
                return StepParts(place)

    def opened(self, place: int, chunk: int) -> bytes:
        """A member's part of a chunk, as it opens it."""
        work, part, made = self.works[place][PLAN.range_of(chunk)], self.parts[place], self.made
        if isinstance(part, StepParts):
            return part.block(chunk)
        return made.coder.encode(work) if isinstance(made, SetPayloads) else work.tobytes()

    def _forged(self, mask: int) -> Buffer:
        """A payload of these members that none of them made."""
        values, made = np.full(ELEMENTS, 9.0, np.float32), self.made
        if isinstance(made, SumPayloads):
            return made.coder.of_sum(mask.bit_count()).encode(values)
        if isinstance(made, SetPayloads):
            if made.sums is not None and made.is_sum(mask):
                return made.sums.of_sum(mask.bit_count()).encode(values)
            block = made.coder.encode(values)
        else:
            block = SignCodec(SHAPES, KEPT).encode(random_update(SHAPES, KEPT, seed=99))
        payload = b""
        for place in range(NUM_MEMBERS):
            if mask >> place & 1:
                payload = add_record(payload, place, block)
        return payload

    def _do(self, place: int, action: RingAction) -> list[tuple[int, RingAction]]:
        ring, part = self.rings[place], self.parts[place]
        match action:
            case Contribute():
                total = part.add(action.chunk, action.payload, action.mask)
                if (place, action.chunk) in self.forged:
                    total = self._forged(action.mask | 1 << place)
                done = ring.contributed(action.chunk, total, digest_of(total))
            case FinishAverage():
                average = part.finish_average(action.chunk, action.payload, action.mask)
                done = ring.average_finished(action.chunk, average, digest_of(average))
            case Send():
                to = RING.members.index(action.peer)
                return [(to, each) for each in self._receive(to, RING.members[place], action)]
            case _:
                raise AssertionError(action)
        return [(place, each) for each in done]

    def _receive(self, place: int, sender: PeerId, sent: Send) -> list[RingAction]:
        ring, digest = self.rings[place], digest_of(sent.payload)
        signed = signed_by(RING.members[place])
        if sent.finisher is None:
            arrived = ArrivedSum(sender, sent.mask, sent.payload, digest, sent.signature)
            signed.check_sum(sent.chunk, arrived)
            return ring.partial_sum_received(sent.chunk, arrived)
        average = Average(sent.mask, digest, sent.finisher, sent.payload, sent.signature)
        return ring.average_received(sender, sent.chunk, average)

    def way(self, chunk: int, changed: dict[int, Sequence[SumStep]] | None = None) -> SumWay:
        """The way of a chunk, as far as the members explain it. `changed`: steps of some members
        instead of their own."""
        average = self.rings[0].averages[chunk]
        way = SumWay(signed_by(RING.members[0]), chunk, average.finisher, average.mask)
        while (position := way.asked) is not None:
            steps = self.rings[position].steps_of(chunk)
            if changed is not None:
                steps = tuple(changed.get(position, steps))
            # As it comes over the wire.
            said = [decode_step(encode_step(step, RING.members), RING.members) for step in steps]
            if not way.said(said):
                break
        return way

    def add_again(self, chunk: int) -> None:
        average, again = (
            self.rings[0].averages[chunk],
            AddedAgain(payloads(self.name), TOKENS, ELEMENTS),
        )
        for hop in self.way(chunk).hops:
            again.add(hop, self.opened(hop.position, chunk))
        again.finish(average.finisher, average.mask, average.digest)


@pytest.mark.parametrize("name", ["fp32", "fp16", "int8", "int4", "sparse", "sparse sums", "steps"])
def test_what_honest_members_did_adds_up_again(name: str) -> None:
    swarm = Swarm(name)
    for chunk in range(PLAN.num_chunks):
        assert [hop.position for hop in swarm.way(chunk).hops] == [
            (chunk + step) % NUM_MEMBERS for step in range(NUM_MEMBERS)
        ]
        swarm.add_again(chunk)


@pytest.mark.parametrize("name", ["fp32", "int8", "sparse", "sparse sums", "steps"])
@pytest.mark.parametrize("liar", range(NUM_MEMBERS))
def test_the_member_that_replaced_a_sum_is_found_wherever_it_stands(name: str, liar: int) -> None:
    swarm = Swarm(name, [(liar, chunk) for chunk in range(PLAN.num_chunks)])
    for chunk in range(PLAN.num_chunks):
        with pytest.raises(ReplacedSum) as found:
            swarm.add_again(chunk)
        assert found.value.position == liar


def test_of_two_liars_the_first_one_is_found() -> None:
    swarm = Swarm("fp32", [(1, 0), (2, 0)])
    with pytest.raises(ReplacedSum) as found:
        swarm.add_again(0)
    assert found.value.position == 1


@pytest.mark.parametrize("name", ["fp32", "sparse", "sparse sums", "steps"])
def test_a_replaced_average_is_its_finishers(name: str) -> None:
    swarm = Swarm(name)
    again = AddedAgain(payloads(name), TOKENS, ELEMENTS)
    for hop in swarm.way(0).hops:
        again.add(hop, swarm.opened(hop.position, 0))
    with pytest.raises(ReplacedSum) as found:
        again.finish(3, EVERYBODY, digest_of(b"another average"))
    assert found.value.position == 3


@pytest.mark.parametrize("name", ["sparse", "steps"])
def test_a_member_that_opens_another_record_than_it_sent_is_found_and_nobody_else(
    name: str,
) -> None:
    """The digest that it signed tells the two apart."""
    swarm = Swarm(name)
    again = AddedAgain(payloads(name), TOKENS, ELEMENTS)
    first, second = swarm.way(0).hops[:2]
    again.add(first, swarm.opened(first.position, 0))
    with pytest.raises(ReplacedSum) as found:
        again.add(second, swarm.opened(second.position, 1))
    assert found.value.position == second.position


@pytest.mark.parametrize("name", ["fp32", "sparse", "sparse sums"])
def test_what_is_no_part_of_a_chunk_is_malformed(name: str) -> None:
    again = AddedAgain(payloads(name), TOKENS, ELEMENTS)
    with pytest.raises(MalformedError):
        again.add(Swarm(name).way(0).hops[0], b"no part")


@pytest.mark.parametrize("name", ["fp32", "sparse", "sparse sums", "steps"])
def test_no_part_is_longer_than_an_auditor_takes(name: str) -> None:
    swarm = Swarm(name)
    assert opened_bytes_max(payloads(name), 1, ELEMENTS) == len(swarm.opened(2, 1))


def test_a_liar_cannot_show_another_sum_than_came() -> None:
    swarm = Swarm("fp32", [(2, 0)])
    (step,) = swarm.rings[2].steps_of(0)
    other = digest_of(b"a sum that nobody sent")
    own = signed_by(RING.members[2]).sign_sum(0, step.mask, other)
    for changed in (
        step._replace(digest=other),  # the signature is under another sum
        step._replace(digest=other, signature=own),  # its own, and not the sender's
        step._replace(result=other),  # not what it signed
        step._replace(mask=0b0001, sender=RING.members[0]),
        step._replace(sender=None, mask=0, digest=NO_DIGEST, signature=b""),
    ):
        assert swarm.way(0, {2: [changed]}).asked == 2
    assert swarm.way(0, {2: []}).asked == 2


def test_a_sum_that_goes_on_as_it_was_leads_to_its_sender() -> None:
    way = Swarm("fp32").way(0, {3: [whole_sum_of(0)], 0: []})
    assert way.asked == 0, "it signed a sum with all parts, and has to say how it came to that"


def test_two_members_that_name_each_other_do_not_go_on_for_ever() -> None:
    way = Swarm("fp32").way(0, {3: [whole_sum_of(1)], 1: [whole_sum_of(3)]})
    assert way.asked == 3


def test_a_member_explains_what_it_signed_however_many_sums_come_after() -> None:
    """A liar sends its successor the sum that becomes the average, and then ever more others."""
    members = peers(8)
    sender, me, successor = members[:3]
    signed: set[Digest] = set()

    def sign(_chunk: int, _mask: int, digest: Digest) -> bytes:
        signed.add(digest)
        return b"mine"

    ring = RingReduce(members, me, 1, range(8), sign, sign)
    used, came = digest_of(b"used"), ArrivedSum(sender, 1, b"", digest_of(b"came"), b"theirs")
    assert ring.partial_sum_received(0, came) == [Contribute(0, b"", sender, 1)]
    assert ring.contributed(0, b"used", used) == [
        Send(successor, 0, 0b11, None, b"used", signature=b"mine")
    ]
    ever_better = sorted((mask for mask in range(4, 1 << 8) if mask & 2), key=worth)
    for mask in ever_better[: 2 * STEPS_MAX]:
        other = ArrivedSum(sender, mask, b"", digest_of(bytes([mask])), b"theirs")
        ring.partial_sum_received(0, other)
    steps = ring.steps_of(0)
    assert steps[0].result == used
    assert {step.result for step in steps} == signed
    assert len(steps) == STEPS_MAX


def whole_sum_of(sender: int) -> SumStep:
    """The step of a member that passed on, as it was, what a liar sent it as the sum of all."""
    member, whole = RING.members[sender], digest_of(b"a sum with all parts")
    signature = signed_by(member).sign_sum(0, EVERYBODY, whole)
    return SumStep(member, EVERYBODY, whole, signature, whole)


@pytest.mark.parametrize(
    "change",
    [{"sender": NUM_MEMBERS}, {"sender": -1}, {"contributors": b"\xff"}],
    ids=["no such sender", "a sender before the first", "no such members"],
)
def test_members_that_the_ring_does_not_have_are_malformed(change: dict[str, object]) -> None:
    (step,) = Swarm("fp32").rings[2].steps_of(0)
    wire = encode_step(step, RING.members)
    with pytest.raises(MalformedError):
        decode_step(type(wire)(**{**fields(wire), **change}), RING.members)  # type: ignore[arg-type]


def fields(wire: object) -> dict[str, object]:
    return {name: getattr(wire, name) for name in wire.__struct_fields__}  # type: ignore[attr-defined]


_PROGRAM = """
import numpy as np
from gossamer.protocol.codecs.payloads import SetPayloads
from gossamer.protocol.codecs.sparse_codec import SparseCodec
from gossamer.protocol.rounds.ring.set_parts import SetPart
from gossamer.protocol.codecs.tensor_codecs import codec
from gossamer.protocol.ids import digest_of
from gossamer.protocol.rounds.ring.ring_parts import SumPart
from gossamer.protocol.state.chunk_plan import ChunkPlan
random = np.random.default_rng(3)
digests = []
for elements in (1, 127, 1000, 65536):
    for scale in (1.0, 1e-3, 1e-20, 1e-38, 1e-42, 1e15):
        for name in ("fp32", "fp16", "int8", "int4"):
            coder, payload, mask = codec(name, is_widening=True), None, 0
            for position in range(10):
                work = random.standard_normal(elements).astype(np.float32) * np.float32(scale)
                work[:: 7] = 0.0
                work[1 :: 11] *= np.float32(-0.0)
                part = SumPart(work, ChunkPlan(elements, elements), coder, [5] * 9 + [7], position)
                payload = part.add(0, payload, mask)
                mask |= 1 << position
            digests.append(digest_of(payload, part.finish_average(0, payload, mask)).hex())
sparse = SetPayloads(SparseCodec(512), codec("int4", is_widening=True), 2)
for elements in (127, 1000, 65536):
    for scale in (1.0, 1e-3, 1e-12, 1e15):
        payload, mask = None, 0
        for position in range(10):
            places = np.sort(random.permutation(elements)[: -(-elements // 8)])
            work = np.zeros(elements, np.float32)
            work[places] = np.float32(scale) * (1 + position % 3)
            work[places[:: 3]] *= np.float32(-0.5)
            plan = ChunkPlan(elements, elements)
            part = SetPart(work, plan, sparse, [5] * 9 + [7], position, 0.9)
            payload = part.add(0, payload, mask)
            mask |= 1 << position
        digests.append(digest_of(payload, part.finish_average(0, payload, mask)).hex())
print(digest_of("".join(digests).encode()).hex())
"""


def digest_with(disabled: str) -> str:
    """What the arithmetic of sums comes to without these features of the processor."""
    environment = {**os.environ, "NPY_DISABLE_CPU_FEATURES": disabled}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _PROGRAM],
        env=environment, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    return done.stdout


@pytest.mark.long
def test_sums_have_the_same_bytes_whatever_the_processor_can() -> None:
    """numpy has a loop of its own for each generation of processors."""
    found = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    if not found:
        pytest.skip("numpy knows one kind of this processor, so there is nothing to compare")
    assert digest_with("") == digest_with(" ".join(found))
