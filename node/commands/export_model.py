"""`gossamer export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from gossamer.node.commands.options import State, reading_settings_of
from gossamer.node.runs.exporting import export_state
from gossamer.trainer.export import ExportError


def export(
    directory: Path,
    *,
    dtype: Literal["fp32", "bf16"] = "fp32",
    round_number: Annotated[
        int | None, Parameter(name="--round", show_default="the newest on this disk")
    ] = None,
    force: bool = False,
    options: State = None,
) -> int:
    """Write the newest committed state as a Hugging Face model.

    Parameters
    ----------
    directory
        Folder to write safetensors, configuration and tokenizer to, as Hugging Face's
        AutoModelForCausalLM reads them; it is created if it does not exist.
    dtype
        Type of the weights: fp32 as they are, or bf16, which rounds them and takes half the space.
    round_number
        Round after which the state is.
    force
        Write also into a folder that has something in it.
    """
    if not force and directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ExportError(
            f"{directory} exists already, and is not an empty folder: name another one, or give "
            "--force to write over the model that lies there"
        )
    return export_state(reading_settings_of(options), directory, dtype, round_number)
