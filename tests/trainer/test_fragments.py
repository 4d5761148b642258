"""Which elements are averaged when, in a streaming run."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from gossamer.protocol.manifest import ModelConfig
from gossamer.trainer.flat import layout_of
from gossamer.trainer.fragments import fragment_of_round, fragments_of


@pytest.fixture
def deep(model_config: ModelConfig) -> ModelConfig:
    return msgspec.structs.replace(model_config, num_layers=7, tied_embeddings=False)


@pytest.mark.parametrize("num_fragments", [1, 2, 3, 7])
def test_every_element_is_in_one_fragment(deep: ModelConfig, num_fragments: int) -> None:
    count = np.zeros(deep.num_parameters, np.int64)
    for fragment in fragments_of(deep, num_fragments):
        before = 0
        for part in fragment.ranges:
            assert before < part.start < part.stop or part.start == 0
            before = part.stop
            count[part] += 1
    assert (count == 1).all()


def test_layers_are_strided_and_embedding_and_head_apart(deep: ModelConfig) -> None:
    fragments = fragments_of(deep, 3)
    marks = np.full(deep.num_parameters, -1)
    for number, fragment in enumerate(fragments):
        for part in fragment.ranges:
            marks[part] = number
    of_tensor = {tensor.name: set(marks[tensor.range]) for tensor in layout_of(deep)}
    for name, numbers in of_tensor.items():
        if name.startswith("layers."):
            assert numbers == {int(name.split(".")[1]) % 3}, name
    assert of_tensor["embed_tokens.weight"] == {0}
    assert of_tensor["norm.weight"] == of_tensor["lm_head.weight"] == {2}


def test_gather_and_scatter(deep: ModelConfig) -> None:
    vector = np.arange(deep.num_parameters, dtype=np.float32)
    out = np.zeros_like(vector)
    for fragment in fragments_of(deep, 3):
        values = fragment.gather(vector)
        assert values.shape == (fragment.num_elements,)
        fragment.scatter(values, out)
    assert (out == vector).all()


def test_turns() -> None:
    assert [fragment_of_round(number, 3) for number in range(1, 8)] == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize("num_fragments", [0, 8])
def test_numbers_that_are_not_possible(deep: ModelConfig, num_fragments: int) -> None:
    with pytest.raises(ValueError, match="7 layers"):
        fragments_of(deep, num_fragments)
