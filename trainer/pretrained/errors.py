"""The error of a folder with a model that cannot be used."""

from __future__ import annotations


class FolderError(ValueError):
    """A model's folder cannot be used; `problems` holds one sentence a mistake, for people."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems
