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
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gossamer.protocol.model_config import ModelConfig
from gossamer.protocol.shard_index import PROMPT_BIT
from gossamer.protocol.state.parameter_layout import layout_of
from gossamer.trainer.adapters import read_frozen
from gossamer.trainer.chunked_loss import NO_TARGET, LossOfProducts, chunked_loss_sum
from gossamer.trainer.layers import Embedding, KeyValues, Layer, Linear, RMSNorm, Rotary, run_layer
from gossamer.trainer.resources.device import Device, grouped_dtypes_of
from gossamer.trainer.resources.memory_estimate import logits_max_of

INIT_STD = 0.02


class CompiledParts(NamedTuple):
    """The parts of a training pass that were compiled, for one shape of it."""

    shape: tuple[int, int, int]
    """(B, T, W) of a layer's input."""
    layer: Callable[[nn.Module, Tensor, Rotary], Tensor]
    """As `run_layer`."""
    loss: LossOfProducts
    """As `fused_loss`, for chunks of `Decoder.loss_rows`."""


class Decoder(nn.Module):
    """The whole model. Its parameters are views into `flat`, in the order of `layout_of`.

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
            self.norm = RMSNorm(model.width, eps=model.norm_epsilon)
            self.lm_head = Linear(model.width, model.vocabulary, bias=False)
        if model.tied_embeddings:
            self.lm_head.weight = self.embed_tokens.weight
        if model.lora:
            self._freeze(torch.device(device), frozen_dtype)
        self.rotary = Rotary(model).to(device)
        self.flat = torch.empty(model.num_parameters, device=device)
        self._bind()
        self.loss_rows = max(1, logits_max_of(self.flat.device.type) // model.vocabulary)
        """Tokens whose logits exist at once."""
        for layer in self.layers:
            assert isinstance(layer, Layer)
            layer.self_attn.grouped_dtypes = grouped_dtypes_of(self.flat.device)
        self.checkpointing = False
        """Whether the backward pass computes again what is in a layer (arXiv 1604.06174)."""
        self.residual_dtype = torch.float32
        """Type of the sums between the layers, under autocast and with a frozen embedding too."""
        self.compiled: CompiledParts | None = None
        """Taken for the passes that they were compiled for."""

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
        x = self.embed_tokens(tokens).to(self.residual_dtype)  # (B, T, W)
        for layer in self.layers:
            compiled = self._compiled_for(x)
            run = run_layer if compiled is None else compiled.layer
            if self.checkpointing and torch.is_grad_enabled():
                rotary = self.rotary
                x = checkpoint(run, layer, x, rotary, use_reentrant=False, preserve_rng_state=False)
            else:
                x = run(layer, x, self.rotary)
        hidden: Tensor = self.norm(x)
        return hidden

    def _compiled_for(self, x: Tensor) -> CompiledParts | None:
        """The compiled parts, if they are for a layer with that input, (B, T, W)."""
        compiled = self.compiled
        # Without gradients, and where the input is frozen, the compiler would begin anew. With
        # adapters the input of the first layer is, and those of the others are not.
        is_for_it = compiled is not None and x.requires_grad and x.shape == compiled.shape
        return compiled if is_for_it else None

    def loss_sum(self, sequences: Tensor) -> Tensor:
        """Cross-entropy in nats, summed over the targets. sequences: (B, T + 1) -> ()

        Tokens with `PROMPT_BIT` are read and are no targets.
        """
        hidden = self._hidden(sequences[:, :-1] & (PROMPT_BIT - 1))
        targets = sequences[:, 1:].flatten()
        targets = targets.where(targets < PROMPT_BIT, NO_TARGET)
        if len(targets) > self.loss_rows:
            rows, weight = hidden.flatten(0, 1), self.lm_head.weight
            compiled = self.compiled
            loss_of = compiled.loss if compiled is not None and rows.requires_grad else None
            return chunked_loss_sum(rows, weight, targets, self.loss_rows, loss_of)
        logits = self.lm_head(hidden).flatten(0, 1)
        return F.cross_entropy(logits.float(), targets, ignore_index=NO_TARGET, reduction="sum")

    def next_logits(self, tokens: Tensor, past: Sequence[KeyValues]) -> Tensor:
        """Logits of the token behind `tokens`, (B, T) -> (B, V), given those in `past`, one for
        each layer. `past` holds nothing, or T is 1; it gets the tokens as well."""
        x = self.embed_tokens(tokens).to(self.residual_dtype)
        for layer, of_layer in zip(self.layers, past, strict=True):
            x = layer(x, self.rotary, of_layer)
        logits: Tensor = self.lm_head(self.norm(x[:, -1]))
        return logits

    @torch.no_grad()
    def initialise(self, seed: int) -> None:
        """Weights of a seed, the same for the same torch: drawn on the CPU in flat order.

        Norms start at 1, biases at 0. Matrices are normal with standard deviation 0.02, divided by
        sqrt(2 * layers) where they write into the residual stream (o_proj, down_proj), so that its
        variance does not grow with depth (GPT-2, section 2.3).

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
            std = INIT_STD
            if name.endswith("lora_A.weight"):
                std = 1.0 / math.sqrt(parameter.shape[1])
            elif name.endswith(("o_proj.weight", "down_proj.weight")):
                std = residual_std
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
    decoder.residual_dtype = device.residual_dtype
    if frozen_paths and model.lora:
        decoder.load_frozen(read_frozen(frozen_paths, model.lora, on_progress))
    return decoder
