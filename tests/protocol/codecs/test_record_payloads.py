"""Sets of signed records: no byte of them can be another's, and the average follows from them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gossamer.protocol import limits
from gossamer.protocol.codecs.chunk_values import Float32Array
from gossamer.protocol.codecs.contributions import add_record
from gossamer.protocol.codecs.payloads import SPARSE, payloads_named
from gossamer.protocol.codecs.record_payloads import RecordPayloads
from gossamer.protocol.codecs.robust_average import (
    robust_average,
    robust_weights,
    usual_weight,
)
from gossamer.protocol.errors import ForgedError, MalformedError, RemoteProtocolError
from gossamer.protocol.rounds.commit_proof import check_averages
from gossamer.protocol.rounds.ring.ring_parts import tree_of
from gossamer.protocol.rounds.ring.set_parts import RecordPart, ring_average
from gossamer.protocol.standing import Standing
from gossamer.protocol.state.chunk_plan import ChunkPlan
from tests.support.builders import header_of, peers, ring_of
from tests.support.contributions import SignedRoots

PLAN = ChunkPlan(3000, 2048)
CODECS = ("fp32", "fp16", "int8", "int4", SPARSE)
TOKENS = (100, 300, 200)
MEMBERS = range(3)
ALL = 0b111


def payloads_with(name: str) -> RecordPayloads:
    payloads = payloads_named(name, trust="open")
    assert isinstance(payloads, RecordPayloads)
    return payloads


def vectors() -> list[Float32Array]:
    return [
        np.random.default_rng(seed).standard_normal(PLAN.num_elements).astype(np.float32)
        for seed in MEMBERS
    ]


class Ring:
    """Three members with their parts, and the roots that they signed."""

    def __init__(self, name: str, decay: float = 1.0, scale: float = 1.0) -> None:
        self.payloads = payloads_with(name)
        self.work = [np.float32(scale) * work for work in vectors()]
        trees = [tree_of(work, PLAN, self.payloads) for work in self.work]
        self.roots = [tree.root for tree in trees]
        self.parts = [
            RecordPart(work, PLAN, self.payloads, tree, position, decay)
            for position, (work, tree) in enumerate(zip(self.work, trees, strict=True))
        ]

    def set_of(self, chunk: int, positions: list[int]) -> bytes:
        payload: bytes | None = None
        mask = 0
        for position in positions:
            payload = bytes(self.parts[position].add(chunk, payload, mask))
            mask |= 1 << position
        assert payload is not None
        return payload

    def check(self, payload: bytes, mask: int, chunk: int = 0) -> None:
        self.payloads.check(payload, PLAN.elements_of(chunk), mask, chunk, SignedRoots(self.roots))


RING = Ring("int8")
GOOD = RING.set_of(0, [0, 1, 2])


@pytest.mark.parametrize("name", CODECS)
def test_records_are_what_their_members_signed(name: str) -> None:
    ring = Ring(name)
    assert ring.payloads.name == name
    for chunk in range(PLAN.num_chunks):
        payload = ring.set_of(chunk, [2, 0])
        elements = PLAN.elements_of(chunk)
        assert ring.payloads.is_length(len(payload), elements, 0b101, is_average=True)
        assert len(payload) == 2 * ring.payloads.part_bytes(elements)
        ring.check(payload, 0b101, chunk)
        assert ring.payloads.contributors(payload, 0b101) == 0b101


@pytest.mark.parametrize("name", CODECS)
def test_a_set_is_the_same_in_whatever_order_it_came_together(name: str) -> None:
    ring = Ring(name)
    assert ring.set_of(0, [0, 1, 2]) == ring.set_of(0, [2, 0, 1])


@pytest.mark.parametrize("name", CODECS)
def test_a_changed_record_is_refused(name: str) -> None:
    ring = Ring(name)
    payload = bytearray(ring.set_of(0, [0, 1, 2]))
    size = ring.payloads.part_bytes(PLAN.elements_of(0))
    for place in (size + 5 + 4, 2 * size - 1, 3 * size - 1):
        changed = payload.copy()
        changed[place] ^= 1
        with pytest.raises(ForgedError, match="did not sign"):
            ring.check(bytes(changed), ALL)


def test_what_is_no_set_of_these_members() -> None:
    ring = Ring("int8")
    whole, elements = ring.set_of(0, [0, 1, 2]), PLAN.elements_of(0)
    size = ring.payloads.part_bytes(elements)
    swapped = whole[:1] + whole[size + 1 : 2 * size] + whole[size : size + 1] + whole[1:size]
    with pytest.raises(ForgedError):
        ring.check(swapped, 0b011)
    with pytest.raises(ForgedError):
        ring.payloads.check(ring.set_of(0, [1]), elements, 0b010, 1, SignedRoots(ring.roots))
    with pytest.raises(MalformedError, match="not in the ring"):
        ring.payloads.check(whole, elements, ALL, 0, SignedRoots(ring.roots[:2]))
    with pytest.raises(MalformedError, match="not in the ring"):
        ring.payloads.check(whole, elements, ALL)  # a caller that knows no roots takes nothing
    with pytest.raises(MalformedError, match="not in the ring"):
        ring.payloads.average(whole, elements, ALL, TOKENS[:2])
    with pytest.raises(MalformedError, match="mask"):
        ring.check(whole, 0b011)
    with pytest.raises(MalformedError, match="too short"):
        ring.check(add_record(None, 0, b""), 0b001)
    with pytest.raises(MalformedError):
        ring.payloads.average(b"", elements, 0, TOKENS)


def test_a_round_is_replayed_only_with_records_that_its_members_signed() -> None:
    """What a commit record's author serves as averages need not come from any ring."""
    signed = Ring("int8")
    ring = ring_of(peers(3))
    ready = tuple(
        replace(each, root=root) for each, root in zip(ring.ready, signed.roots, strict=True)
    )
    ring = dataclasses.replace(ring, ready=ready)
    masks = [ALL] * PLAN.num_chunks
    averages = [signed.set_of(chunk, [0, 1, 2]) for chunk in range(PLAN.num_chunks)]
    header, roots = header_of(ring), SignedRoots(signed.roots)
    check_averages(header, ring, signed.payloads, PLAN, averages, masks, roots)
    forged = Ring("int8", scale=2.0).set_of(0, [0, 1, 2])
    with pytest.raises(ForgedError):
        check_averages(header, ring, signed.payloads, PLAN, [forged, *averages[1:]], masks, roots)
    with pytest.raises(ForgedError):
        check_averages(header, ring, signed.payloads, PLAN, averages, [0b011, *masks[1:]], roots)


