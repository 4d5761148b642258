"""The shape of the model that a run trains, as the manifest has it."""

from __future__ import annotations

from typing import Literal

import msgspec

from gossamer.protocol.lora import LoraConfig, Target

Family = Literal["llama", "mistral", "olmo2", "qwen2", "qwen3"]
"""Families of imported models, by the `model_type` of their configuration."""


class RopeScaling(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Rotary frequencies for a longer context, as Llama 3.1 has them (`rope_type` "llama3")."""

    factor: float
    """Divisor of the frequencies whose waves are long."""
    low_frequency_factor: float
    """Waves longer than `original_context / low_frequency_factor` tokens are long."""
    high_frequency_factor: float
    """Waves shorter than `original_context / high_frequency_factor` tokens stay as they are."""
    original_context: int


class ImportedShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The shape of a model that came with its weights, beyond the fields that every run has.

    The family says the rest: `qwen2` has biases of query, key and value, `qwen3` a norm of each
    query and key head, `olmo2` a norm of all queries and of all keys and the layer's norms behind
    attention and MLP instead of before them.
    """

    family: Family
    head_width: int
    rope_scaling: RopeScaling | None


class ModelConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Shape of a Llama-type decoder (RMSNorm, RoPE, SwiGLU, grouped-query attention)."""

    num_layers: int
    width: int
    num_heads: int
    num_kv_heads: int
    hidden_width: int
    """Width of the SwiGLU's two gates."""
    vocabulary: int
    context: int
    """Tokens in one training sequence."""
    tied_embeddings: bool
    rope_theta: float = 10_000.0
    norm_epsilon: float = 1e-5
    imported: ImportedShape | msgspec.UnsetType = msgspec.UNSET
    """Only in a run that began with weights of a folder."""
    lora: LoraConfig | msgspec.UnsetType = msgspec.UNSET
    """Only in a run of adapters. Then the parameters of the run are these alone."""

    @property
    def whole(self) -> ModelConfig:
        """The model that computes: in a run of adapters that without them."""
        return msgspec.structs.replace(self, lora=msgspec.UNSET) if self.lora else self

    @property
    def frozen_bytes(self) -> int:
        """Bytes of the weights that a run of adapters leaves as they are; 0 in any other run."""
        return self.lora.item_bytes * self.whole.num_parameters if self.lora else 0

    @property
    def family(self) -> Family:
        return self.imported.family if self.imported else "llama"

    @property
    def head_width(self) -> int:
        return self.imported.head_width if self.imported else self.width // self.num_heads

    @property
    def rope_scaling(self) -> RopeScaling | None:
        return self.imported.rope_scaling if self.imported else None

    @property
    def query_width(self) -> int:
        return self.num_heads * self.head_width

    @property
    def key_width(self) -> int:
        return self.num_kv_heads * self.head_width

    @property
    def has_query_bias(self) -> bool:
        """Whether query, key and value have biases (the output of attention has none)."""
        return self.family == "qwen2"

    @property
    def query_norm_widths(self) -> tuple[int, int] | None:
        """Widths of the norms of queries and keys; None without such norms."""
        if self.family == "qwen3":
            return self.head_width, self.head_width
        return (self.query_width, self.key_width) if self.family == "olmo2" else None

    @property
    def norms_after(self) -> bool:
        """Whether a layer's norms follow attention and MLP instead of preceding them."""
        return self.family == "olmo2"

    def matrix_shape(self, target: Target) -> tuple[int, int]:
        """(outputs, inputs) of a matrix of a layer."""
        match target:
            case "q_proj":
                return self.query_width, self.width
            case "k_proj" | "v_proj":
                return self.key_width, self.width
            case "o_proj":
                return self.width, self.query_width
            case "gate_proj" | "up_proj":
                return self.hidden_width, self.width
            case "down_proj":
                return self.width, self.hidden_width

    @property
    def num_parameters(self) -> int:
        """Number of parameters that the run trains."""
        if self.lora:
            return self.num_layers * self.layer_parameters
        embeddings = self.vocabulary * self.width * (1 if self.tied_embeddings else 2)
        return self.num_layers * self.layer_parameters + embeddings + self.width

    @property
    def layer_parameters(self) -> int:
        """Number of parameters of one decoder layer that the run trains."""
        if self.lora:
            return self.lora.rank * sum(sum(map(self.matrix_shape, self.lora.targets), ()))
        vectors = self.query_width + 2 * self.key_width if self.has_query_bias else 0
        vectors += sum(self.query_norm_widths or ())
        return self._layer_matrices + vectors + 2 * self.width

    @property
    def hidden_matrices(self) -> int:
        """Number of parameters in the matrices of the layers: neither embedding nor head."""
        return self.num_layers * self._layer_matrices

    @property
    def _layer_matrices(self) -> int:
        attention = 2 * self.width * (self.query_width + self.key_width)
        return attention + 3 * self.width * self.hidden_width
