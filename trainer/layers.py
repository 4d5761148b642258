"""The layers of the model, see `model`: attention and MLP, with adapters where a run has them.

Shape letters: B sequences, T tokens of one, W width, H heads, K key/value heads, D width of a head,
F hidden width.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gossamer.protocol.lora import LoraConfig, Target
from gossamer.protocol.model_config import ModelConfig, RopeScaling


# `Decoder.initialise` draws the weights. To draw its own, for layers that have no memory yet, torch
# would load its compiler: more than a second of every start.
class Linear(nn.Linear):
    def reset_parameters(self) -> None:
        """Leaves the weights undefined."""


class AdaptedLinear(Linear):
    """W x + scale * B A x, of which only A and B are trained."""

    def __init__(self, inputs: int, outputs: int, lora: LoraConfig, *, bias: bool) -> None:
        super().__init__(inputs, outputs, bias=bias)
        self.lora_A = Linear(inputs, lora.rank, bias=False)
        self.lora_B = Linear(lora.rank, outputs, bias=False)
        self._scale = lora.scale

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., inputs) -> (..., outputs)"""
        added: Tensor = self.lora_B(self.lora_A(x))
        return torch.add(super().forward(x), added, alpha=self._scale)


def _projection(model: ModelConfig, target: Target, *, bias: bool = False) -> Linear:
    outputs, inputs = model.matrix_shape(target)
    if model.lora and target in model.lora.targets:
        return AdaptedLinear(inputs, outputs, model.lora, bias=bias)
    return Linear(inputs, outputs, bias=bias)


class Embedding(nn.Embedding):
    def reset_parameters(self) -> None:
        """Leaves the weights undefined."""


class RMSNorm(nn.RMSNorm):
    """Computed in fp32 and rounded once, whatever the type of its input: torch's fused kernel wants
    weights of the input's type."""

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., width) -> the same, in x's type"""
        return super().forward(x.float()).to(x.dtype)


