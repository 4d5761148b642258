"""A member's part, the share that the ring takes of it, and the residual: together they are the
work."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.protocol.codecs.block_codecs import BlockCodec
from gossamer.protocol.codecs.chunk_values import (
    MAGNITUDE_MAX,
    WORK_MAGNITUDE_MAX,
    Buffer,
    Float32Array,
)
from gossamer.protocol.codecs.payloads import SPARSE, SetPayloads, payloads_named
from gossamer.protocol.codecs.sparse_codec import SparseCodec
from gossamer.protocol.codecs.tensor_codecs import codec, codec_names
from gossamer.protocol.codecs.wide_codecs import MEMBERS_OF_FOUR_BITS, WideningInt4Codec
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.rounds.ring.ring_parts import SumPart
from gossamer.protocol.rounds.ring.set_parts import SetPart, ring_average
from gossamer.protocol.state.chunk_plan import ChunkPlan

PLAN = ChunkPlan(3000, 2048)
LOSSY = ("fp16", "int8", "int4")
WIDENING = "int4, widening"
"""Sums of two members have five bits a value, and those of three and four have six."""
TOKENS = (300, 400, 600, 200)
"""Tokens of each member: every share is at least half of the mean share, and none is capped."""
MEMBERS = range(4)
"""Ring positions of the members."""
ALL = 0b1111


class _Widening(WideningInt4Codec):
    def of_sum(self, num_members: int) -> BlockCodec:
        """See `TensorCodec`."""
        return super().of_sum((1, 9, 33, 33)[num_members - 1])


class Ring:
    """The members' arithmetic, with their vectors of one round."""

    def __init__(
        self, codec_name: str, vectors: list[Float32Array], shares: tuple[int, ...] = TOKENS
    ) -> None:
        self.codec = _Widening() if codec_name == WIDENING else codec(codec_name)
        self.vectors = vectors
        self.sides = [
            SumPart(vector, PLAN, self.codec, shares, position)
            for position, vector in enumerate(vectors)
        ]

    def average(self, chunk: int, order: list[int]) -> Float32Array:
        """Those in `order` add themselves, the last one finishes."""
        payload: Buffer | None = None
        mask = 0
        for position in order:
            payload = self.sides[position].add(chunk, payload, mask)
            mask |= 1 << position
        assert payload is not None
        average = self.sides[order[-1]].finish_average(chunk, payload, mask)
        return self.codec.decode(average, PLAN.elements_of(chunk))

    def residual(self, chunk: int, position: int) -> Float32Array:
        error = self.sides[position].error_of(chunk)
        return np.zeros(PLAN.elements_of(chunk), np.float32) if error is None else error


def vectors_of(seed: int) -> list[Float32Array]:
    rng = np.random.default_rng(seed)
    return [rng.laplace(size=PLAN.num_elements).astype(np.float32) for _ in MEMBERS]


@pytest.mark.parametrize("codec_name", [*LOSSY, WIDENING])
@pytest.mark.parametrize("chunk", [0, 1])
@pytest.mark.parametrize("order", [[0, 1, 2, 3], [2, 3, 0, 1], [1, 2], [3], [3, 0]])
def test_what_was_sent_and_what_stays_are_what_was_meant(
    codec_name: str, chunk: int, order: list[int]
) -> None:
    """The sum is exact also if members are missing: the residuals weigh in the next ring as their
    members do."""
    ring = Ring(codec_name, vectors_of(0))
    part = PLAN.range_of(chunk)
    average = ring.average(chunk, order)
    present = sum(TOKENS[position] for position in order)
    meant, stayed = np.zeros((2, PLAN.elements_of(chunk)))
    for position in order:
        share = TOKENS[position] / present
        meant += share * ring.vectors[position][part].astype(np.float64)
        stayed += share * ring.residual(chunk, position).astype(np.float64)
    assert np.abs(average + stayed - meant).max() < 1e-5
    assert np.abs(average - meant).max() > 1e-4, "nothing was rounded"


