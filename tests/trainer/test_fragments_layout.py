"""Where a model's tensors go in a streaming run."""

from __future__ import annotations

import msgspec
import numpy as np

from gossamer.protocol.fragments import fragments_of
from gossamer.protocol.manifest import ModelConfig
from gossamer.trainer.flat import layout_of


def test_layers_are_strided_and_embedding_and_head_apart(model_config: ModelConfig) -> None:
    deep = msgspec.structs.replace(model_config, num_layers=7, tied_embeddings=False)
    marks = np.full(deep.num_parameters, -1)
    for number, ranges in enumerate(fragments_of(deep, 3)):
        for part in ranges:
            marks[part] = number
    of_tensor = {tensor.name: set(marks[tensor.range]) for tensor in layout_of(deep)}
    for name, numbers in of_tensor.items():
        if name.startswith("layers."):
            assert numbers == {int(name.split(".")[1]) % 3}, name
    assert of_tensor["embed_tokens.weight"] == {0}
    assert of_tensor["norm.weight"] == of_tensor["lm_head.weight"] == {2}
