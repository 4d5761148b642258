"""The errors in the text of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

# Mistakes listed in one error; a folder of pictures needs no thousand lines.
PROBLEMS_MAX = 10


class CorpusError(ValueError):
    """A corpus that cannot be used; `problems` holds one sentence a mistake, for people."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


def first_of(problems: Sequence[str]) -> list[str]:
    """Returns the first of some sentences, and how many there are besides."""
    more = len(problems) - PROBLEMS_MAX
    last = [f"... and {more} more of this kind"] if more > 0 else []
    return [*problems[:PROBLEMS_MAX], *last]


class NoTextError(CorpusError):
    """There is no text, or none that may be used."""


class BadFilesError(CorpusError):
    """Files or lines that cannot be used, in a corpus that could be used without them."""


@dataclass
class Skipped:
    """What is left out of a corpus because it cannot be used, where the founder asked for that."""

    files: int = 0
    lines: int = 0
    """Lines of JSON lines, and rows of tables."""
    first: list[str] = field(default_factory=list)
    """Sentences about the first ones, `PROBLEMS_MAX` at most."""

    def file(self, problem: str) -> None:
        self.files += 1
        self._keep(problem)

    def line(self, problem: str) -> None:
        self.lines += 1
        self._keep(problem)

    def summary(self) -> list[str]:
        """Returns what to tell people: a count, and the first ones; nothing if all is used."""
        if not self.files and not self.lines:
            return []
        return [
            f"left out of the corpus because they cannot be used: files {self.files:,}, "
            f"lines {self.lines:,}; the first of them:",
            *self.first,
        ]

    def _keep(self, problem: str) -> None:
        if len(self.first) < PROBLEMS_MAX:
            self.first.append(problem)


class BadDocumentError(Exception):
    """The fault of a document; the text continues the sentence that begins with the file's name."""


def reason_of(error: OSError) -> str:
    """Returns what the system says about a file, in lower case."""
    return (error.strerror or str(error)).lower()


def unreadable(path: Path, error: OSError) -> str:
    """Returns the sentence about a file that cannot be read."""
    return f"corpus file {path}: {reason_of(error)}; make it readable or leave it out"


def changed(path: Path) -> CorpusError:
    """Returns the error about a file that is no longer what it was when it was scanned."""
    return CorpusError(
        f"corpus file {path} changed while it was read; leave it alone and try again"
    )
