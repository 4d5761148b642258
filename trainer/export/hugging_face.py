"""A model as a folder that Hugging Face's `AutoModelForCausalLM` and `AutoTokenizer` load. Without
torch.

A model that began as a folder gets the files back that it had there: the configuration of its own
family, tokenizer, chat template, generation settings, licence. Any other is a `LlamaForCausalLM`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from gossamer.protocol.ids import Digest
from gossamer.protocol.lora import LoraConfig
from gossamer.protocol.model_config import ModelConfig
from gossamer.protocol.state.parameter_layout import layout_of
from gossamer.trainer.export.alone import alone_in
from gossamer.trainer.export.weight_files import (
    SHARD_BYTES,
    ExportType,
    WeightFile,
    index_json,
    plan_files,
    stale_files,
    write_weights,
)
from gossamer.trainer.pretrained.config import model_of_config
from gossamer.trainer.pretrained.errors import FolderError
from gossamer.trainer.pretrained.model_files import ModelFiles
from gossamer.trainer.pretrained.weights import INDEX_NAME

CARD_NAME = "README.md"
ADAPTER_NAME, ADAPTER_CONFIG_NAME = "adapter_model.safetensors", "adapter_config.json"

CARD_MARK = "<!-- Written by gossamer export. Remove this line to keep your own text. -->"

_ADAPTER_CONFIG_BYTES_MAX = 64 * 1024
"""Of an adapters' configuration that is read: ours has some hundred bytes."""

_OF_A_RUN = ("r", "lora_alpha", "target_modules")
_OF_ALL_ADAPTERS: dict[str, object] = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    # The run does not know under which name its founder found the model.
    "base_model_name_or_path": None,
    "lora_dropout": 0.0,
    "bias": "none",
    "fan_in_fan_out": False,
    "modules_to_save": None,
    "use_rslora": False,
    "use_dora": False,
    "inference_mode": True,
}
"""The configuration of adapters besides the values of `_OF_A_RUN`. PEFT writes more keys, so it
also tells that an export wrote it."""

_NEW = ".new"
"""Behind the name of a file that is not complete."""

_TYPE_NAMES = {"fp32": "float32", "bf16": "bfloat16"}
"""The types as configurations and safetensors name them."""


class ExportError(ValueError):
    """A model that could not be written. The message says why."""


def export_model(
    flat_params: NDArray[np.float32],
    model: ModelConfig,
    tokenizer: bytes | ModelFiles | None,
    directory: Path,
    end_token: int | None = None,
    dtype: ExportType = "fp32",
    *,
    shard_bytes: int = SHARD_BYTES,
    card: bytes | None = None,
) -> None:
    """Writes the weights, config.json, generation_config.json, and, with a tokenizer,
    tokenizer.json and tokenizer_config.json; for an imported model instead the files that it came
    with. Makes the folder; files of these names are replaced, and other weights and adapters of an
    earlier export are removed. Until everything is on the disk, the folder stays as it was.

    Args:
        flat_params: (num_parameters,) in the order of `layout_of`.
        tokenizer: a file of the `tokenizers` library (`byte_tokenizer_json` for plain bytes), or
            the files of an imported model.
        end_token: the token that ends a document, where generation stops. An imported model's files
            say it themselves.
        shard_bytes: of the tensors in one file at most.
        card: the content of README.md. A README.md that is there and lacks `CARD_MARK` stays.

    Raises:
        ExportError: the wrong number of parameters, files of another model, or the folder cannot be
            written.
    """
    if flat_params.shape != (model.num_parameters,) or flat_params.dtype != np.float32:
        raise ExportError(
            f"{flat_params.size} parameters; the model has {model.num_parameters} of fp32"
        )
    if isinstance(tokenizer, ModelFiles):
        require_same_model(model, tokenizer)
        files = tokenizer.exported(_TYPE_NAMES[dtype])
    else:
        files = _own_files(model, tokenizer, end_token, dtype)
    try:
        weights = plan_files(model, dtype, shard_bytes)
    except ValueError as error:
        raise ExportError(str(error)) from error
    if card is not None and _may_write_card(directory / CARD_NAME):
        files[CARD_NAME] = card
    if len(weights) > 1:
        files[INDEX_NAME] = index_json(weights, dtype)
    _write_folder("the model", directory, files, weights, flat_params, dtype)


