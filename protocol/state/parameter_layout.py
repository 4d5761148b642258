"""One run's parameters as one flat fp32 vector.

The order is the model's `named_parameters()`: embedding, then layer by layer, then the last norm
and, if it is not tied to the embedding, the head; each tensor row-major, tied weights once. The
names are Hugging Face's `LlamaForCausalLM` without the leading `model.`. This module knows the
layout from the config alone, without torch, because the daemon exports models and may not import
it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gossamer.protocol.manifest import ModelConfig

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
        norms."""
        return len(self.shape) > 1


def layout_of(model: ModelConfig) -> tuple[Tensor, ...]:
    """All parameters in flat order; together they cover `model.num_parameters` without gaps."""
    head_width = model.width // model.num_heads
    query_width = model.num_heads * head_width
    key_width = model.num_kv_heads * head_width
    shapes: list[tuple[str, tuple[int, ...]]] = [(EMBEDDING, (model.vocabulary, model.width))]
    for layer in range(model.num_layers):
        prefix = f"layers.{layer}."
        shapes += [
            (prefix + "input_layernorm.weight", (model.width,)),
            (prefix + "self_attn.q_proj.weight", (query_width, model.width)),
            (prefix + "self_attn.k_proj.weight", (key_width, model.width)),
            (prefix + "self_attn.v_proj.weight", (key_width, model.width)),
            (prefix + "self_attn.o_proj.weight", (model.width, query_width)),
            (prefix + "post_attention_layernorm.weight", (model.width,)),
            (prefix + "mlp.gate_proj.weight", (model.hidden_width, model.width)),
            (prefix + "mlp.up_proj.weight", (model.hidden_width, model.width)),
            (prefix + "mlp.down_proj.weight", (model.width, model.hidden_width)),
        ]
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
