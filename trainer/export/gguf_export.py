"""A model as one GGUF file, which llama.cpp and the programs built on it read. Without torch.

Names of tensors and of keys are llama.cpp's. Its architectures `qwen2`, `qwen3` and `olmo2` rotate
the halves of a head against each other, as Hugging Face does. Its `llama`, which takes Mistral too,
rotates neighbours, so there the rows of the query and key matrices change places.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gossamer.protocol.model_config import ModelConfig, RopeScaling
from gossamer.protocol.state.parameter_layout import EMBEDDING, HEAD, Tensor, layout_of
from gossamer.trainer.export.alone import alone_in
from gossamer.trainer.export.gguf_file import BF16, F32, GgufTensor, Value, write_gguf
from gossamer.trainer.export.gguf_tokenizer import UnsupportedError, tokenizer_pairs
from gossamer.trainer.export.hugging_face import ExportError, require_same_model
from gossamer.trainer.export.weight_files import ExportType, converted
from gossamer.trainer.pretrained.config import model_of_config
from gossamer.trainer.pretrained.model_files import ModelFiles

GGUF_NAME = "model.gguf"
GGUF_SUFFIX = ".gguf"

ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "olmo2": "olmo2",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
}
"""llama.cpp's name for each family."""

_FILE_TYPES: dict[ExportType, int] = {"fp32": 0, "bf16": 32}
"""What most tensors of a file are, as llama.cpp numbers it."""

_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def export_gguf(
    flat_params: NDArray[np.float32],
    model: ModelConfig,
    tokenizer: bytes | ModelFiles,
    target: Path,
    *,
    name: str,
    end_token: int,
    dtype: ExportType = "fp32",
) -> Path:
    """Writes one file and returns its path. A file that is there is replaced when the new one is
    complete.

    Args:
        flat_params: (num_parameters,) in the order of `layout_of`.
        tokenizer: a file of the `tokenizers` library, or the files of an imported model.
        target: the file, if its name ends in .gguf, else a folder that gets `model.gguf`. Folders
            that do not exist are made.
        name: of the model, for people.
        end_token: the token that ends a text. An imported model's files say it themselves.
        dtype: of matrices; vectors are fp32, as llama.cpp has them.

    Raises:
        ExportError: the tokenizer is none that llama.cpp has, or the file cannot be written.
    """
    files = tokenizer if isinstance(tokenizer, ModelFiles) else None
    context = model.context
    if files is not None:
        require_same_model(model, files)
        context = model_of_config(files.config).context
    tokenizer_json = tokenizer.tokenizer_json if isinstance(tokenizer, ModelFiles) else tokenizer
    try:
        of_tokenizer = tokenizer_pairs(tokenizer_json, model.vocabulary, files, end_token)
    except UnsupportedError as error:
        raise ExportError(
            f"llama.cpp has no such tokenizer: {error}. Export without --gguf"
        ) from error
    pairs = _pairs(model, name, context, dtype) | of_tokenizer
    is_file = target.suffix == GGUF_SUFFIX and not target.is_dir()
    path = target if is_file else target / GGUF_NAME
    temporary = path.with_name(path.name + ".new")
    try:
        with alone_in(path.parent):
            try:
                write_gguf(temporary, pairs, _tensors(flat_params, model, dtype))
                os.replace(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
    except OSError as error:
        raise ExportError(f"cannot write {path}: {error.strerror or error}") from error
    return path


def _pairs(model: ModelConfig, name: str, context: int, dtype: ExportType) -> dict[str, Value]:
    architecture = ARCHITECTURES[model.family]
    shape: dict[str, Value] = {
        "vocab_size": model.vocabulary,
        "context_length": context,
        "embedding_length": model.width,
        "block_count": model.num_layers,
        "feed_forward_length": model.hidden_width,
        "attention.head_count": model.num_heads,
        "attention.head_count_kv": model.num_kv_heads,
        "attention.key_length": model.head_width,
        "attention.value_length": model.head_width,
        "attention.layer_norm_rms_epsilon": float(model.norm_epsilon),
        "rope.dimension_count": model.head_width,
        "rope.freq_base": float(model.rope_theta),
    }
    return {
        "general.architecture": architecture,
        "general.type": "model",
        "general.name": name,
        "general.file_type": _FILE_TYPES[dtype],
        **{f"{architecture}.{key}": value for key, value in shape.items()},
    }


def _tensors(flat: NDArray[np.float32], model: ModelConfig, dtype: ExportType) -> list[GgufTensor]:
    tensors = [_tensor(flat, tensor, model, dtype) for tensor in layout_of(model)]
    if model.tied_embeddings and model.family == "olmo2":
        # Of all these architectures, llama.cpp wants the head of this one for itself.
        (embedding,) = (each for each in layout_of(model) if each.name == EMBEDDING)
        tensors.append(_tensor(flat, embedding, model, dtype, "output.weight"))
    if (scaling := model.rope_scaling) is not None:
        factors = frequency_divisors(model, scaling)
        tensors.append(GgufTensor("rope_freqs.weight", factors.shape, F32, lambda: [factors]))
    return tensors


def _tensor(
    flat: NDArray[np.float32],
    tensor: Tensor,
    model: ModelConfig,
    dtype: ExportType,
    name: str | None = None,
) -> GgufTensor:
    stored: ExportType = dtype if tensor.is_matrix else "fp32"
    heads = _rotated_heads(tensor, model)

    def pieces() -> Iterable[NDArray[Any]]:
        values = flat[tensor.range]
        if heads:
            values = neighbours_from_halves(values.reshape(tensor.shape), heads).ravel()
        return converted(values, stored)

    kind = BF16 if stored == "bf16" else F32
    return GgufTensor(name or _name_of(tensor, model), tensor.shape, kind, pieces)


def _rotated_heads(tensor: Tensor, model: ModelConfig) -> int:
    """Number of heads whose rows change places; 0 for a tensor that stays as it is."""
    if ARCHITECTURES[model.family] != "llama":
        return 0
    if tensor.name.endswith("q_proj.weight"):
        return model.num_heads
    return model.num_kv_heads if tensor.name.endswith("k_proj.weight") else 0


def neighbours_from_halves(rows: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Rows of each head, (heads x D, W): the two that are rotated against each other lay D/2 apart,
    and become neighbours. The same shape, copied."""
    halves = rows.reshape(num_heads, 2, -1, rows.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def _name_of(tensor: Tensor, model: ModelConfig) -> str:
    """llama.cpp's name of a tensor."""
    whole = {EMBEDDING: "token_embd.weight", HEAD: "output.weight"}
    whole["norm.weight"] = "output_norm.weight"
    if tensor.name in whole:
        return whole[tensor.name]
    _, number, rest = tensor.name.split(".", 2)
    part, _, attribute = rest.rpartition(".")
    name = _LAYER_NAMES[part]
    if model.norms_after and part == "post_attention_layernorm":
        name = "post_attention_norm"
    return f"blk.{number}.{name}.{attribute}"


def frequency_divisors(model: ModelConfig, scaling: RopeScaling) -> NDArray[np.float32]:
    """By how much Llama 3.1 divides each rotary frequency: (D/2)."""
    exponents = np.arange(0, model.head_width, 2, dtype=np.float64) / model.head_width
    waves = 2 * math.pi * model.rope_theta**exponents
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    smooth = (scaling.original_context / waves - low) / (high - low)
    between = 1 / ((1 - smooth) / scaling.factor + smooth)
    divisors = np.where(waves > scaling.original_context / low, scaling.factor, between)
    divisors = np.where(waves < scaling.original_context / high, 1.0, divisors)
    return divisors.astype(np.float32)