def export_adapter(
    flat_params: NDArray[np.float32],
    model: ModelConfig,
    directory: Path,
    run_id: Digest,
    dtype: ExportType,
) -> None:
    """Writes the adapters of a run as PEFT's `PeftModel.from_pretrained` loads them beside the
    model that they belong to (https://huggingface.co/docs/peft, "PEFT checkpoint format"). Makes
    the folder; files of these names are replaced.

    Args:
        flat_params: (num_parameters,) in the order of `layout_of`.
        run_id: of the run that they are adapters of.

    Raises:
        ExportError: the model has no adapters, the folder has a model that an export of this run
            wrote, or it cannot be written.
    """
    if not (lora := model.lora):
        raise ExportError(
            "this run trains whole weights and has no adapters: export it without --adapter"
        )
    if _has_merged_model(directory, run_id):
        raise ExportError(
            f"{directory} has a model that gossamer export wrote from this run. Programs that load "
            "the folder would apply the adapters to it, in which they are merged already: name "
            "another folder"
        )
    config = _adapter_config(lora)
    weights = [WeightFile(ADAPTER_NAME, layout_of(model))]
    files = {ADAPTER_CONFIG_NAME: _json(config)}
    _write_folder("the adapters", directory, files, weights, flat_params, dtype)


def _adapter_config(lora: LoraConfig) -> dict[str, object]:
    alpha = int(lora.alpha) if lora.alpha.is_integer() else lora.alpha
    return _OF_ALL_ADAPTERS | {
        "r": lora.rank,
        "lora_alpha": alpha,
        "target_modules": list(lora.targets),
    }


def _has_merged_model(directory: Path, run_id: Digest) -> bool:
    """Returns whether an export of a run wrote the model in a folder. A base model, beside which
    adapters may lie, has no card of that run."""
    card = directory / CARD_NAME
    try:
        is_of_run = _has_mark(card) and run_id.hex().encode() in card.read_bytes()
        return is_of_run and bool(stale_files(directory, []))
    except OSError:  # there is no such folder, or no card
        return False


def _stale_adapters(directory: Path) -> list[Path]:
    """Adapters that an export wrote. Programs that load a whole model apply those that lie beside
    it, and a merged model has them already. Others' adapters, told by their configuration, stay."""
    path = directory / ADAPTER_CONFIG_NAME
    try:
        with path.open("rb") as file:
            config = json.loads(file.read(_ADAPTER_CONFIG_BYTES_MAX))
    except (OSError, ValueError, RecursionError):
        return []
    if not isinstance(config, dict):
        return []
    rest = {key: value for key, value in config.items() if key not in _OF_A_RUN}
    if rest != _OF_ALL_ADAPTERS:
        return []
    # The configuration last: with it an export that was interrupted is finished by the next one.
    return [each for each in (directory / ADAPTER_NAME, path) if each.exists()]


def _write_folder(
    what: str,
    directory: Path,
    files: Mapping[str, bytes],
    weights: Sequence[WeightFile],
    flat_params: NDArray[np.float32],
    dtype: ExportType,
) -> None:
    """Writes everything beside what is there, and then puts it in its place. Raises ExportError."""
    try:
        with alone_in(directory):
            _replace_files(directory, files, weights, flat_params, dtype)
    except OSError as error:
        why = error.strerror or error
        raise ExportError(f"cannot write {what} to {directory}: {why}") from error


def _replace_files(
    directory: Path,
    files: Mapping[str, bytes],
    weights: Sequence[WeightFile],
    flat_params: NDArray[np.float32],
    dtype: ExportType,
) -> None:
    # The index and the weights last: a folder with the weights is a folder with everything.
    names = [*sorted(files, key=lambda name: name == INDEX_NAME), *(file.name for file in weights)]
    try:
        for file in weights:
            write_weights(directory / (file.name + _NEW), file.tensors, flat_params, dtype)
        for name, content in files.items():
            (directory / (name + _NEW)).write_bytes(content)
        # A base model beside adapters stays: they belong to it.
        if weights[0].name != ADAPTER_NAME:
            for path in (*stale_files(directory, weights), *_stale_adapters(directory)):
                path.unlink()
        for name in names:
            os.replace(directory / (name + _NEW), directory / name)
    except BaseException:
        # Ctrl-C too: what it left would take the disk, and stand in the way of the next export.
        for name in names:
            with suppress(OSError):
                (directory / (name + _NEW)).unlink(missing_ok=True)
        raise


def _may_write_card(path: Path) -> bool:
    """Returns whether no card is there, or one of an export's that nobody has made their own."""
    try:
        return _has_mark(path)
    except OSError:
        return not path.exists()


def _has_mark(card: Path) -> bool:
    """Returns whether an export wrote a card and nobody has made it their own. Raises OSError."""
    return CARD_MARK.encode() in card.read_bytes()


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


def require_same_model(model: ModelConfig, files: ModelFiles) -> None:
    """Raises ExportError if an imported model's configuration is not that of the run. The founder
    wrote both, and nobody has compared them yet on this machine."""
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
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return (tokenizer.to_str(pretty=True) + "\n").encode()


def _json(value: dict[str, object]) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()
