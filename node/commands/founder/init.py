"""`gossamer init`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from gossamer.node.commands.founder.founding_options import PRESET_HELP
from gossamer.node.runs.planning.draft import draft_of_preset
from gossamer.node.runs.planning.manifest_file import write_manifest_file
from gossamer.trainer.presets.table import DEFAULT_PRESET

DEFAULT_FILE = Path("run.toml")


def init(
    path: Path = DEFAULT_FILE,
    *,
    preset: Annotated[
        str, Parameter(help=f"Model and settings to begin with: {PRESET_HELP}.")
    ] = DEFAULT_PRESET,
) -> int:
    """Write a commented manifest to edit.

    Parameters
    ----------
    path
        The file to write; it must not exist.
    """
    write_manifest_file(path, draft_of_preset(preset), preset=preset)
    print(f"Wrote {path}. Edit it, then: gossamer start --manifest {path}")
    return 0