class Rotary(nn.Module):
    """Tables of the rotary positions, computed once: (context, 1, D)."""

    cosines: Tensor
    sines: Tensor

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        head_width = model.head_width
        frequencies = 1.0 / model.rope_theta ** (
            torch.arange(0, head_width, 2).float() / head_width
        )
        if model.rope_scaling is not None:
            frequencies = _scaled(frequencies, model.rope_scaling)
        angles = torch.outer(torch.arange(model.context).float(), frequencies)  # (context, D/2)
        sines = angles.sin()
        self.register_buffer("cosines", angles.cos().repeat(1, 2)[:, None, :], persistent=False)
        # The minus of "rotate half" lives in the table: [x1, x2] -> [x2, x1] * [-sin, sin].
        self.register_buffer("sines", torch.cat((-sines, sines), 1)[:, None, :], persistent=False)

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        """x: (B, T, heads, D), of positions from `start` on -> the same, rotated; computed in fp32,
        returned in x's type."""
        head_width = x.shape[3]
        places = slice(start, start + x.shape[1])
        swapped = x.roll(head_width // 2, -1)
        turned = torch.addcmul(x * self.cosines[places], swapped, self.sines[places])
        return turned.to(x.dtype)


def _scaled(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Llama 3.1's frequencies: long waves are made longer, short ones stay, those between them are
    interpolated. (D/2) -> (D/2); the order of operations is that of Hugging Face's."""
    waves = 2 * math.pi / frequencies
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    is_long = waves > scaling.original_context / low
    is_short = waves < scaling.original_context / high
    smooth = (scaling.original_context / waves - low) / (high - low)
    between = (1 - smooth) * frequencies / scaling.factor + smooth * frequencies
    stretched = torch.where(is_long, frequencies / scaling.factor, frequencies)
    return torch.where(~is_long & ~is_short, between, stretched)


class KeyValues:
    """Keys and values of one layer for the tokens so far, for text that grows at its end."""

    def __init__(self, length_max: int) -> None:
        self.length = 0
        self._length_max = length_max
        self._stored: tuple[Tensor, Tensor] | None = None

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Adds those of new tokens, (B, T, K, D) each, and returns all: (B, length, K, D)."""
        if self._stored is None:
            batch, _, *rest = keys.shape
            shape = (batch, self._length_max, *rest)
            self._stored = keys.new_empty(shape), values.new_empty(shape)
        stop = self.length + keys.shape[1]
        for stored, new in zip(self._stored, (keys, values), strict=True):
            stored[:, self.length : stop] = new
        self.length = stop
        return self._stored[0][:, :stop], self._stored[1][:, :stop]


class Attention(nn.Module):
    grouped_dtypes: tuple[torch.dtype, ...] = ()
    """Types of queries for whose groups torch has a kernel here that builds no matrix of tokens by
    tokens; see `grouped_dtypes_of`."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = model.num_heads, model.num_kv_heads
        self.head_width = model.head_width
        bias = model.has_query_bias
        self.q_proj = _projection(model, "q_proj", bias=bias)
        self.k_proj = _projection(model, "k_proj", bias=bias)
        self.v_proj = _projection(model, "v_proj", bias=bias)
        self.o_proj = _projection(model, "o_proj")
        self.q_norm: RMSNorm | None = None
        self.k_norm: RMSNorm | None = None
        if (widths := model.query_norm_widths) is not None:
            self.q_norm = RMSNorm(widths[0], eps=model.norm_epsilon)
            self.k_norm = RMSNorm(widths[1], eps=model.norm_epsilon)

    def forward(self, x: Tensor, rotary: Rotary, past: KeyValues | None = None) -> Tensor:
        """x: (B, T, W) -> (B, T, W). With a `past` that holds tokens already, T is 1."""
        B, T, _ = x.shape
        start = 0 if past is None else past.length
        q, k = _normed(self.q_proj(x), self.q_norm), _normed(self.k_proj(x), self.k_norm)
        q = rotary(q.view(B, T, self.num_heads, self.head_width), start)
        k = rotary(k.view(B, T, self.num_kv_heads, self.head_width), start)
        v = self.v_proj(x).view(B, T, self.num_kv_heads, self.head_width)
        if past is not None:
            k, v = past.extend(k, v)
        if self.num_kv_heads != self.num_heads and v.dtype not in self.grouped_dtypes:
            # Give each query head its own copy.
            k = k.repeat_interleave(self.num_heads // self.num_kv_heads, 2)
            v = v.repeat_interleave(self.num_heads // self.num_kv_heads, 2)
        heads = F.scaled_dot_product_attention(
            q.transpose(1, 2),  # (B, H, T, D)
            k.transpose(1, 2),  # (B, K, T, D)
            v.transpose(1, 2),
            is_causal=start == 0,  # a single token behind others sees them all
            enable_gqa=k.shape[2] != self.num_heads,
        )
        output: Tensor = self.o_proj(heads.transpose(1, 2).reshape(B, T, -1))
        return output


def _normed(x: Tensor, norm: RMSNorm | None) -> Tensor:
    """Queries or keys, normalised over each group of the norm's width: a head (Qwen 3), or
    all heads together (OLMo 2). (B, T, heads x D) -> the same."""
    if norm is None:
        return x
    normed: Tensor = norm(x.view(*x.shape[:-1], -1, norm.normalized_shape[0]))
    return normed.view(x.shape)


class MLP(nn.Module):
    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = _projection(model, "gate_proj")
        self.up_proj = _projection(model, "up_proj")
        self.down_proj = _projection(model, "down_proj")

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, T, W) -> (B, T, F) -> (B, T, W)"""
        output: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return output


class Layer(nn.Module):
    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        # The order of the modules is the order of their parameters in the flat vector.
        self.norms_after = model.norms_after
        if not self.norms_after:
            self.input_layernorm = RMSNorm(model.width, eps=model.norm_epsilon)
        self.self_attn = Attention(model)
        self.post_attention_layernorm = RMSNorm(model.width, eps=model.norm_epsilon)
        self.mlp = MLP(model)
        if self.norms_after:
            self.post_feedforward_layernorm = RMSNorm(model.width, eps=model.norm_epsilon)

    def forward(self, x: Tensor, rotary: Rotary, past: KeyValues | None = None) -> Tensor:
        """x: (B, T, W) -> (B, T, W)"""
        output: Tensor
        if self.norms_after:
            x = x + self.post_attention_layernorm(self.self_attn(x, rotary, past).to(x.dtype))
            output = x + self.post_feedforward_layernorm(self.mlp(x).to(x.dtype))
        else:
            x = x + self.self_attn(self.input_layernorm(x), rotary, past)
            output = x + self.mlp(self.post_attention_layernorm(x))
        return output


def run_layer(layer: nn.Module, x: Tensor, rotary: Rotary) -> Tensor:
    """One layer of a pass: (B, T, W) -> (B, T, W). A function, so that it can be compiled once for
    all layers."""
    output: Tensor = layer(x, rotary)
    return output
