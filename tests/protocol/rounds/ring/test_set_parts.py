"""A member's part of a sparse ring whose sets become sums."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.protocol.codecs.chunk_values import MAGNITUDE_MAX, Buffer, Float32Array
from gossamer.protocol.codecs.contributions import add_record
from gossamer.protocol.codecs.payloads import SPARSE, SetPayloads, payloads_named
from gossamer.protocol.codecs.sparse_codec import SparseCodec
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.rounds.ring.set_parts import SetPart, ring_average
from gossamer.protocol.state.chunk_plan import ChunkPlan

SIZE = 4200
"""Of a chunk: a whole block and a part of one."""
PLAN = ChunkPlan(SIZE, SIZE)
SET_MEMBERS_MAX = 24
"""Of them, with 64 values of each 4,096."""


def with_sums(top_k: int = 64) -> SetPayloads:
    payloads = payloads_named(SPARSE, top_k, sparse_sums_of=SIZE)
    assert isinstance(payloads, SetPayloads)
    return payloads


def vectors_of(num_members: int, seed: int = 1, size: int = SIZE) -> list[Float32Array]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(size).astype(np.float32) for _ in range(num_members)]


def relative(error: npt.NDArray[np.floating], of: npt.NDArray[np.floating]) -> float:
    return float(np.linalg.norm(error) / np.linalg.norm(of))


def walked(parts: Sequence[SetPart], order: Sequence[int], payloads: SetPayloads) -> list[Buffer]:
    """The payload after each member of a walk, and the average; all are checked."""
    sent: list[Buffer] = []
    mask = 0
    for position in order:
        sent.append(parts[position].add(0, sent[-1] if sent else None, mask))
        mask |= 1 << position
        assert payloads.is_length(len(sent[-1]), SIZE, mask, is_average=False)
        payloads.check(sent[-1], SIZE, mask, is_average=False)
    sent.append(parts[order[-1]].finish_average(0, sent[-1], mask))
    assert payloads.is_length(len(sent[-1]), SIZE, mask, is_average=True)
    payloads.check(sent[-1], SIZE, mask)
    return sent


@pytest.mark.long
@given(num_members=st.integers(1, 24), seed=st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=30)
def test_a_small_ring_sends_the_same_bytes_as_one_of_sets(num_members: int, seed: int) -> None:
    vectors, tokens, results = vectors_of(num_members, seed), [7] * num_members, []
    for payloads in (with_sums(), SetPayloads(SparseCodec(64))):
        parts = [
            SetPart(vector, PLAN, payloads, tokens, position, 0.9)
            for position, vector in enumerate(vectors)
        ]
        sent = walked(parts, range(num_members), payloads)
        errors = [part.error_of(0) for part in parts]
        results.append(
            ([bytes(each) for each in sent], [str(e.tobytes()) for e in errors if e is not None])
        )
    assert results[0] == results[1]


@pytest.mark.parametrize("num_members", [24, 25, 40, 130, 256])
def test_a_sum_is_nearly_as_exact_as_a_set_and_what_it_rounds_is_carried(num_members: int) -> None:
    vectors, averages, carried = vectors_of(num_members), [], []
    for payloads in (SetPayloads(SparseCodec(64)), with_sums()):
        pendings = [vector.copy() for vector in vectors]
        averages.append(ring_average(pendings, [1] * num_members, PLAN, payloads))
        carried.append(np.stack(pendings).mean(axis=0, dtype=np.float64))
    of_sets, of_sums = averages
    if num_members == SET_MEMBERS_MAX:
        assert of_sums.tobytes() == of_sets.tobytes()
        return
    assert 0.02 < relative(of_sums - of_sets, of_sets) < 0.35
    meant = np.stack(vectors).mean(axis=0, dtype=np.float64)
    sent = meant - carried[1]
    assert relative(of_sums - sent, sent) < 0.02, "all but what is clipped is carried on"


@pytest.mark.parametrize("spoilt", [3, SET_MEMBERS_MAX, 33, 39])
def test_a_part_of_nonsense_does_not_outweigh_a_large_ring(spoilt: int) -> None:
    """One member in the set, the one that makes the sum, and two behind it."""
    norms = []
    for factor in (1.0, 2.0**50):
        vectors = vectors_of(40)
        vectors[spoilt] *= np.float32(factor)
        norms.append(float(np.linalg.norm(ring_average(vectors, [1] * 40, PLAN, with_sums()))))
    assert norms[1] < 1.25 * norms[0]


@settings(deadline=None, max_examples=40)
@given(
    order=st.permutations(range(32)),
    num_missing=st.integers(0, 31),
    seed=st.integers(0, 2**32 - 1),
    tokens=st.lists(st.integers(60, 100), min_size=32, max_size=32),
)
def test_nothing_is_lost_where_a_set_becomes_a_sum(
    order: list[int], num_missing: int, seed: int, tokens: list[int]
) -> None:
    """Any member may be the one that makes the sum, and others may be missing behind it."""
    living, payloads = order[num_missing:], with_sums()
    vectors = vectors_of(32, seed)
    parts = [SetPart(vector, PLAN, payloads, tokens, at, 1.0) for at, vector in enumerate(vectors)]
    *_, partial, finished = walked(parts, living, payloads)
    mask = sum(1 << position for position in living)
    average = payloads.average(finished, SIZE, mask, tokens)
    if len(living) <= SET_MEMBERS_MAX:
        assert bytes(finished) == bytes(partial)
        return
    present = sum(tokens[position] for position in living)
    shares = np.array([tokens[position] / present for position in living])
    errors = [parts[position].error_of(0) for position in living]
    stayed = np.stack([error for error in errors if error is not None]).astype(np.float64)
    sent = shares @ np.stack([vectors[position] for position in living]) - shares @ stayed
    assert relative(average - sent, sent) < 0.05, "all but what is clipped"


def test_errors_of_sums_do_not_add_up_over_rounds() -> None:
    """Of the sparse parts all is sent in the end; what their sums round as well."""
    errors = {}
    for name, payloads in (("sets", SetPayloads(SparseCodec(512))), ("sums", with_sums(512))):
        residuals = [np.zeros(SIZE, np.float32) for _ in range(32)]
        total, meant = np.zeros((2, SIZE))
        for number in range(20):
            fresh = vectors_of(32, number)
            residuals = [v + r for v, r in zip(fresh, residuals, strict=True)]
            total += ring_average(residuals, [1] * 32, PLAN, payloads)
            meant += np.mean(fresh, axis=0, dtype=np.float64)
        errors[name] = relative(total - meant, meant)
    assert errors["sums"] < 1.1 * errors["sets"]


def test_of_two_peers_each_others_text_leads_to_one_state_and_then_to_another() -> None:
    """The average of two parts does not depend on which peer had which, and the error that its
    finisher carries on does. So the state of the first round does not say who read what."""
    payloads, states = with_sums(1024), []
    first, second = vectors_of(2, 1), vectors_of(2, 2)
    for is_swapped in (False, True):
        pendings = [vector.copy() for vector in (first[::-1] if is_swapped else first)]
        averages = [ring_average(pendings, [1, 1], PLAN, payloads, 0.5).tobytes()]
        later = second[::-1] if is_swapped else second
        pendings = [pending + vector for pending, vector in zip(pendings, later, strict=True)]
        averages.append(ring_average(pendings, [1, 1], PLAN, payloads, 0.5).tobytes())
        states.append(averages)
    assert states[0][0] == states[1][0]
    assert states[0][1] != states[1][1]


def test_parts_that_come_to_more_than_a_sum_may_hold_are_no_fault_of_the_own_work() -> None:
    """Shares of 1 / 24 are rounded up, so values at the limit come to a little more."""
    payloads, size = with_sums(), SIZE
    block = SparseCodec(64).encode(np.full(size, MAGNITUDE_MAX, np.float32))
    received = b""
    for position in range(1, SET_MEMBERS_MAX + 1):
        received = add_record(received, position, block)
    mask = (1 << SET_MEMBERS_MAX + 1) - 2
    payloads.check(received, size, mask, is_average=False)
    tokens = [1, *[10**6] * SET_MEMBERS_MAX]
    with pytest.raises(MalformedError):
        SetPart(vectors_of(1)[0], PLAN, payloads, tokens, 0, 1.0).add(0, received, mask)


@pytest.mark.parametrize("position", [0, 2])
def test_own_work_that_cannot_be_used_is_told_before_and_behind_a_set(position: int) -> None:
    work, payloads = vectors_of(1)[0], with_sums(1024)
    good = SetPart(work.copy(), PLAN, payloads, [1, 1, 1], 1, 1.0).add(0, None, 0)
    work[7] = np.nan
    with pytest.raises(ValueError, match="own work"):
        SetPart(work, PLAN, payloads, [1, 1, 1], position, 1.0).add(0, good, 0b10)
