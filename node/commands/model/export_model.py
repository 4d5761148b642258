"""`gossamer export`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from gossamer.node.base.settings.setting_values import parse_size
from gossamer.node.base.settings.settings import ConfigError
from gossamer.node.commands.options import (
    NO_OPTIONS,
    RoundNumber,
    State,
    reading_settings_of,
    value_of,
)
from gossamer.node.runs.results.exporting import ExportOptions, export_state
from gossamer.trainer.export.gguf_export import GGUF_SUFFIX
from gossamer.trainer.export.hugging_face import ExportError

SHARD_BYTES_MIN = 1_000_000
"""Smaller files have more header than is of use to anybody."""


def export(
    directory: Path,
    *,
    dtype: Literal["fp32", "bf16"] = "fp32",
    round_number: RoundNumber = None,
    max_shard_size: str = "5GB",
    gguf: bool = False,
    adapter: bool = False,
    force: bool = False,
    options: State = NO_OPTIONS,
) -> int:
    """Write the newest committed state as a Hugging Face model.

    Parameters
    ----------
    directory
        Folder to write safetensors, configuration, tokenizer and a model card to, as Hugging Face's
        AutoModelForCausalLM reads them; it is created if it does not exist.
    dtype
        Type of the weights: fp32 as they are, or bf16, which rounds them and takes half the space.
    round_number
        Round after which the state is.
    max_shard_size
        Size of a file of weights, such as 5GB. A larger model is cut into several files with an
        index. A GGUF file is always one.
    gguf
        Write one file instead, which llama.cpp and programs built on it read: DIRECTORY itself if
        its name ends in .gguf, else model.gguf in it.
    adapter
        Write only the adapters of a run with model.lora, as a folder that the library PEFT loads.
        Without it they are merged into the weights that they belong to.
    force
        Write also into a folder that has something in it.
    """
    if not force and directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ExportError(
            f"{directory} exists already, and is not an empty folder: name another one, or give "
            "--force to write over the model that lies there"
        )
    if directory.suffix == GGUF_SUFFIX and not gguf:
        raise ConfigError([f"{directory} is named like a GGUF file: give --gguf, or another name"])
    if adapter and gguf:
        raise ConfigError(["--adapter and --gguf exclude each other: a GGUF file is a whole model"])
    how = ExportOptions(
        dtype=dtype, shard_bytes=_shard_bytes(max_shard_size), gguf=gguf, adapter=adapter
    )
    return export_state(reading_settings_of(options), directory, how, round_number)


def _shard_bytes(text: str) -> int:
    with value_of("--max-shard-size"):
        size = parse_size(text)
    if size < SHARD_BYTES_MIN:
        raise ConfigError([f"--max-shard-size is {text}; allowed: from 1MB on"])
    return size
