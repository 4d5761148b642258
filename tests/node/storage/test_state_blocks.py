"""The blocks of a state, as a head may name them that others made."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import numpy as np
import pytest

from gossamer.node.storage.state.state_blocks import CannotRebuildError
from gossamer.protocol.decoding import to_msgpack
from tests.support.committed_rounds import Holder, small_manifest


@pytest.mark.parametrize("num_values", [0, 1, 7])
def test_a_block_that_is_not_as_long_as_its_chunk_is_no_state(
    tmp_path: Path, num_values: int
) -> None:
    holder = Holder(small_manifest(), tmp_path)
    state = holder.state
    whole = state.index
    assert whole is not None
    values = state.parameters.copy()
    state.checkpoint()
    # A block has a byte or more, so none at all is half a value.
    short = holder.store.put(bytes(4 * num_values) or b"\0\0")
    for names in ("parameters", "momentum"):
        index = msgspec.structs.replace(whole, **{names: (short, *getattr(whole, names)[1:])})
        digest = holder.store.put(to_msgpack(index))
        forged = dataclasses.replace(state.entry, state_digest=digest)
        read = np.empty_like(values), np.empty_like(values)
        with pytest.raises(CannotRebuildError, match="round 0"):
            state.blocks.read_state(forged, *read)
    parameters, momentum = np.empty_like(values), np.empty_like(values)
    assert state.blocks.read_state(state.entry, parameters, momentum).vectors.index == whole
    assert np.array_equal(parameters, values)