@pytest.mark.parametrize("codec_name", [*LOSSY, WIDENING])
def test_the_errors_of_many_rounds_do_not_add_up(codec_name: str) -> None:
    """Error feedback keeps the sum of all averages within one round's residuals of the sum of all
    work."""
    rounds, part = 30, PLAN.range_of(0)
    residuals = [np.zeros(PLAN.num_elements, np.float32) for _ in MEMBERS]
    total, meant = np.zeros((2, PLAN.elements_of(0)))
    first = 0.0
    for number in range(rounds):
        fresh = vectors_of(number)
        ring = Ring(codec_name, [v + r for v, r in zip(fresh, residuals, strict=True)])
        total += ring.average(0, [0, 1, 2, 3])
        for position, vector in enumerate(fresh):
            meant += TOKENS[position] / sum(TOKENS) * vector[part].astype(np.float64)
            residuals[position][part] = ring.residual(0, position)
        if number == 0:
            first = float(np.linalg.norm(total - meant))
    assert np.linalg.norm(total - meant) < 2 * first


@pytest.mark.parametrize("codec_name", LOSSY)
def test_finishing_a_whole_ring_rounds_nothing_again(codec_name: str) -> None:
    ring = Ring(codec_name, vectors_of(0))
    payload: Buffer | None = None
    for position, side in enumerate(ring.sides):
        payload = side.add(0, payload, (1 << position) - 1)
    assert payload is not None
    before = ring.residual(0, 3).copy()
    assert bytes(ring.sides[3].finish_average(0, payload, ALL)) == bytes(payload)
    assert ring.residual(0, 3).tobytes() == before.tobytes()


@pytest.mark.parametrize("codec_name", LOSSY)
def test_a_small_share_does_not_magnify_its_errors(codec_name: str) -> None:
    """They may come out in a round in which that member has a large share."""
    ring = Ring(codec_name, vectors_of(0), (500, 500, 500, 1))
    average = ring.average(0, [0, 1, 2, 3])
    exact = sum(
        tokens / 1501 * vector[PLAN.range_of(0)].astype(np.float64)
        for tokens, vector in zip((500, 500, 500, 1), ring.vectors, strict=True)
    )
    error = float(np.linalg.norm(average - exact))
    assert 0 < np.linalg.norm(ring.residual(0, 3)) < 2 * len(MEMBERS) * error


def test_nothing_stays_behind_of_an_exact_codec() -> None:
    ring = Ring("fp32", vectors_of(0))
    ring.average(0, [0, 1, 2, 3])
    assert all(side.error_of(0) is None for side in ring.sides)


@pytest.mark.parametrize("codec_name", LOSSY)
def test_a_sum_that_was_replaced_leaves_no_error(codec_name: str) -> None:
    """A fault brings a chunk round again: the member adds itself to another sum."""
    ring, undisturbed = Ring(codec_name, vectors_of(9)), Ring(codec_name, vectors_of(9))
    ring.sides[1].add(0, ring.sides[0].add(0, None, 0), 0b1)
    for one in (ring, undisturbed):
        one.average(0, [1, 2, 3])
    assert (ring.residual(0, 1) == undisturbed.residual(0, 1)).all()


def test_what_a_sparse_part_leaves_out_decays_and_stays() -> None:
    payloads = SetPayloads(SparseCodec(64))
    (vector, *_) = vectors_of(3)
    mine = SetPart(vector, PLAN, payloads, [1, 1, 1], position=2, error_decay=0.5)
    assert mine.error_of(0) is None, "nothing was sent"
    token = mine.add(0, None, 0)
    assert mine.add(0, None, 0) == token, "whatever comes round again, it is the same part"
    assert mine.finish_average(0, token, 0b100) == token
    size = PLAN.elements_of(0)
    payloads.check(token, size, 0b100)
    sent = payloads.average(token, size, 0b100, [0, 0, 1])
    error = mine.error_of(0)
    assert error is not None
    np.testing.assert_allclose(sent + error / 0.5, vector[PLAN.range_of(0)], atol=1e-5)


@pytest.mark.parametrize("name", ["fp32", "int8", "sparse"])
def test_a_ring_in_one_process_is_its_members_one_after_the_other(name: str) -> None:
    """Three members, so that the order of the additions shows in the bits."""
    tokens = TOKENS[:3]
    payloads = payloads_named(name)
    carried = vectors_of(5)[:3]
    pendings = [vector.copy() for vector in carried]
    average = ring_average(pendings, tokens, PLAN, payloads, 0.5)
    for chunk, order in enumerate([(0, 1, 2), (1, 2, 0)]):
        where = PLAN.range_of(chunk)
        parts = [
            SetPart(vector, PLAN, payloads, tokens, position, 0.5)
            if isinstance(payloads, SetPayloads)
            else SumPart(vector, PLAN, codec(name), tokens, position)
            for position, vector in enumerate(carried)
        ]
        payload: Buffer | None = None
        mask = 0
        for position in order:
            payload = parts[position].add(chunk, payload, mask)
            mask |= 1 << position
        assert payload is not None
        finished = parts[order[-1]].finish_average(chunk, payload, 0b111)
        decoded = payloads.average(finished, PLAN.elements_of(chunk), 0b111, tokens)
        assert average[where].tobytes() == decoded.tobytes()
        for part, pending in zip(parts, pendings, strict=True):
            error = part.error_of(chunk)
            expected = np.zeros(PLAN.elements_of(chunk), np.float32) if error is None else error
            assert pending[where].tobytes() == expected.tobytes()


