"""The tiles of a model, dealt to the chunks of a shared step."""

from __future__ import annotations

import pytest

from gossamer.protocol.state.exact_transform import chunks_of_step, grids_of
from gossamer.protocol.state.shared_step import step_codec
from gossamer.trainer.presets.table import PRESETS
from tests.support.node_world import MODEL


@pytest.mark.parametrize("preset", ["tiny", "10m", "150m"])
@pytest.mark.parametrize("num_chunks", [1, 2, 7, 24])
def test_the_chunks_have_all_tiles_once_in_flat_order(preset: str, num_chunks: int) -> None:
    model = PRESETS[preset].model
    grids = grids_of(model)
    chunks = chunks_of_step(grids, num_chunks)
    assert len(chunks) == num_chunks
    place = 0
    for piece in (each for chunk in chunks for each in chunk):
        assert piece.tensor.start == place
        assert piece.tensor.num_elements == piece.num_tiles * piece.tile_elements
        place += piece.tensor.num_elements
    assert place == model.num_parameters
    assert {(p.rows, p.columns) for c in chunks for p in c} == {(g.rows, g.columns) for g in grids}


@pytest.mark.parametrize(("preset", "num_chunks"), [("10m", 10), ("150m", 6), ("150m", 24)])
def test_the_chunks_of_a_step_are_about_alike(preset: str, num_chunks: int) -> None:
    coder = step_codec(PRESETS[preset].model, 4, num_chunks)
    assert coder.chunk_bytes_max < 1.25 * coder.encoded_bytes / num_chunks


def test_more_chunks_than_there_are_tiles_are_refused() -> None:
    with pytest.raises(ValueError, match="one would be empty"):
        chunks_of_step(grids_of(MODEL), 500)
