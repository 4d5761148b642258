"""The memory of robust averages says what the codec says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gossamer.protocol.codecs.chunk_values import Float32Array
from gossamer.protocol.codecs.payloads import payloads_named
from gossamer.protocol.codecs.record_payloads import RecordPayloads
from gossamer.protocol.rounds.ring.ring_parts import tree_of
from gossamer.protocol.rounds.ring.set_parts import RecordPart
from gossamer.protocol.standing import Standing
from gossamer.protocol.state.chunk_plan import ChunkPlan
from tests.support import averages_once
from tests.support.averages_once import averages_computed_once

PLAN = ChunkPlan(2048, 2048)
TOKENS = (100, 300, 200)
ALL = 0b111


@pytest.fixture
def payloads() -> RecordPayloads:
    payloads = payloads_named("int8", trust="open")
    assert isinstance(payloads, RecordPayloads)
    return payloads


@pytest.fixture
def payload(payloads: RecordPayloads) -> bytes:
    """The records of three members."""
    records, mask = None, 0
    for position in range(3):
        draw = np.random.default_rng(position)
        work = draw.standard_normal(PLAN.num_elements).astype(np.float32)
        tree = tree_of(work, PLAN, payloads)
        part = RecordPart(work, PLAN, payloads, tree, position, 1.0)
        records = bytes(part.add(0, records, mask))
        mask |= 1 << position
    assert records is not None
    return records


def test_an_average_is_computed_once_and_whatever_differs_anew(
    payloads: RecordPayloads, payload: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Any, ...]] = []
    compute = averages_once._compute

    def noted(*arguments: Any) -> Float32Array:
        calls.append(arguments)
        return compute(*arguments)

    monkeypatch.setattr(averages_once, "_compute", noted)
    size = PLAN.num_elements
    expected = payloads.average(payload, size, ALL, TOKENS)
    on_probation = payloads.average(payload, size, ALL, TOKENS, Standing([9, 9, 1], 9))
    assert not np.array_equal(expected, on_probation)
    with averages_computed_once():
        for _ in range(3):
            found = payloads.average(memoryview(payload), size, ALL, list(TOKENS))
            assert np.array_equal(found, expected)
            found += 1.0  # it belongs to its caller
        assert len(calls) == 1
        found = payloads.average(payload, size, ALL, TOKENS, Standing([9, 9, 1], 9))
        assert np.array_equal(found, on_probation)
        payloads.average(payload, size, ALL, (1, 300, 200))
        assert len(calls) == 3
    assert np.array_equal(payloads.average(payload, size, ALL, TOKENS), expected)
    assert len(calls) == 3, "nothing is remembered after the block"