def test_the_order_of_a_ring_is_in_its_bits() -> None:
    """Otherwise no test of equal bits would notice another order."""
    vectors = vectors_of(6)
    there = ring_average([v.copy() for v in vectors], TOKENS, PLAN, payloads_named("fp32"))
    back = ring_average(
        [v.copy() for v in reversed(vectors)], TOKENS[::-1], PLAN, payloads_named("fp32")
    )
    np.testing.assert_allclose(there, back, atol=1e-5)
    assert (there != back).any()


@pytest.mark.parametrize("name", ["fp32", "int8", SPARSE])
def test_a_member_that_claims_far_more_tokens_weighs_twice_as_much_as_the_others(name: str) -> None:
    """It sends the negative of their work: with the weight that it claims it turns the average
    round, and with the cap (2 of 5 parts) it only makes it smaller."""
    work = vectors_of(7)[0]
    pendings = [work.copy(), work.copy(), work.copy(), -work]
    claimed = (100, 110, 120, 10_000)
    average = ring_average([v.copy() for v in pendings], claimed, PLAN, payloads_named(name))
    doubled = ring_average(
        [v.copy() for v in pendings], (100, 110, 120, 220), PLAN, payloads_named(name)
    )
    assert average.tobytes() == doubled.tobytes()
    assert float(average @ work) > 0


def test_a_member_that_is_missing_does_not_move_the_cap() -> None:
    """The cap follows from the ring's members, so it is the same for every chunk."""
    ring = Ring("fp32", vectors_of(8), (100, 100, 100, 900))
    average = ring.average(0, [1, 3])
    part = PLAN.range_of(0)
    expected = (ring.vectors[1][part] + 2 * ring.vectors[3][part].astype(np.float64)) / 3
    np.testing.assert_allclose(average, expected, atol=1e-5)


@pytest.mark.parametrize("codec_name", codec_names())
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_work_takes_no_sum_out_of_range(codec_name: str, sign: int) -> None:
    """A sum that cannot be encoded was spoilt by the member that sent it, and not by this member's
    part."""
    work = np.full(PLAN.num_elements, WORK_MAGNITUDE_MAX, np.float32)
    work[::2] *= -1
    side = SumPart(work, PLAN, codec(codec_name), (999, 1), 0)
    received = np.full(PLAN.elements_of(0), sign * MAGNITUDE_MAX, np.float32)
    payload = side.add(0, codec(codec_name).encode(received), 0b10)
    assert np.isfinite(codec(codec_name).decode(payload, received.size)).all()


@pytest.mark.parametrize("value", [3e30, -3e30, 1.01 * WORK_MAGNITUDE_MAX, np.inf, np.nan])
@pytest.mark.parametrize("name", [*codec_names(), "sparse"])
def test_own_work_that_cannot_be_used_is_told_from_a_payload_that_cannot(
    name: str, value: float
) -> None:
    def side_of(work: Float32Array) -> SumPart | SetPart:
        if name == "sparse":
            payloads = SetPayloads(SparseCodec(64))
            return SetPart(work, PLAN, payloads, [1] * len(MEMBERS), 0, 1.0)
        return SumPart(work, PLAN, codec(name), [1] * len(MEMBERS), 0)

    work = np.ones(PLAN.num_elements, np.float32)
    good = side_of(work.copy()).add(0, None, 0)
    work[7] = value
    for payload in (None, good):
        with pytest.raises(ValueError, match="own work"):
            side_of(work.copy()).add(0, payload, 0b10)
    side_of(work.copy()).add(1, None, 0)  # the other chunk is as it was
    with pytest.raises(MalformedError):
        side_of(np.ones_like(work)).add(0, bytes(good)[:-1], 0b10)


