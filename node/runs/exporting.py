"""Export of a committed state of a state directory as a Hugging Face model."""

from __future__ import annotations

from pathlib import Path

from gossamer.node.base.settings import Settings
from gossamer.node.base.terminal import open_console
from gossamer.node.runs.reading import StateOnDisk, read_state, warn_if_older
from gossamer.protocol.errors import MalformedError
from gossamer.trainer.export import ExportError, ExportType, byte_tokenizer_json, export_model
from gossamer.trainer.pretrained.model_files import ModelFiles, unpack_model_files
from gossamer.trainer.text.tokens import END_OF_DOCUMENT


def export_state(
    settings: Settings,
    directory: Path,
    dtype: ExportType = "fp32",
    round_number: int | None = None,
) -> int:
    """Writes the model to `directory` and returns the exit status.

    Args:
        round_number: after which the state is; None: the newest.

    Raises:
        StateDirError: there is no run, or the disk has too little to rebuild a state.
        ExportError: the folder cannot be written.
    """
    state = read_state(settings, round_number)
    warn_if_older(state)
    export_model(
        state.parameters,
        state.manifest.model,
        _tokenizer_of(state),
        directory,
        end_token=END_OF_DOCUMENT,
        dtype=dtype,
    )
    entry = state.entry
    open_console().print(
        f"round {entry.round}, head {entry.head.hex()[:16]}, state "
        f"{entry.state_digest.hex()[:16]} written to {directory}"
    )
    return 0


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
