"""One run's parameters as one flat fp32 vector.

The order is the model's `named_parameters()`: embedding, then layer by layer, then the last norm
and, if it is not tied to the embedding, the head; each tensor row-major, tied weights once. The
names are those of Hugging Face's model of the family, without the leading `model.`. This module
knows the layout from the config alone, without torch, because the daemon exports models and may not
import it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gossamer.protocol.model_config import ModelConfig

EMBEDDING = "embed_tokens.weight"
HEAD = "lm_head.weight"


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
    shapes: list[tuple[str, tuple[int, ...]]] = [(EMBEDDING, (model.vocabulary, model.width))]
    for layer in range(model.num_layers):
        prefix = f"layers.{layer}."
        shapes += [(prefix + name, shape) for name, shape in _layer_shapes(model)]
    shapes.append(("norm.weight", (model.width,)))
    if not model.tied_embeddings:
        shapes.append((HEAD, (model.vocabulary, model.width)))

    tensors = []
    start = 0
    for name, shape in shapes:
        tensors.append(Tensor(name, shape, start))
        start += math.prod(shape)
    assert start == model.num_parameters
    return tuple(tensors)


def _layer_shapes(model: ModelConfig) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes of one layer's parameters, in flat order."""
    gain = (model.width,)
    shapes: list[tuple[str, tuple[int, ...]]] = []
    if not model.norms_after:
        shapes.append(("input_layernorm.weight", gain))
    widths = {"q": model.query_width, "k": model.key_width, "v": model.key_width}
    for name, width in widths.items():
        shapes.append((f"self_attn.{name}_proj.weight", (width, model.width)))
        if model.has_query_bias:
            shapes.append((f"self_attn.{name}_proj.bias", (width,)))
    shapes.append(("self_attn.o_proj.weight", (model.width, model.query_width)))
    if (norm_widths := model.query_norm_widths) is not None:
        shapes.append(("self_attn.q_norm.weight", norm_widths[:1]))
        shapes.append(("self_attn.k_norm.weight", norm_widths[1:]))
    shapes += [
        ("post_attention_layernorm.weight", gain),
        ("mlp.gate_proj.weight", (model.hidden_width, model.width)),
        ("mlp.up_proj.weight", (model.hidden_width, model.width)),
        ("mlp.down_proj.weight", (model.width, model.hidden_width)),
    ]
    if model.norms_after:
        shapes.append(("post_feedforward_layernorm.weight", gain))
    return shapes
