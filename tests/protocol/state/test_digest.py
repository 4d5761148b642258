"""Chunks, state indexes and block messages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.protocol import limits
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import digest_of
from gossamer.protocol.state.chunk_plan import ChunkPlan, default_chunk_elements
from gossamer.protocol.state.digest import (
    chunk_bytes,
    decode_state_index,
    genesis_digest_of,
    index_of,
)
from gossamer.protocol.wire.block_messages import (
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
)

PLAN = ChunkPlan(10, 4)


@given(st.integers(1, 10**6), st.integers(1, 10**5))
def test_chunks_cover_every_element_once(num_elements: int, chunk_elements: int) -> None:
    plan = ChunkPlan(num_elements, chunk_elements)
    if plan.num_chunks > 2000:
        return
    stop = 0
    for chunk in range(plan.num_chunks):
        piece = plan.range_of(chunk)
        assert piece.start == stop
        assert piece.stop - piece.start == plan.elements_of(chunk) > 0
        stop = piece.stop
    assert stop == num_elements


def test_there_is_no_chunk_beyond_the_last() -> None:
    for chunk in (-1, PLAN.num_chunks):
        with pytest.raises(IndexError):
            PLAN.range_of(chunk)


@given(st.integers(1, 10**10))
def test_the_default_chunk_is_allowed_for_every_model(num_parameters: int) -> None:
    size = default_chunk_elements(num_parameters)
    assert limits.CHUNK_ELEMENTS_MIN <= size <= limits.CHUNK_ELEMENTS_DEFAULT_MAX
    assert size % limits.CHUNK_ELEMENTS_MIN == 0


def test_a_state_has_one_digest_for_its_values() -> None:
    parameters, momentum = np.arange(10, dtype=np.float32), np.ones(10, np.float32)
    index = index_of(parameters, momentum, PLAN)
    assert decode_state_index(to_msgpack(index), PLAN) == index
    assert index.parameters[2] == digest_of(chunk_bytes(parameters, PLAN, 2))
    assert index.digest != index_of(momentum, parameters, PLAN).digest
    assert (
        genesis_digest_of(parameters, 4)
        == index_of(parameters, np.zeros_like(momentum), PLAN).digest
    )


def test_a_state_index_fits_its_plan() -> None:
    vector = np.zeros(10, np.float32)
    data = to_msgpack(index_of(vector, vector, PLAN))
    for plan in (ChunkPlan(10, 5), ChunkPlan(13, 4)):
        with pytest.raises(MalformedError):
            decode_state_index(data, plan)


def test_block_messages_come_back_from_their_bytes() -> None:
    digest = digest_of(b"block")
    assert decode_request(encode_request(digest)) == digest
    for found in (True, False):
        assert decode_reply(encode_reply(digest, found=found)) == (digest, found)
    with pytest.raises(MalformedError):
        decode_request(encode_reply(digest, found=True))
    with pytest.raises(MalformedError):
        decode_request(b"\x91\xc4\x01x")
