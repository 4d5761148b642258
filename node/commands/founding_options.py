"""What the commands that need a run's choices have in common: `start`, `plan` and `init`.

They load the presets and the corpus code, which the commands of a running node do without.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from gossamer.node.base.settings import ConfigError
from gossamer.trainer.presets import PRESETS
from gossamer.trainer.text.corpus_files import expanded


def _millions(preset: str) -> str:
    millions = PRESETS[preset].model.num_parameters / 1e6
    return f"{millions:.1f} M" if millions < 10 else f"{millions:,.0f} M"


PRESET_HELP = ", ".join(
    f"{name} ({_millions(name)}{'' if place else ' parameters'})"
    for place, name in enumerate(PRESETS)
)
"""The presets with their numbers of parameters: the names are those of the literature."""


def check_founding_options(
    manifest: Path | None,
    preset: str | None,
    corpus: Sequence[str | Path] | None = None,
    init_from: Path | None = None,
    optimizer: str | None = None,
) -> None:
    """Checks the options that a run is founded with, before anything is read or started.

    Raises:
        ConfigError: options that exclude each other, or files that cannot be read.
    """
    problems = []
    if manifest is not None and preset is not None:
        problems.append("--manifest and --preset exclude each other: a manifest says everything")
    if manifest is not None and optimizer is not None:
        problems.append(
            "--manifest and --optimizer exclude each other: write optimizer in the manifest's "
            "[inner]"
        )
    if corpus is not None and (not corpus or "" in corpus):
        problems.append("--corpus is given without a file or folder")
    texts = expanded([Path(path) for path in corpus or () if path])
    for path in filter(None, (manifest, init_from, *texts)):
        if not path.exists():
            problems.append(f"{path}: no such file or directory")
        elif not os.access(path, os.R_OK):
            problems.append(f"{path}: you may not read it")
    if problems:
        raise ConfigError(problems)
