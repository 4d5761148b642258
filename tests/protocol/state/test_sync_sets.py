"""The parameters that a round of a streaming run averages."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from gossamer.protocol.codecs.chunk_values import WORK_MAGNITUDE_MAX
from gossamer.protocol.codecs.tensor_codecs import codec
from gossamer.protocol.model_config import ModelConfig
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.state.sync_sets import SyncSet, SyncSets, fragments_of
from tests.support.builders import manifest

DEEP = msgspec.structs.replace(manifest().model, num_layers=7, tied_embeddings=False)


def sync_sets(num_fragments: int, model: ModelConfig = DEEP) -> SyncSets:
    outer = msgspec.structs.replace(
        manifest().outer, fragments=num_fragments, chunk_elements=1024, warmup_rounds=2
    )
    return SyncSets(model, outer)


def gathered(sync_set: SyncSet, vector: np.ndarray) -> np.ndarray:
    out = np.zeros(sync_set.plan.num_elements, np.float32)
    assert sync_set.add_work(vector, out)
    return out


@pytest.mark.parametrize("num_fragments", [1, 2, 3, 7])
def test_every_element_is_in_one_fragment(num_fragments: int) -> None:
    count = np.zeros(DEEP.num_parameters, np.int64)
    for ranges in fragments_of(DEEP, num_fragments):
        before = 0
        for part in ranges:
            assert before < part.start < part.stop or part.start == 0
            before = part.stop
            count[part] += 1
    assert (count == 1).all()


def test_one_fragment_is_the_flat_vector() -> None:
    one = sync_sets(1)
    assert one.turns == (one.whole,)
    assert one.whole.ranges == (slice(0, DEEP.num_parameters),)
    assert one.whole.plan == ChunkPlan(DEEP.num_parameters, 1024)
    assert one.whole.mask == (1 << one.whole.plan.num_chunks) - 1


def test_turns_come_after_the_warm_up() -> None:
    three = sync_sets(3)
    found = [three.of_round(number) for number in range(1, 10)]
    assert found == [three.whole, three.whole, *three.turns, *three.turns, three.turns[0]]


@pytest.mark.parametrize("num_fragments", [1, 2, 3, 7])
def test_a_fragment_has_the_same_chunks_by_itself_as_in_a_round_of_all(num_fragments: int) -> None:
    run = sync_sets(num_fragments)
    flat = np.arange(DEEP.num_parameters, dtype=np.float32)
    carried = gathered(run.whole, flat)
    assert sum(turn.mask for turn in run.turns) == run.whole.mask
    for turn in run.turns:
        mine = carried[turn.within]
        assert (mine == gathered(turn, flat)).all()
        for chunk in range(turn.plan.num_chunks):
            of_run = turn.first_chunk + chunk
            assert turn.mask >> of_run & 1
            values = mine[turn.plan.range_of(chunk)]
            assert (values == carried[run.whole.plan.range_of(of_run)]).all()
            assert values.size == turn.plan.elements_of(chunk)


@pytest.mark.parametrize("num_fragments", [1, 2, 3, 7])
def test_the_pieces_of_a_chunk_are_its_elements(num_fragments: int) -> None:
    run = sync_sets(num_fragments)
    flat = np.arange(DEEP.num_parameters, dtype=np.float32)
    for sync_set in (run.whole, *run.turns):
        values = gathered(sync_set, flat)
        for chunk in range(sync_set.plan.num_chunks):
            of_chunk = np.full(sync_set.plan.elements_of(chunk), -1, np.float32)
            for part, piece in sync_set.pieces_of(chunk):
                of_chunk[piece] = flat[part]
            assert (of_chunk == values[sync_set.plan.range_of(chunk)]).all()


def test_the_peak_falls_by_about_the_number_of_fragments() -> None:
    """Exact bytes of one member's part of a round."""
    model = msgspec.structs.replace(DEEP, num_layers=16, vocabulary=5000)
    for name in ("fp16", "int8", "int4"):
        coder = codec(name)

        def part_bytes(sync_set: SyncSet) -> int:
            plan = sync_set.plan
            sizes = (plan.elements_of(chunk) for chunk in range(plan.num_chunks))
            return sum(map(coder.encoded_bytes, sizes))  # noqa: B023

        for num_fragments in (2, 4, 8):
            run = sync_sets(num_fragments, model)
            whole = part_bytes(sync_sets(1, model).whole)
            turns = [part_bytes(turn) for turn in run.turns]
            assert whole / num_fragments < max(turns) < 1.02 * whole / num_fragments
            assert sum(turns) == part_bytes(run.whole) < 1.001 * whole


@pytest.mark.parametrize("num_fragments", [0, 8])
def test_numbers_that_are_not_possible(num_fragments: int) -> None:
    with pytest.raises(ValueError, match="7 layers"):
        fragments_of(DEEP, num_fragments)


def test_chunks_of_sections() -> None:
    plan = ChunkPlan(10, 4, (5, 1, 4))
    assert plan.num_chunks == 4
    found = [plan.range_of(chunk) for chunk in range(4)]
    assert found == [slice(0, 4), slice(4, 5), slice(5, 6), slice(6, 10)]
    for chunk in (-1, 4):
        with pytest.raises(IndexError):
            plan.range_of(chunk)


@pytest.mark.parametrize("num_fragments", [1, 3])
@pytest.mark.parametrize("value", [3e30, -3e30, np.inf, np.nan])
def test_work_with_a_value_out_of_range_is_not_added_at_all(
    num_fragments: int, value: float
) -> None:
    whole = sync_sets(num_fragments).whole
    for place in (0, DEEP.num_parameters // 2, DEEP.num_parameters - 1):
        work = np.ones(DEEP.num_parameters, np.float32)
        out = np.zeros(whole.plan.num_elements, np.float32)
        work[place] = value
        assert not whole.add_work(work, out)
        assert not out.any()
        work[place] = WORK_MAGNITUDE_MAX
        assert whole.add_work(work, out)
        assert sorted(out) == [1.0] * (DEEP.num_parameters - 1) + [WORK_MAGNITUDE_MAX]
