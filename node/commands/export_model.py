"""`gossamer export`."""

from __future__ import annotations

from pathlib import Path

from gossamer.node.commands.options import State, settings_of
from gossamer.node.runs.exporting import export_state


def export(directory: Path, *, options: State = None) -> int:
    """Write the newest committed state as a Hugging Face model.

    Parameters
    ----------
    directory
        Folder to write safetensors, configuration and tokenizer to, as LlamaForCausalLM reads them;
        it is created if it does not exist.
    """
    return export_state(settings_of(options), directory)
