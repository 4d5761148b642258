"""The texts that `start` and `join` are given: files, folders and patterns."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from gossamer.node.base.settings.settings import ConfigError
from gossamer.trainer.text.sources.corpus_files import expanded


def texts_of(given: Sequence[str | Path] | None) -> tuple[Path, ...]:
    """Returns files and folders, with patterns replaced by what they match.

    Raises:
        ConfigError: there is no such file.
    """
    if problems := text_problems("--corpus", given):
        raise ConfigError(problems)
    return expanded([Path(path) for path in given or ()])


def text_problems(flag: str, given: Sequence[str | Path] | None) -> list[str]:
    """Returns a sentence for each text of a flag that cannot be read. None: there is no flag."""
    problems = []
    if given is not None and (not given or "" in given):
        problems.append(f"{flag} is given without a file or folder")
    return problems + path_problems(expanded([Path(path) for path in given or () if path]))


def path_problems(paths: Iterable[Path]) -> list[str]:
    """Returns a sentence for each path that cannot be read."""
    problems = []
    for path in paths:
        if not path.exists():
            problems.append(f"{path}: no such file or directory")
        elif not os.access(path, os.R_OK):
            problems.append(f"{path}: you may not read it")
    return problems
