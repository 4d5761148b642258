"""Finding the files of a corpus.

A folder is walked in sorted order; hidden files and folders (``.git``) and links to folders are
passed over, empty files too, also those that a pattern finds. Of a folder that `datasets` saved
(`save_to_disk`) only the tables that it names are taken, and not what lies beside them. A path with
``*``, ``?`` or ``[`` that does not exist is a pattern.
"""

from __future__ import annotations

import glob
import os
import stat
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from gossamer.protocol.limits import MIB
from gossamer.trainer.text.sources.corpus_errors import (
    BadFilesError,
    CorpusError,
    Skipped,
    first_of,
    reason_of,
)

# The default corpus leaves out the standard library's tests unless it would be smaller than this.
DEFAULT_CORPUS_BYTES_MIN = 4 * MIB

_STATE_NAME, _SPLITS_NAME = "state.json", "dataset_dict.json"
"""Files of `datasets` that say which tables belong to a dataset, and which splits there are."""

_TEST_FOLDERS = frozenset({"test", "tests", "idle_test"})
_INSTALLED_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__"})


_T = TypeVar("_T")


class _SavedTable(msgspec.Struct):
    filename: str


class _SavedState(msgspec.Struct):
    """What counts of a `state.json`."""

    tables: list[_SavedTable] = msgspec.field(name="_data_files")
    indices: list[msgspec.Raw] | None = msgspec.field(name="_indices_data_files", default=None)


class _SavedSplits(msgspec.Struct):
    """A `dataset_dict.json`."""

    splits: list[str]


