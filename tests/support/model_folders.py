"""Hugging Face folders with small random models, made without `transformers`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from gossamer.protocol.model_config import Family, ModelConfig
from gossamer.protocol.state.parameter_layout import HEAD, layout_of
from gossamer.trainer.pretrained.config import DEFAULTS, model_of_config

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}

CHAT_TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"

END, TURN_END, BEGIN, PAD = "<|endoftext|>", "<|im_end|>", "<|begin|>", "<|pad|>"
SPECIALS = (PAD, END, TURN_END, BEGIN)
"""The end of a text is not token 0, so that no test passes because it is."""

VOCABULARY = 320
"""Rows of the embedding: more than the tokenizer has, as published models have."""

_ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


def config_of_family(family: Family, **changes: Any) -> dict[str, Any]:
    """A `config.json` of a small model of a family."""
    config: dict[str, Any] = {
        "architectures": [DEFAULTS[family].architecture],
        "model_type": family,
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "bos_token_id": None,
        "eos_token_id": 1,
        "pad_token_id": 0,
        "torch_dtype": "float32",
    }
    if family == "mistral":
        config["sliding_window"] = None
    if family == "qwen3":
        config["head_dim"] = 16  # not width / heads
    config |= changes
    return {key: value for key, value in config.items() if value is not ...}


def tokenizer_json(*, begins: bool = False) -> str:
    """A byte-level tokenizer with special tokens in front; with `begins` a text gets a begin."""
    vocabulary = {text: number for number, text in enumerate([*SPECIALS, *_ALPHABET])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIALS))
    if begins:
        template: Any = processors.TemplateProcessing
        tokenizer.post_processor = template(
            single=f"{BEGIN} $A", special_tokens=[(BEGIN, vocabulary[BEGIN])]
        )
    return tokenizer.to_str(pretty=True)


def random_weights(model: ModelConfig, seed: int = 3) -> NDArray[np.float32]:
    """(num_parameters,) of normal values; gains lie around 1, and biases differ from 0."""
    random = np.random.default_rng(seed)
    flat = np.empty(model.num_parameters, np.float32)
    for tensor in layout_of(model):
        is_gain = not tensor.is_matrix and tensor.name.endswith("weight")
        values = random.normal(1.0 if is_gain else 0.0, 0.2, tensor.num_elements)
        flat[tensor.range] = values
    return flat


def write_safetensors(path: Path, tensors: dict[str, NDArray[Any]], **types: str) -> None:
    """One file; a type such as "BF16" by name, where it is not the array's own."""
    names = {"float64": "F64", "float32": "F32", "float16": "F16", "int8": "I8"}
    header: dict[str, Any] = {}
    data = b""
    for name, values in tensors.items():
        raw = values.tobytes()
        header[name] = {
            "dtype": types.get("dtype", names.get(values.dtype.name, "")),
            "shape": values.shape,
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    encoded = json.dumps(header).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)


def tensors_of(model: ModelConfig, flat: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
    """The tensors by the names of the family's class."""
    return {
        tensor.name if tensor.name == HEAD else f"model.{tensor.name}": flat[tensor.range].reshape(
            tensor.shape
        )
        for tensor in layout_of(model)
    }


def make_folder(
    folder: Path,
    config: dict[str, Any],
    *,
    num_files: int = 1,
    seed: int = 3,
    begins: bool = False,
) -> ModelConfig:
    """Writes a whole model folder and returns its shape."""
    folder.mkdir()
    model = model_of_config(config)
    tensors = tensors_of(model, random_weights(model, seed))
    if num_files == 1:
        write_safetensors(folder / "model.safetensors", tensors)
    else:
        names = list(tensors)
        weight_map: dict[str, str] = {}
        for number in range(num_files):
            file = f"model-{number + 1:05}-of-{num_files:05}.safetensors"
            part = names[number::num_files]
            write_safetensors(folder / file, {name: tensors[name] for name in part})
            weight_map |= dict.fromkeys(part, file)
        index = {"metadata": {}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(tokenizer_json(begins=begins))
    flags = dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word"), False)
    pad = {"__type": "AddedToken", "content": PAD, "special": True, **flags}
    special = {"eos_token": END, "pad_token": pad, "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            special
            | {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        )
    )
    (folder / "generation_config.json").write_text(
        json.dumps(
            {"eos_token_id": [1, 2], "pad_token_id": 0, "temperature": 0.6, "do_sample": True}
        )
    )
    return model
