"""One run's parameters as one flat fp32 vector.

The order is the model's `named_parameters()`: embedding, then layer by layer, then the last norm
and, if it is not tied to the embedding, the head; each tensor row-major, tied weights once. The
names are those of Hugging Face's model of the family, without the leading `model.`. In a run of
adapters only these are parameters: of each layer and each of its matrices with adapters first A and
then B, by PEFT's names. This module
knows the layout from the config alone, without torch, because the daemon exports models and may not
import it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from gossamer.protocol.lora import LoraConfig, Target
from gossamer.protocol.model_config import ModelConfig

EMBEDDING = "embed_tokens.weight"
HEAD = "lm_head.weight"

_A, _B = "lora_A.weight", "lora_B.weight"
_OF_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


@dataclass(frozen=True)
class Tensor:
    """The place of one parameter in the flat vector, in elements."""

    name: str
    shape: tuple[int, ...]
    start: int

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def range(self) -> slice:
        return slice(self.start, self.start + self.num_elements)

    @property
    def is_matrix(self) -> bool:
        """Returns whether weight decay applies: it does to matrices, and not to the gains of the
        norms and to biases."""
        return len(self.shape) > 1


def layout_of(model: ModelConfig) -> tuple[Tensor, ...]:
    """All parameters in flat order; together they cover `model.num_parameters` without gaps."""
    tensors = []
    start = 0
    for name, shape in _shapes(model):
        tensors.append(Tensor(name, shape, start))
        start += math.prod(shape)
    assert start == model.num_parameters
    return tuple(tensors)


def is_adapter(tensor: Tensor) -> bool:
    return tensor.name.endswith((_A, _B))


def adapters_of(matrix: Tensor) -> tuple[str, str]:
    """The names of A and B of a matrix that has adapters."""
    prefix = matrix.name.removesuffix("weight")
    return f"{prefix}{_A}", f"{prefix}{_B}"


def _shapes(model: ModelConfig) -> Iterable[tuple[str, tuple[int, ...]]]:
    layers = [f"layers.{layer}." for layer in range(model.num_layers)]
    if model.lora:
        of_layer = _adapter_shapes(model, model.lora)
        yield from ((prefix + name, shape) for prefix in layers for name, shape in of_layer)
        return
    yield EMBEDDING, (model.vocabulary, model.width)
    of_layer = _layer_shapes(model)
    yield from ((prefix + name, shape) for prefix in layers for name, shape in of_layer)
    yield "norm.weight", (model.width,)
    if not model.tied_embeddings:
        yield HEAD, (model.vocabulary, model.width)


def _adapter_shapes(model: ModelConfig, lora: LoraConfig) -> list[tuple[str, tuple[int, ...]]]:
    shapes: list[tuple[str, tuple[int, ...]]] = []
    for target in lora.targets:
        outputs, inputs = model.matrix_shape(target)
        prefix = f"{'self_attn' if target in _OF_ATTENTION else 'mlp'}.{target}."
        shapes += [(prefix + _A, (lora.rank, inputs)), (prefix + _B, (outputs, lora.rank))]
    return shapes


def _layer_shapes(model: ModelConfig) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes of one layer's parameters, in flat order."""
    gain = (model.width,)
    shapes: list[tuple[str, tuple[int, ...]]] = []
    if not model.norms_after:
        shapes.append(("input_layernorm.weight", gain))
    qkv: tuple[Target, ...] = ("q_proj", "k_proj", "v_proj")
    for name in qkv:
        shapes.append((f"self_attn.{name}.weight", model.matrix_shape(name)))
        if model.has_query_bias:
            shapes.append((f"self_attn.{name}.bias", model.matrix_shape(name)[:1]))
    shapes.append(("self_attn.o_proj.weight", model.matrix_shape("o_proj")))
    if (norm_widths := model.query_norm_widths) is not None:
        shapes.append(("self_attn.q_norm.weight", norm_widths[:1]))
        shapes.append(("self_attn.k_norm.weight", norm_widths[1:]))
    shapes += [
        ("post_attention_layernorm.weight", gain),
        ("mlp.gate_proj.weight", model.matrix_shape("gate_proj")),
        ("mlp.up_proj.weight", model.matrix_shape("up_proj")),
        ("mlp.down_proj.weight", model.matrix_shape("down_proj")),
    ]
    if model.norms_after:
        shapes.append(("post_feedforward_layernorm.weight", gain))
    return shapes
