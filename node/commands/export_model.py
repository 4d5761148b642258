"""`gossamer export`."""

from __future__ import annotations

from pathlib import Path

from gossamer.node.commands.options import State, settings_of
from gossamer.node.runs.exporting import export_state
from gossamer.trainer.export import ExportError


def export(directory: Path, *, force: bool = False, options: State = None) -> int:
    """Write the newest committed state as a Hugging Face model.

    Parameters
    ----------
    directory
        Folder to write safetensors, configuration and tokenizer to, as LlamaForCausalLM reads them;
        it is created if it does not exist.
    force
        Write also into a folder that has something in it.
    """
    if not force and directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ExportError(
            f"{directory} exists already, and is not an empty folder: name another one, or give "
            "--force to write over the model that lies there"
        )
    return export_state(settings_of(options), directory)
