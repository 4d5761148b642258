"""A model as a folder that Hugging Face's `AutoModelForCausalLM` and `AutoTokenizer` load. Without
torch.

A model that began as a folder gets the files back that it had there: the configuration of its own
family, tokenizer, chat template, generation settings, licence. Any other is a `LlamaForCausalLM`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from gossamer.protocol.manifest import ModelConfig
from gossamer.protocol.state.parameter_layout import HEAD, layout_of
from gossamer.trainer.pretrained.config import model_of_config
from gossamer.trainer.pretrained.errors import FolderError
from gossamer.trainer.pretrained.model_files import ModelFiles

ExportType = Literal["fp32", "bf16"]

_TYPE_NAMES = {"fp32": "float32", "bf16": "bfloat16"}
"""The types as configurations and safetensors name them."""


_ALIGNMENT = 8
"""Of the tensors' first byte, which the format recommends for readers that map the file."""

_PIECE = 2**22
"""Values that are rounded at a time: the copies of more would take memory for nothing."""


class ExportError(ValueError):
    """A model that could not be written. The message says why."""


def export_model(
    flat_params: NDArray[np.float32],
    model: ModelConfig,
    tokenizer: bytes | ModelFiles | None,
    directory: Path,
    end_token: int | None = None,
    dtype: ExportType = "fp32",
) -> None:
    """Writes model.safetensors, config.json, generation_config.json, and, with a tokenizer,
    tokenizer.json and tokenizer_config.json; for an imported model instead the files that it came
    with. Makes the folder; files of these names are replaced.

    Args:
        flat_params: (num_parameters,) in the order of `flat.layout_of`.
        tokenizer: a file of the `tokenizers` library (`byte_tokenizer_json` for plain bytes), or
            the files of an imported model.
        end_token: the token that ends a document, where generation stops. An imported model's files
            say it themselves.

    Raises:
        ExportError: the wrong number of parameters, files of another model, or the folder cannot be
            written.
    """
    if flat_params.shape != (model.num_parameters,) or flat_params.dtype != np.float32:
        raise ExportError(
            f"{flat_params.size} parameters; the model has {model.num_parameters} of fp32"
        )
    if isinstance(tokenizer, ModelFiles):
        _require_same_model(model, tokenizer)
        files = tokenizer.exported(_TYPE_NAMES[dtype])
    else:
        files = _own_files(model, tokenizer, end_token, dtype)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            _replace(directory / name, content)
        # Last: a folder with the weights is a folder with everything.
        weights = directory / "model.safetensors"
        temporary = weights.with_name("model.safetensors.new")
        _save_weights(flat_params, model, temporary, dtype)
        os.replace(temporary, weights)
    except OSError as error:
        raise ExportError(
            f"cannot write the model to {directory}: {error.strerror or error}"
        ) from error


def _own_files(
    model: ModelConfig, tokenizer_json: bytes | None, end_token: int | None, dtype: ExportType
) -> dict[str, bytes]:
    """The files beside the weights of a model that began with a seed."""
    files = {
        "config.json": _json(config_of(model, end_token, dtype)),
        "generation_config.json": _json({"bos_token_id": None, "eos_token_id": end_token}),
    }
    if tokenizer_json is not None:
        files["tokenizer.json"] = tokenizer_json
        files["tokenizer_config.json"] = _json(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "model_max_length": model.context,
                "clean_up_tokenization_spaces": False,
            }
        )
    return files


def _require_same_model(model: ModelConfig, files: ModelFiles) -> None:
    """The founder wrote both, and nobody has compared them yet on this machine."""
    try:
        theirs = model_of_config(files.config)
    except FolderError as error:
        raise ExportError(f"the run has a configuration that cannot be used: {error}") from error
    # A run may train on shorter sequences than the model was made for.
    if msgspec.structs.replace(theirs, context=model.context) != model:
        raise ExportError(
            "the run's configuration is of another model than the one that it trains: its founder "
            "made a mistake, and an export would compute something else"
        )


def _save_weights(
    flat_params: NDArray[np.float32], model: ModelConfig, path: Path, dtype: ExportType
) -> None:
    """Writes a safetensors file (`trainer.pretrained.weights` has the format): the flat vector is
    its data as it is, since it holds the tensors one after the other."""
    stored = _to_bf16(flat_params) if dtype == "bf16" else flat_params.astype("<f4", copy=False)
    item_bytes = stored.itemsize
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    for tensor in layout_of(model):
        name = tensor.name if tensor.name == HEAD else f"model.{tensor.name}"
        places = [tensor.range.start * item_bytes, tensor.range.stop * item_bytes]
        stored_type = {"fp32": "F32", "bf16": "BF16"}[dtype]
        header[name] = {"dtype": stored_type, "shape": tensor.shape, "data_offsets": places}
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % _ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        file.write(stored.data)


def _to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The upper halves of finite fp32 values, rounded to the nearest, ties to even. (n,) -> (n,)"""
    result = np.empty(len(values), dtype="<u2")
    for start in range(0, len(values), _PIECE):
        bits = values[start : start + _PIECE].view(np.uint32)
        rounding = 0x7FFF + ((bits >> 16) & 1)
        result[start : start + _PIECE] = (bits + rounding) >> 16
    return result


def config_of(
    model: ModelConfig, end_token: int | None = None, dtype: ExportType = "fp32"
) -> dict[str, object]:
    """`LlamaConfig` of a model that began with a seed."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": model.vocabulary,
        "hidden_size": model.width,
        "intermediate_size": model.hidden_width,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_width,
        "max_position_embeddings": model.context,
        "rms_norm_eps": model.norm_epsilon,
        # transformers 5 reads the second, 4 the first.
        "rope_theta": model.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_theta},
        "tie_word_embeddings": model.tied_embeddings,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": end_token,
        "torch_dtype": _TYPE_NAMES[dtype],
    }


def byte_tokenizer_json() -> bytes:
    """A file of the `tokenizers` library for runs on plain bytes: token n is byte n.

    Byte-level BPE without merges. Its alphabet is GPT-2's: a printable Latin-1 character stands for
    its own byte, the other bytes take the characters from U+0100 on, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    vocabulary = {
        chr(byte) if byte in printable else chr(256 + others.index(byte)): byte
        for byte in range(256)
    }
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    return _json(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [],
            "normalizer": None,
            "pre_tokenizer": byte_level | {"use_regex": False},
            "post_processor": None,
            "decoder": byte_level | {"use_regex": False},
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "vocab": vocabulary,
                "merges": [],
            },
        }
    )


def _json(value: dict[str, object]) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(path.name + ".new")
    temporary.write_bytes(content)
    os.replace(temporary, path)