@given(noise=st.binary(max_size=300), place=st.integers(0, 10**5), mask=st.integers(0, 15))
def test_any_other_bytes_are_refused(noise: bytes, place: int, mask: int) -> None:
    """Noise alone, and noise somewhere in a good payload under any mask."""
    payloads, roots, good = RING.payloads, RING.roots, GOOD
    place %= len(good)
    spoilt = good[:place] + noise + good[place + len(noise) :]
    for payload in (noise, spoilt):
        if payload == good and mask == ALL:
            continue
        if not payload and not mask:
            continue  # a set of nobody: the length of a mask of 0 is refused by the ring
        with pytest.raises(RemoteProtocolError):
            payloads.check(payload, PLAN.elements_of(0), mask, 0, SignedRoots(roots))


def test_values_that_cannot_be_are_refused_although_they_are_signed() -> None:
    ring = Ring("fp32")
    ring.work[0][5] = np.nan
    with pytest.raises(ValueError, match="own work"):
        ring.parts[0].add(0, None, 0)
    with pytest.raises(ValueError, match="own work"):
        tree_of(ring.work[0], PLAN, ring.payloads)

    class Careless(RecordPayloads):
        def encode(self, values: Float32Array) -> bytes:
            return np.full(values.size, np.inf, np.float32).tobytes()

    careless = Careless("fp32", ring.payloads.coder)
    tree = tree_of(ring.work[1], PLAN, careless)
    payload = bytes(RecordPart(ring.work[1], PLAN, careless, tree, 1, 1.0).add(0, None, 0))
    with pytest.raises(MalformedError, match="not finite"):
        ring.payloads.check(
            payload, PLAN.elements_of(0), 0b010, 0, SignedRoots([b"", tree.root, b""])
        )


@pytest.mark.parametrize("name", CODECS)
def test_the_average_is_the_robust_one_of_what_was_decoded(name: str) -> None:
    ring = Ring(name)
    elements = PLAN.elements_of(1)
    found = ring.payloads.average(ring.set_of(1, [0, 2]), elements, 0b101, TOKENS)
    decoded = [
        ring.payloads.decode(ring.payloads.encode(ring.work[position][PLAN.range_of(1)]), elements)
        for position in (0, 2)
    ]
    weights = robust_weights(TOKENS)
    expected = robust_average(decoded, [weights[0], weights[2]], usual=usual_weight(TOKENS))
    assert found.tobytes() == expected.tobytes()


