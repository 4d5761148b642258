"""Export of a committed state of a state directory as a Hugging Face model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gossamer.node.base.settings.settings import Settings
from gossamer.node.base.terminal.printable import printable
from gossamer.node.runs.results.credit import read_credits
from gossamer.node.runs.results.model_card import model_card
from gossamer.node.runs.results.reading import StateOnDisk, read_state, warn_if_older
from gossamer.node.storage.owner_files import LossFile
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.errors import MalformedError
from gossamer.trainer.export.gguf_export import export_gguf
from gossamer.trainer.export.hugging_face import (
    ExportError,
    byte_tokenizer_json,
    export_adapter,
    export_model,
)
from gossamer.trainer.export.weight_files import SHARD_BYTES, ExportType
from gossamer.trainer.pretrained.model_files import ModelFiles, unpack_model_files
from gossamer.trainer.text.tokenizers.tokens import END_OF_DOCUMENT


@dataclass(frozen=True)
class ExportOptions:
    """How a model is written."""

    dtype: ExportType = "fp32"
    shard_bytes: int = SHARD_BYTES
    """Of the tensors in one file at most."""
    gguf: bool = False
    """One GGUF file in the place of the folder's other files."""
    adapter: bool = False
    """The adapters alone, as PEFT loads them."""


def export_state(
    settings: Settings,
    directory: Path,
    options: ExportOptions,
    round_number: int | None,
) -> int:
    """Writes the model to `directory` and returns the exit status.

    Args:
        round_number: after which the state is; None: the newest.

    Raises:
        StateDirError: there is no run, or the disk has too little to rebuild a state.
        ExportError: the folder cannot be written.
    """
    state = read_state(settings, round_number, adapters_alone=options.adapter)
    warn_if_older(state)
    if options.adapter:
        run_id = state.manifest.run_id
        export_adapter(state.parameters, state.model, directory, run_id, options.dtype)
    elif options.gguf:
        export_gguf(
            state.parameters,
            state.model,
            _tokenizer_of(state),
            directory,
            name=printable(state.manifest.name),
            end_token=END_OF_DOCUMENT,
            dtype=options.dtype,
        )
    else:
        export_model(
            state.parameters,
            state.model,
            _tokenizer_of(state),
            directory,
            end_token=END_OF_DOCUMENT,
            dtype=options.dtype,
            shard_bytes=options.shard_bytes,
            card=_card_of(settings, state, options.dtype),
        )
    entry = state.entry
    print(
        f"round {entry.round}, head {entry.head.hex()[:16]}, state "
        f"{entry.state_digest.hex()[:16]} written to {printable(str(directory))}"
    )
    return 0


def _card_of(settings: Settings, state: StateOnDisk, dtype: ExportType) -> bytes:
    state_dir = StateDir(settings.state_dir)
    credits = read_credits(state_dir, at=state.entry.head)
    history, _ = LossFile(state_dir.losses_path, state.manifest.run_id).load()
    return model_card(credits, state.entry.state_digest, history.points(), dtype)


def _tokenizer_of(state: StateOnDisk) -> bytes | ModelFiles:
    """The tokenizer's file, or all small files of an imported model.

    Raises:
        ExportError: the run's block with them is not one.
    """
    if state.tokenizer is None:
        return byte_tokenizer_json()
    if state.manifest.data.tokenizer != "files":
        return state.tokenizer
    try:
        return unpack_model_files(state.tokenizer)
    except MalformedError as error:
        raise ExportError(f"the run has a configuration that cannot be used: {error}") from error