def sent_by_ring(num_members: int, rounds: int, *, is_widening: bool) -> tuple[float, float]:
    """Relative errors of the first average, and of the sum of the averages of all rounds."""
    plan, payloads = ChunkPlan(8192, 8192), payloads_named("int4", is_widening=is_widening)
    residuals = np.zeros((num_members, plan.num_elements), np.float32)
    total, meant = np.zeros((2, plan.num_elements))
    first = 0.0
    for number in range(rounds):
        fresh = np.random.default_rng(number).standard_normal(residuals.shape).astype(np.float32)
        pendings = list(fresh + residuals)
        total += ring_average(pendings, [1] * num_members, plan, payloads)
        meant += fresh.mean(axis=0, dtype=np.float64)
        residuals = np.stack(pendings)
        if number == 0:
            first = float(np.linalg.norm(total - meant) / np.linalg.norm(meant))
    return first, float(np.linalg.norm(total - meant) / np.linalg.norm(meant))


@pytest.mark.parametrize("num_members", [2, 8, 16, 32, 64, 128, 256])
def test_an_average_is_as_exact_in_a_large_ring_as_in_a_small_one(num_members: int) -> None:
    first, all_of_20 = sent_by_ring(num_members, 20, is_widening=True)
    assert first < 0.24
    assert all_of_20 < 0.055


def test_codes_of_one_width_lose_a_large_ring() -> None:
    """The reason for wider codes: errors of all sums, and more than that after some rounds."""
    first, _ = sent_by_ring(256, 1, is_widening=False)
    assert first > 2


@given(num_members=st.integers(1, MEMBERS_OF_FOUR_BITS), seed=st.integers(0, 2**32 - 1))
def test_a_small_ring_sends_the_same_bytes_with_and_without_wider_codes(
    num_members: int, seed: int
) -> None:
    vectors = np.random.default_rng(seed).laplace(size=(num_members, 300)).astype(np.float32)
    plan, tokens, sent = ChunkPlan(300, 300), [1] * num_members, []
    for is_widening in (False, True):
        coder = codec("int4", is_widening=is_widening)
        payload: Buffer | None = None
        for position, vector in enumerate(vectors):
            part = SumPart(vector, plan, coder, tokens, position)
            payload = part.add(0, payload, (1 << position) - 1)
            sent.append((is_widening, bytes(payload)))
        assert payload is not None
        average = part.finish_average(0, payload, (1 << num_members) - 1)
        sent.append((is_widening, bytes(average)))
    assert [b for wide, b in sent if wide] == [b for wide, b in sent if not wide]


@pytest.mark.long
@settings(deadline=None)
@given(
    order=st.permutations(range(40)),
    num_missing=st.integers(0, 30),
    seed=st.integers(0, 2**32 - 1),
    tokens=st.lists(st.integers(60, 100), min_size=40, max_size=40),
)
def test_nothing_is_lost_in_a_large_ring_whoever_is_missing(
    order: list[int], num_missing: int, seed: int, tokens: list[int]
) -> None:
    """A member that vanishes before it added leaves no hole: sums go by the members in them."""
    living = order[num_missing:]
    plan, coder = ChunkPlan(130, 130), codec("int4", is_widening=True)
    vectors = np.random.default_rng(seed).standard_normal((40, 130)).astype(np.float32)
    parts = [SumPart(vector, plan, coder, tokens, at) for at, vector in enumerate(vectors)]
    payloads = payloads_named("int4", is_widening=True)
    payload: Buffer | None = None
    mask = 0
    for position in living:
        payload = parts[position].add(0, payload, mask)
        mask |= 1 << position
        assert payloads.is_length(len(payload), 130, mask, is_average=False)
        payloads.check(payload, 130, mask, is_average=False)
    assert payload is not None
    finished = parts[living[-1]].finish_average(0, payload, mask)
    assert payloads.is_length(len(finished), 130, mask, is_average=True)
    average = payloads.average(finished, 130, mask, tokens)
    present = sum(tokens[position] for position in living)
    shares = np.array([tokens[position] / present for position in living])
    errors = [parts[position].error_of(0) for position in living]
    stayed = np.stack([error for error in errors if error is not None]).astype(np.float64)
    meant = shares @ vectors[living].astype(np.float64)
    assert np.abs(average + shares @ stayed - meant).max() < 1e-5
