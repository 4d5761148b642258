"""A model as a folder that Hugging Face's `LlamaForCausalLM` and `AutoTokenizer` load. Without
torch."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from gossamer.protocol.manifest import ModelConfig
from gossamer.protocol.state.parameter_layout import HEAD, layout_of


class ExportError(ValueError):
    """A model that could not be written. The message says why."""


def export_model(
    flat_params: NDArray[np.float32],
    model: ModelConfig,
    tokenizer_json: bytes | None,
    directory: Path,
    end_token: int | None = None,
) -> None:
    """Writes model.safetensors (fp32), config.json, generation_config.json, and, with a tokenizer,
    tokenizer.json and tokenizer_config.json. Makes the folder; files of these names are replaced.

    Args:
        flat_params: (num_parameters,) in the order of `flat.layout_of`.
        tokenizer_json: a file of the `tokenizers` library (`byte_tokenizer_json` for plain bytes).
        end_token: the token that ends a document, where generation stops.

    Raises:
        ExportError: the wrong number of parameters, or the folder cannot be written.
    """
    if flat_params.shape != (model.num_parameters,) or flat_params.dtype != np.float32:
        raise ExportError(
            f"{flat_params.size} parameters; the model has {model.num_parameters} of fp32"
        )
    tensors = {
        tensor.name if tensor.name == HEAD else f"model.{tensor.name}": flat_params[
            tensor.range
        ].reshape(tensor.shape)
        for tensor in layout_of(model)
    }
    files = {
        "config.json": _json(config_of(model, end_token)),
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
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            _replace(directory / name, content)
        # Last: a folder with the weights is a folder with everything.
        weights = directory / "model.safetensors"
        temporary = weights.with_name("model.safetensors.new")
        save_file(tensors, temporary, {"format": "pt"})
        os.replace(temporary, weights)
    except OSError as error:
        raise ExportError(
            f"cannot write the model to {directory}: {error.strerror or error}"
        ) from error


def config_of(model: ModelConfig, end_token: int | None = None) -> dict[str, object]:
    """`LlamaConfig` of a model."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": model.vocabulary,
        "hidden_size": model.width,
        "intermediate_size": model.hidden_width,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.width // model.num_heads,
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
        "torch_dtype": "float32",
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
