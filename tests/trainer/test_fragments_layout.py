"""The places of a model's tensors in a streaming run."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from gossamer.protocol.model_config import Family, ImportedShape, ModelConfig
from gossamer.protocol.state.parameter_layout import layout_of
from gossamer.protocol.state.sync_sets import fragments_of


@pytest.mark.parametrize("family", [None, "qwen2", "qwen3", "olmo2"])
def test_layers_are_strided_and_rows_of_embedding_and_head_dealt(
    model_config: ModelConfig, family: Family | None
) -> None:
    deep = msgspec.structs.replace(model_config, num_layers=7, tied_embeddings=False)
    if family is not None:
        shape = ImportedShape(family=family, head_width=16, rope_scaling=None)
        deep = msgspec.structs.replace(deep, imported=shape)
    marks = np.full(deep.num_parameters, -1)
    for number, ranges in enumerate(fragments_of(deep, 3)):
        for part in ranges:
            marks[part] = number
    of_tensor = {tensor.name: set(marks[tensor.range]) for tensor in layout_of(deep)}
    for name, numbers in of_tensor.items():
        if name.startswith("layers."):
            assert numbers == {int(name.split(".")[1]) % 3}, name
    assert of_tensor["norm.weight"] == {2}
    for tensor in layout_of(deep):
        if tensor.name in ("embed_tokens.weight", "lm_head.weight"):
            rows = marks[tensor.range].reshape(tensor.shape)
            assert (rows == rows[:, :1]).all(), "no row is in two fragments"
            assert (np.diff(rows[:, 0]) >= 0).all()
            counts = np.bincount(rows[:, 0])
            assert max(counts) - min(counts) <= 1
