"""The model: a Llama-type decoder, with the arithmetic of Hugging Face's `LlamaForCausalLM`.

- RMSNorm before attention and before the MLP, computed in fp32 (arXiv 1910.07467)
- rotary positions, the halves of a head rotated against each other (arXiv 2104.09864, "rotate
  half")
- grouped-query attention (arXiv 2305.13245) through torch's scaled_dot_product_attention
- SwiGLU (arXiv 2002.05202), no biases, optionally one matrix for embedding and head

Shape letters: B sequences, T tokens of one, W width, H heads, K key/value heads, D width of a head,
F hidden width, V vocabulary.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gossamer.protocol.manifest import ModelConfig
from gossamer.trainer.chunked_loss import chunked_loss_sum
from gossamer.trainer.device import has_grouped_kernel
from gossamer.trainer.memory_estimate import logits_max_of

INIT_STD = 0.02


# `Decoder.initialise` draws the weights. To draw its own, for layers that have no memory yet, torch
# would load its compiler: more than a second of every start.
class Linear(nn.Linear):
    def reset_parameters(self) -> None:
        """Leaves the weights undefined."""


class Embedding(nn.Embedding):
    def reset_parameters(self) -> None:
        """Leaves the weights undefined."""


class Rotary(nn.Module):
    """Tables of the rotary positions, computed once: (context, 1, D)."""

    cosines: Tensor
    sines: Tensor

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        head_width = model.width // model.num_heads
        frequencies = 1.0 / model.rope_theta ** (
            torch.arange(0, head_width, 2).float() / head_width
        )
        angles = torch.outer(torch.arange(model.context).float(), frequencies)  # (context, D/2)
        sines = angles.sin()
        self.register_buffer("cosines", angles.cos().repeat(1, 2)[:, None, :], persistent=False)
        # The minus of "rotate half" lives in the table: [x1, x2] -> [x2, x1] * [-sin, sin].
        self.register_buffer("sines", torch.cat((-sines, sines), 1)[:, None, :], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, T, heads, D) -> the same, rotated; computed in fp32, returned in x's type."""
        num_tokens, head_width = x.shape[1], x.shape[3]
        swapped = x.roll(head_width // 2, -1)
        turned = torch.addcmul(x * self.cosines[:num_tokens], swapped, self.sines[:num_tokens])
        return turned.to(x.dtype)


class Attention(nn.Module):
    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = model.num_heads, model.num_kv_heads
        self.head_width = model.width // model.num_heads
        query_width = self.num_heads * self.head_width
        key_width = self.num_kv_heads * self.head_width
        self.q_proj = Linear(model.width, query_width, bias=False)
        self.k_proj = Linear(model.width, key_width, bias=False)
        self.v_proj = Linear(model.width, key_width, bias=False)
        self.o_proj = Linear(query_width, model.width, bias=False)

    def forward(self, x: Tensor, rotary: Rotary) -> Tensor:
        """x: (B, T, W) -> (B, T, W)"""
        B, T, _ = x.shape
        q = rotary(self.q_proj(x).view(B, T, self.num_heads, self.head_width))
        k = rotary(self.k_proj(x).view(B, T, self.num_kv_heads, self.head_width))
        v = self.v_proj(x).view(B, T, self.num_kv_heads, self.head_width)
        if self.num_kv_heads != self.num_heads and not has_grouped_kernel(v.device, v.dtype):
            # Give each query head its own copy.
            k = k.repeat_interleave(self.num_heads // self.num_kv_heads, 2)
            v = v.repeat_interleave(self.num_heads // self.num_kv_heads, 2)
        heads = F.scaled_dot_product_attention(
            q.transpose(1, 2),  # (B, H, T, D)
            k.transpose(1, 2),  # (B, K, T, D)
            v.transpose(1, 2),
            is_causal=True,
            enable_gqa=k.shape[2] != self.num_heads,
        )
        output: Tensor = self.o_proj(heads.transpose(1, 2).reshape(B, T, -1))
        return output


class MLP(nn.Module):
    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = Linear(model.width, model.hidden_width, bias=False)
        self.up_proj = Linear(model.width, model.hidden_width, bias=False)
        self.down_proj = Linear(model.hidden_width, model.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, T, W) -> (B, T, F) -> (B, T, W)"""
        output: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return output


class Layer(nn.Module):
    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(model.width, eps=model.norm_epsilon)
        self.self_attn = Attention(model)
        self.post_attention_layernorm = nn.RMSNorm(model.width, eps=model.norm_epsilon)
        self.mlp = MLP(model)

    def forward(self, x: Tensor, rotary: Rotary) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rotary)
        output: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return output


class Decoder(nn.Module):
    """The whole model. Its parameters are views into `flat`, in the order of `flat.layout_of`.

    So loading a state is one copy into `flat`, and the difference of two states is one subtraction.
    """

    def __init__(self, model: ModelConfig, device: torch.device | str = "cpu") -> None:
        """The weights are undefined until `initialise` or a copy into `flat`."""
        super().__init__()
        with torch.device("meta"):
            self.embed_tokens = Embedding(model.vocabulary, model.width)
            self.layers = nn.ModuleList(Layer(model) for _ in range(model.num_layers))
            self.norm = nn.RMSNorm(model.width, eps=model.norm_epsilon)
            self.lm_head = Linear(model.width, model.vocabulary, bias=False)
        if model.tied_embeddings:
            self.lm_head.weight = self.embed_tokens.weight
        self.rotary = Rotary(model).to(device)
        self.flat = torch.empty(model.num_parameters, device=device)
        self._bind()
        self._loss_rows = max(1, logits_max_of(self.flat.device.type) // model.vocabulary)
        self.checkpointing = False
        """Whether a layer keeps its input alone for the backward pass, which computes the rest
        again (arXiv 1604.06174)."""

    def _bind(self) -> None:
        """Puts every parameter into its place in `flat`; a tied one stays one."""
        start = 0
        for name, parameter in list(self.named_parameters()):
            view = self.flat[start : start + parameter.numel()].view(parameter.shape)
            path, _, attribute = name.rpartition(".")
            bound = nn.Parameter(view)
            setattr(self.get_submodule(path), attribute, bound)
            if parameter is self.lm_head.weight:
                self.lm_head.weight = bound
            start += parameter.numel()
        assert start == self.flat.numel()

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: (B, T) -> logits: (B, T, V)"""
        logits: Tensor = self.lm_head(self._hidden(tokens))
        return logits

    def _hidden(self, tokens: Tensor) -> Tensor:
        """tokens: (B, T) -> input of the head: (B, T, W)"""
        x = self.embed_tokens(
            tokens
        )  # (B, T, W), fp32 under autocast too: the residual stream stays in it
        for layer in self.layers:
            if self.checkpointing and torch.is_grad_enabled():
                x = checkpoint(layer, x, self.rotary, use_reentrant=False, preserve_rng_state=False)
            else:
                x = layer(x, self.rotary)
        hidden: Tensor = self.norm(x)
        return hidden

    def loss_sum(self, sequences: Tensor) -> Tensor:
        """Cross-entropy in nats, summed over the targets. sequences: (B, T + 1) -> ()"""
        hidden, targets = self._hidden(sequences[:, :-1]), sequences[:, 1:].flatten()
        if len(targets) > self._loss_rows:
            rows = hidden.flatten(0, 1)
            return chunked_loss_sum(rows, self.lm_head.weight, targets, self._loss_rows)
        logits = self.lm_head(hidden).flatten(0, 1)
        return F.cross_entropy(logits.float(), targets, reduction="sum")

    @torch.no_grad()
    def initialise(self, seed: int) -> None:
        """Weights of a seed, the same for the same torch: drawn on the CPU in flat order.

        Norms start at 1. Matrices are normal with standard deviation 0.02, and those that write
        into the residual stream (o_proj, down_proj) with 0.02 / sqrt(2 * layers), so that its
        variance does not grow with depth (GPT-2, section 2.3).
        """
        generator = torch.Generator().manual_seed(seed)
        residual_std = INIT_STD / math.sqrt(2 * len(self.layers))
        for name, parameter in self.named_parameters():
            if parameter.ndim == 1:
                parameter.fill_(1.0)
                continue
            std = residual_std if name.endswith(("o_proj.weight", "down_proj.weight")) else INIT_STD
            parameter.copy_(torch.empty(parameter.shape).normal_(0.0, std, generator=generator))