def test_members_on_probation_have_a_part_of_their_weight_and_newcomers_none() -> None:
    ring = Ring("fp32")
    elements = PLAN.elements_of(1)
    payload = ring.set_of(1, [0, 1, 2])

    def average(*rounds: int, of: bytes = payload, mask: int = 0b111) -> Float32Array:
        return ring.payloads.average(of, elements, mask, TOKENS, Standing(rounds, needed=4))

    works = [work[PLAN.range_of(1)] for work in ring.work]
    standing = Standing([4, 4, 2], 4)
    weights, usual = robust_weights(TOKENS, standing), usual_weight(TOKENS, standing)
    assert average(4, 4, 2).tobytes() == robust_average(works, weights, [0, 1], usual).tobytes()
    assert average(4, 0, 0).tobytes() == works[0].tobytes()
    as_before = ring.payloads.average(payload, elements, 0b111, TOKENS)
    assert average(3, 0, 0).tobytes() == as_before.tobytes(), "nobody is established"
    alone = ring.set_of(1, [1])
    assert average(4, 0, 4, of=alone, mask=0b010).tobytes() == works[1].tobytes()


def test_work_that_changed_after_it_was_signed_is_not_sent() -> None:
    ring = Ring("int8")
    ring.work[0][PLAN.range_of(1)] *= np.float32(2)
    ring.parts[0].add(0, None, 0)
    with pytest.raises(ValueError, match="changed since it was signed"):
        ring.parts[0].add(1, None, 0)


@pytest.mark.parametrize("name", CODECS)
def test_what_was_sent_and_what_stays_are_the_work(name: str) -> None:
    ring = Ring(name, decay=0.5)
    part = PLAN.range_of(0)
    assert ring.parts[1].error_of(0) is None, "nothing was sent"
    payload = ring.set_of(0, [1])
    sent = ring.payloads.average(payload, PLAN.elements_of(0), 0b010, TOKENS)
    error = ring.parts[1].error_of(0)
    if name == "fp32":
        assert error is None
        return
    assert error is not None
    decay = 0.5 if name == SPARSE else 1.0
    np.testing.assert_allclose(sent + error / decay, ring.work[1][part], atol=1e-5)
    assert np.abs(error).max() > 1e-4


@pytest.mark.parametrize("name", CODECS)
def test_a_ring_in_one_process_is_its_members_one_after_the_other(name: str) -> None:
    ring, pendings = Ring(name, decay=0.5), vectors()
    average = ring_average(pendings, TOKENS, PLAN, ring.payloads, 0.5)
    for chunk in range(PLAN.num_chunks):
        where, elements = PLAN.range_of(chunk), PLAN.elements_of(chunk)
        payload = ring.set_of(chunk, [1, 2, 0])
        assert ring.parts[0].finish_average(chunk, payload, ALL) == payload
        expected = ring.payloads.average(payload, elements, ALL, TOKENS)
        assert average[where].tobytes() == expected.tobytes()
        for part, pending in zip(ring.parts, pendings, strict=True):
            error = part.error_of(chunk)
            carried = np.zeros(elements, np.float32) if error is None else error
            assert pending[where].tobytes() == carried.tobytes()


@pytest.mark.parametrize("name", CODECS)
def test_a_ring_has_no_more_members_than_a_block_has_room_for(name: str) -> None:
    payloads = payloads_with(name)
    elements = payloads.elements_max(limits.OPEN_MEMBERS_MIN)
    assert elements % limits.CHUNK_ELEMENTS_MIN == 0
    assert payloads.members_max(elements) >= limits.OPEN_MEMBERS_MIN
    assert payloads.members_max(elements) * payloads.part_bytes(elements) <= limits.BLOCK_BYTES_MAX
    larger = elements + limits.CHUNK_ELEMENTS_MIN
    assert (
        larger > limits.CHUNK_ELEMENTS_MAX or payloads.members_max(larger) < limits.OPEN_MEMBERS_MIN
    )


def test_a_member_sends_what_a_ring_of_sets_carries() -> None:
    """A part grows from one record to all of them on the way, and travels once more as a whole."""
    payloads, elements = payloads_with("int8"), 131_072
    hops = [*range(1, 8), *[8] * 7]
    sent = sum(hops) * payloads.part_bytes(elements) / 8
    assert payloads.mean_bytes(elements, 8) * 2 * 7 / 8 == pytest.approx(sent, rel=1e-6)
    assert sent / (elements * 1.015625) == pytest.approx(1.5 * 7, rel=0.01)
