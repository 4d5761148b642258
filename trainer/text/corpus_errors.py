"""What can be wrong with the text of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

# Mistakes listed in one error; a folder of pictures needs no thousand lines.
PROBLEMS_MAX = 10


class CorpusError(ValueError):
    """A corpus that cannot be used; `problems` holds one sentence a mistake, for people."""

    def __init__(self, problems: Sequence[str]) -> None:
        shown = list(problems[:PROBLEMS_MAX])
        if len(problems) > PROBLEMS_MAX:
            shown.append(f"... and {len(problems) - PROBLEMS_MAX} more of this kind")
        super().__init__("\n".join(shown))
        self.problems = shown


class BadFilesError(CorpusError):
    """Files or lines that cannot be used, in a corpus that could be used without them."""


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
        [f"corpus file {path} changed while it was read; leave it alone and try again"]
    )
