"""The error of a folder with a model that cannot be used."""

from __future__ import annotations

from pathlib import Path


class FolderError(ValueError):
    """A model's folder cannot be used; `problems` holds one sentence a mistake, for people."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)

    def of(self, folder: Path) -> FolderError:
        """Returns the error with the folder's name before each sentence."""
        return FolderError(*(f"{folder}: {problem}" for problem in self.problems))