def expanded(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Returns the paths with each pattern replaced by what it matches, in sorted order.

    A shell expands patterns, but a manifest, a unit file and quotes do not. A path that exists is
    no pattern, and a pattern that matches nothing stays as it is. Empty files are left out, unless
    it matches nothing else.
    """
    found: list[Path] = []
    for path in paths:
        path = path.expanduser()
        names = []
        if glob.has_magic(str(path)) and not os.path.exists(path):
            matches = sorted(glob.glob(str(path), recursive=True))
            names = [name for name in matches if not _is_empty(name)] or matches
        found += [Path(name) for name in names] or [path]
    return tuple(found)


def _is_empty(name: str) -> bool:
    """Whether a file is there and has nothing in it."""
    try:
        return os.path.isfile(name) and os.path.getsize(name) == 0
    except OSError:
        return False


def find_files(paths: Sequence[Path], skipped: Skipped | None = None) -> list[Path]:
    """Every corpus file that the paths name, in a fixed order, none twice.

    Args:
        skipped: notes what is unreadable or empty and left out; None: nothing may be.

    Raises:
        BadFilesError: a path that is unreadable or empty.
        CorpusError: a path that is missing, or has nothing to use.
    """
    found: dict[Path, None] = {}
    problems: list[str] = []
    bad: set[str] = set()
    """Those of the problems that may be left out."""
    for path in expanded(paths):
        try:
            mode = path.stat().st_mode
        except OSError as error:
            problems.append(
                f"corpus {path}: {reason_of(error)}; check the spelling, and that you may read it"
            )
            continue
        if stat.S_ISDIR(mode):
            bad_here: list[str] = []
            files = _walk(path, bad_here)
            bad.update(bad_here)
            problems += bad_here
            if not files:
                problems.append(f"corpus folder {path} has no file with text in it; name another")
            found.update(dict.fromkeys(file.resolve() for file in files))
        elif not stat.S_ISREG(mode):
            problems.append(f"corpus {path} is neither a file nor a folder; copy it into a file")
        elif path.stat().st_size == 0:
            problems.append(f"corpus file {path} is empty; leave it out or name another")
            bad.add(problems[-1])
        else:
            found[path.resolve()] = None
    serious = [problem for problem in problems if problem not in bad]
    if skipped is None and problems:
        raise (CorpusError if serious else BadFilesError)(*first_of(problems))
    if serious:
        raise CorpusError(*first_of(serious))
    if skipped is not None:
        for problem in problems:
            skipped.file(problem)
    return list(found)


def default_files(root: Path | None = None) -> list[Path]:
    """The sources of this machine's Python standard library (``*.py``, UTF-8), without installed
    packages, and without the library's tests where the rest is big enough.

    Raises:
        CorpusError: this Python has no sources on disk.
    """
    folder = Path(sysconfig.get_path("stdlib")) if root is None else root
    sources: list[Path] = []
    tests: list[Path] = []
    problems: list[str] = []
    for path in _walk(folder, problems, _INSTALLED_FOLDERS):
        if path.suffix == ".py" and _is_text(path):
            inside = set(path.relative_to(folder).parts[:-1])
            (tests if inside & _TEST_FOLDERS else sources).append(path)
    if sum(path.stat().st_size for path in sources) < DEFAULT_CORPUS_BYTES_MIN:
        sources += tests
    if not sources:
        raise CorpusError(
            f"this Python has no library sources in {folder}; name a corpus with --corpus PATH"
        )
    return sources


def _walk(folder: Path, problems: list[str], without: frozenset[str] = frozenset()) -> list[Path]:
    """Regular, visible, non-empty files below a folder, sorted folder by folder."""

    def unreadable(error: OSError) -> None:
        problems.append(
            f"corpus folder {error.filename}: {reason_of(error)}; make it readable or leave it out"
        )

    files: list[Path] = []
    for place, folders, names in os.walk(folder, onerror=unreadable):
        if (tables := saved_tables(Path(place), names)) is not None:
            folders.clear()
            files += [path for path in tables if _is_there(path, problems)]
            continue
        is_saved = has_one_split(Path(place), names)
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and name not in without
        )
        for name in sorted(names):
            path = Path(place, name)
            if name.startswith(".") or (name == _SPLITS_NAME and is_saved):
                continue
            try:
                status = path.stat()
            except OSError as error:
                problems.append(
                    f"corpus file {path}: {reason_of(error)}; "
                    "remove it from the folder or repair it"
                )
                continue
            if stat.S_ISREG(status.st_mode) and status.st_size:
                files.append(path)
    return files


def saved_tables(folder: Path, names: Sequence[str]) -> list[Path] | None:
    """Returns the tables of a dataset that `datasets` saved in a folder, in its own order; None for
    any other folder.

    Args:
        names: of the files in the folder.

    Raises:
        CorpusError: an old version of `datasets` saved it with a list of rows besides.
    """
    if _STATE_NAME not in names:
        return None
    state = _decoded(folder / _STATE_NAME, _SavedState)
    if state is None:
        return None
    if state.indices:
        raise CorpusError(
            f"corpus folder {folder} has a list of rows beside its tables, as old versions of "
            "`datasets` save a selection: load it, call flatten_indices() and save it again"
        )
    # A name with a folder in it would lead out of this one.
    return [folder / Path(table.filename).name for table in state.tables]


def has_one_split(folder: Path, names: Sequence[str]) -> bool:
    """Returns whether a folder has the only split of a saved dataset.

    Raises:
        CorpusError: it has several: to train on the split for tests is hardly meant.
    """
    if _SPLITS_NAME not in names:
        return False
    saved = _decoded(folder / _SPLITS_NAME, _SavedSplits)
    if saved is None:
        return False
    splits = saved.splits
    if len(splits) > 1:
        raise CorpusError(
            f"corpus folder {folder} has several splits ({', '.join(splits[:8])}); name those "
            f"to train on, such as {folder / splits[0]}"
        )
    return True


def _decoded(path: Path, kind: type[_T]) -> _T | None:
    """Returns a file of `datasets`; None if it is another program's."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _is_there(path: Path, problems: list[str]) -> bool:
    """Returns whether a table of a saved dataset can be looked at, and notes why not."""
    try:
        return path.stat().st_size > 0
    except OSError as error:
        problems.append(
            f"corpus file {path}: {reason_of(error)}; the dataset's {_STATE_NAME} names it: save "
            "the dataset again, or leave it out"
        )
        return False


def _is_text(path: Path) -> bool:
    try:
        data = path.read_bytes()
        data.decode()
    except (OSError, UnicodeDecodeError):
        return False
    return b"\0" not in data
