"""The model: a Llama-type decoder, with the arithmetic of Hugging Face's `LlamaForCausalLM`.

- RMSNorm before attention and before the MLP, computed in fp32 (arXiv 1910.07467)
- rotary positions, the halves of a head rotated against each other (arXiv 2104.09864, "rotate
  half")
- grouped-query attention (arXiv 2305.13245) through torch's scaled_dot_product_attention
- SwiGLU (arXiv 2002.05202), no biases, optionally one matrix for embedding and head
- what the family of an imported model has beyond that: rotary frequencies for a longer context
  (Llama 3.1), biases of query, key and value (Qwen 2), norms of queries and keys (Qwen 3, OLMo 2),
  norms behind attention and MLP (OLMo 2)
- with `model.lora` adapters beside matrices of the layers (LoRA, arXiv 2106.09685)

Shape letters: B sequences, T tokens of one, W width, H heads, K key/value heads, D width of a head,
F hidden width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gossamer.protocol.lora import LoraConfig, Target
from gossamer.protocol.model_config import ModelConfig, RopeScaling
from gossamer.protocol.shard_index import PROMPT_BIT
from gossamer.protocol.state.parameter_layout import layout_of
from gossamer.trainer.adapters import read_frozen
from gossamer.trainer.chunked_loss import NO_TARGET, chunked_loss_sum
from gossamer.trainer.resources.device import Device, has_grouped_kernel
from gossamer.trainer.resources.memory_estimate import logits_max_of

INIT_STD = 0.02


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
        return super().forward(x) + self._scale * added


def _projection(model: ModelConfig, target: Target, *, bias: bool = False) -> Linear:
    outputs, inputs = model.matrix_shape(target)
    if model.lora and target in model.lora.targets:
        return AdaptedLinear(inputs, outputs, model.lora, bias=bias)
    return Linear(inputs, outputs, bias=bias)


class Embedding(nn.Embedding):
    def reset_parameters(self) -> None:
        """Leaves the weights undefined."""


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
    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = model.num_heads, model.num_kv_heads
        self.head_width = model.head_width
        bias = model.has_query_bias
        self.q_proj = _projection(model, "q_proj", bias=bias)
        self.k_proj = _projection(model, "k_proj", bias=bias)
        self.v_proj = _projection(model, "v_proj", bias=bias)
        self.o_proj = _projection(model, "o_proj")
        self.q_norm: nn.RMSNorm | None = None
        self.k_norm: nn.RMSNorm | None = None
        if (widths := model.query_norm_widths) is not None:
            self.q_norm = nn.RMSNorm(widths[0], eps=model.norm_epsilon)
            self.k_norm = nn.RMSNorm(widths[1], eps=model.norm_epsilon)

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
        if self.num_kv_heads != self.num_heads and not has_grouped_kernel(v.device, v.dtype):
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


def _normed(x: Tensor, norm: nn.RMSNorm | None) -> Tensor:
    """Queries or keys, normalised in fp32 over each group of the norm's width: a head (Qwen 3), or
    all heads together (OLMo 2). (B, T, heads x D) -> the same."""
    if norm is None:
        return x
    groups = x.float().view(*x.shape[:-1], -1, norm.normalized_shape[0])
    normed: Tensor = norm(groups)
    return normed.to(x.dtype).view(x.shape)


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
            self.input_layernorm = nn.RMSNorm(model.width, eps=model.norm_epsilon)
        self.self_attn = Attention(model)
        self.post_attention_layernorm = nn.RMSNorm(model.width, eps=model.norm_epsilon)
        self.mlp = MLP(model)
        if self.norms_after:
            self.post_feedforward_layernorm = nn.RMSNorm(model.width, eps=model.norm_epsilon)

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


class Decoder(nn.Module):
    """The whole model. Its parameters are views into `flat`, in the order of `flat.layout_of`.

    So loading a state is one copy into `flat`, and the difference of two states is one subtraction.
    With `model.lora` the parameters are the adapters. All else is frozen: buffers, which no
    optimiser sees and which have no gradients.
    """

    def __init__(
        self,
        model: ModelConfig,
        device: torch.device | str = "cpu",
        frozen_dtype: torch.dtype = torch.float32,
    ) -> None:
        """The weights are undefined until `initialise` or a copy into `flat`, the frozen ones until
        `load_frozen`.

        Args:
            frozen_dtype: type of frozen matrices; vectors are fp32. Without autocast it is fp32.
        """
        super().__init__()
        self._model = model
        with torch.device("meta"):
            self.embed_tokens = Embedding(model.vocabulary, model.width)
            self.layers = nn.ModuleList(Layer(model) for _ in range(model.num_layers))
            self.norm = nn.RMSNorm(model.width, eps=model.norm_epsilon)
            self.lm_head = Linear(model.width, model.vocabulary, bias=False)
        if model.tied_embeddings:
            self.lm_head.weight = self.embed_tokens.weight
        if model.lora:
            self._freeze(torch.device(device), frozen_dtype)
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

    def _freeze(self, device: torch.device, dtype: torch.dtype) -> None:
        """Makes a buffer of every parameter that is no adapter's."""
        trained = {tensor.name for tensor in layout_of(self._model)}
        is_tied = self._model.tied_embeddings
        for name, parameter in list(self.named_parameters()):
            if name in trained:
                continue
            dtype_here = dtype if parameter.ndim > 1 else torch.float32
            values = torch.empty(parameter.shape, device=device, dtype=dtype_here)
            tied = ["lm_head.weight"] if is_tied and name == "embed_tokens.weight" else []
            for place in (name, *tied):
                path, _, attribute = place.rpartition(".")
                module = self.get_submodule(path)
                delattr(module, attribute)
                module.register_buffer(attribute, values, persistent=False)

    @torch.no_grad()
    def load_frozen(self, pieces: Iterator[NDArray[np.float32]]) -> None:
        """Fills the frozen weights from the flat vector of the whole model, in pieces of any size.

        Raises:
            ValueError: the pieces end early.
        """
        piece = np.empty(0, np.float32)
        for tensor in layout_of(self._model.whole):
            out = self.get_buffer(tensor.name).view(-1)
            while len(out):
                if not len(piece):
                    piece = next(pieces, piece)
                    if not len(piece):
                        raise ValueError(f"the frozen weights end in {tensor.name}")
                size = min(len(out), len(piece))
                out[:size].copy_(torch.from_numpy(piece[:size]))
                out, piece = out[size:], piece[size:]

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: (B, T) -> logits: (B, T, V)"""
        logits: Tensor = self.lm_head(self._hidden(tokens))
        return logits

    def _hidden(self, tokens: Tensor) -> Tensor:
        """tokens: (B, T) -> input of the head: (B, T, W)"""
        # (B, T, W), fp32 under autocast too, and of a frozen embedding in bf16: the residual stream
        # stays in it
        x = self.embed_tokens(tokens).float()
        for layer in self.layers:
            if self.checkpointing and torch.is_grad_enabled():
                x = checkpoint(layer, x, self.rotary, use_reentrant=False, preserve_rng_state=False)
            else:
                x = layer(x, self.rotary)
        hidden: Tensor = self.norm(x)
        return hidden

    def loss_sum(self, sequences: Tensor) -> Tensor:
        """Cross-entropy in nats, summed over the targets. sequences: (B, T + 1) -> ()

        Tokens with `PROMPT_BIT` are read and are no targets.
        """
        hidden = self._hidden(sequences[:, :-1] & (PROMPT_BIT - 1))
        targets = sequences[:, 1:].flatten()
        targets = targets.where(targets < PROMPT_BIT, NO_TARGET)
        if len(targets) > self._loss_rows:
            rows = hidden.flatten(0, 1)
            return chunked_loss_sum(rows, self.lm_head.weight, targets, self._loss_rows)
        logits = self.lm_head(hidden).flatten(0, 1)
        return F.cross_entropy(logits.float(), targets, ignore_index=NO_TARGET, reduction="sum")

    def next_logits(self, tokens: Tensor, past: Sequence[KeyValues]) -> Tensor:
        """Logits of the token behind `tokens`, (B, T) -> (B, V), given those in `past`, one for
        each layer. `past` holds nothing, or T is 1; it gets the tokens as well."""
        x = self.embed_tokens(tokens)
        for layer, of_layer in zip(self.layers, past, strict=True):
            x = layer(x, self.rotary, of_layer)
        logits: Tensor = self.lm_head(self.norm(x[:, -1]))
        return logits

    @torch.no_grad()
    def initialise(self, seed: int) -> None:
        """Weights of a seed, the same for the same torch: drawn on the CPU in flat order.

        Norms start at 1, biases at 0. Matrices are normal with standard deviation 0.02, and those
        that write into the residual stream (o_proj, down_proj) with 0.02 / sqrt(2 * layers), so
        that its variance does not grow with depth (GPT-2, section 2.3).

        Of adapters, B starts at 0, and A is normal (arXiv 2106.09685, section 4.1) with standard
        deviation 1 / sqrt(inputs), so that A x has the size of an element of x.
        """
        generator = torch.Generator().manual_seed(seed)
        residual_std = INIT_STD / math.sqrt(2 * len(self.layers))
        for name, parameter in self.named_parameters():
            if parameter.ndim == 1:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
                continue
            if name.endswith("lora_B.weight"):
                parameter.zero_()
                continue
            if name.endswith("lora_A.weight"):
                std = 1.0 / math.sqrt(parameter.shape[1])
                parameter.copy_(torch.empty(parameter.shape).normal_(0.0, std, generator=generator))
                continue
            std = residual_std if name.endswith(("o_proj.weight", "down_proj.weight")) else INIT_STD
            parameter.copy_(torch.empty(parameter.shape).normal_(0.0, std, generator=generator))


def decoder_on(
    model: ModelConfig,
    device: Device,
    frozen_paths: Sequence[str] = (),
    on_progress: Callable[[], None] = lambda: None,
) -> Decoder:
    """A model on a device, with undefined parameters.

    Args:
        frozen_paths: files with the weights that adapters leave as they are.

    Raises:
        DataError: frozen weights that cannot be used.
    """
    is_half = model.lora and model.lora.weights == "bf16" and device.is_half
    decoder = Decoder(model, device.torch_device, torch.bfloat16 if is_half else torch.float32)
    if frozen_paths and model.lora:
        decoder.load_frozen(read_frozen(frozen_paths, model.lora, on_progress))
    return decoder
