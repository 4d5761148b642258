"""The text of a run: finding files, cutting them into documents, reading those in any order.

- A folder is walked in sorted order; hidden files and folders (``.git``) and links to folders are
  passed over, empty files too.
- ``.jsonl`` and ``.ndjson`` hold one JSON object a line, whose text field is one document. Every
  other file is UTF-8 text: one document, or several where it is long, cut at ends of lines.
- Text never contains byte 0, so that plain bytes can end a document with it.
- `scan_corpus` reads everything once and keeps 28 bytes a document, not the text. A document's
  `key` is a hash of the seed and of its text: sorted by key, documents are in random order, and
  neither the files' names nor their order on the command line play a part. Equal documents have
  equal keys and are neighbours, so a copy can never be on both sides of the held-out split.
"""

from __future__ import annotations

import os
import stat
import sysconfig
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt
from blake3 import blake3

from gossamer.protocol.limits import KIB, MIB

Progress = Callable[[str, int, int], None]
"""Called with (what is being done, bytes done, bytes in all)."""

IntVector = npt.NDArray[np.int64]

JSON_LINES_SUFFIXES = (".jsonl", ".ndjson")
DEFAULT_TEXT_FIELD = "text"

# A long text file is cut into documents of this size: what is held in memory at a time.
DOCUMENT_BYTES_MAX = MIB
# A corpus of a few long files is cut finer, so that a small part of it can be held out.
DOCUMENTS_WANTED = 128
DOCUMENT_BYTES_MIN = 4 * KIB
# One JSON line is one document and is read whole.
LINE_BYTES_MAX = 16 * MIB
# Mistakes listed in one error; a folder of pictures needs no thousand lines.
PROBLEMS_MAX = 10
# Handles kept while documents are read in random order; far below any system's limit.
OPEN_FILES_MAX = 32
# The default corpus leaves out the standard library's tests unless it would be smaller than this.
DEFAULT_CORPUS_BYTES_MIN = 4 * MIB

_TEST_FOLDERS = frozenset({"test", "tests", "idle_test"})
_INSTALLED_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__"})
_KEY_CONTEXT = b"gossamer corpus order 1:"


class CorpusError(ValueError):
    """A corpus that cannot be used; `problems` holds one sentence a mistake, for people."""

    def __init__(self, problems: Sequence[str]) -> None:
        shown = list(problems[:PROBLEMS_MAX])
        if len(problems) > PROBLEMS_MAX:
            shown.append(f"... and {len(problems) - PROBLEMS_MAX} more of this kind")
        super().__init__("\n".join(shown))
        self.problems = shown


def no_progress(_stage: str, _done: int, _total: int) -> None:
    """A `Progress` that does nothing."""


def find_files(paths: Sequence[Path]) -> list[Path]:
    """Every corpus file that the paths name, in a fixed order, none twice.

    Raises:
        CorpusError: a path that is missing, unreadable or empty.
    """
    found: dict[Path, None] = {}
    problems: list[str] = []
    for path in paths:
        path = path.expanduser()
        try:
            mode = path.stat().st_mode
        except OSError as error:
            problems.append(
                f"corpus {path}: {_reason(error)}; check the spelling, and that you may read it"
            )
            continue
        if stat.S_ISDIR(mode):
            files = _walk(path, problems)
            if not files:
                problems.append(f"corpus folder {path} has no file with text in it; name another")
            found.update(dict.fromkeys(file.resolve() for file in files))
        elif not stat.S_ISREG(mode):
            problems.append(f"corpus {path} is neither a file nor a folder; copy it into a file")
        elif path.stat().st_size == 0:
            problems.append(f"corpus file {path} is empty; leave it out or name another")
        else:
            found[path.resolve()] = None
    if problems:
        raise CorpusError(problems)
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
            [f"this Python has no library sources in {folder}; name a corpus with --corpus PATH"]
        )
    return sources


def _walk(folder: Path, problems: list[str], without: frozenset[str] = frozenset()) -> list[Path]:
    """Regular, visible, non-empty files below a folder, sorted folder by folder."""

    def unreadable(error: OSError) -> None:
        problems.append(
            f"corpus folder {error.filename}: {_reason(error)}; make it readable or leave it out"
        )

    files: list[Path] = []
    for place, folders, names in os.walk(folder, onerror=unreadable):
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and name not in without
        )
        for name in sorted(names):
            path = Path(place, name)
            if name.startswith("."):
                continue
            try:
                status = path.stat()
            except OSError as error:
                problems.append(
                    f"corpus file {path}: {_reason(error)}; remove it from the folder or repair it"
                )
                continue
            if stat.S_ISREG(status.st_mode) and status.st_size:
                files.append(path)
    return files


@dataclass(frozen=True)
class Corpus:
    """The place of each document. All vectors have one element a document: (num_documents,)."""

    files: tuple[Path, ...]
    seed: int
    text_field: str
    file_numbers: npt.NDArray[np.uint32]
    offsets: npt.NDArray[np.uint64]
    raw_bytes: npt.NDArray[np.uint32]
    """Bytes in the file: of a JSON line, the whole line."""
    text_bytes: npt.NDArray[np.uint32]
    """Bytes of the text itself in UTF-8."""
    keys: npt.NDArray[np.uint64]

    @property
    def num_documents(self) -> int:
        return len(self.keys)

    @property
    def num_bytes(self) -> int:
        return int(self.text_bytes.sum(dtype=np.uint64))

    def read(self, documents: IntVector) -> Iterator[bytes]:
        """The UTF-8 texts of some documents, in the order asked for; one is in memory at a time.

        Raises:
            CorpusError: a file cannot be read any more or has changed since `scan_corpus`.
        """
        hasher = _keyed_hasher(self.seed)
        handles: dict[int, BinaryIO] = {}
        try:
            for document in documents:
                number = int(self.file_numbers[document])
                path = self.files[number]
                try:
                    if number not in handles:
                        if len(handles) == OPEN_FILES_MAX:
                            _close(handles)
                        handles[number] = path.open("rb")
                    handles[number].seek(int(self.offsets[document]))
                    raw = handles[number].read(int(self.raw_bytes[document]))
                    text = _json_text(raw, self.text_field) if _is_json_lines(path) else raw
                except (OSError, _BadDocumentError) as error:
                    raise _changed(path) from error
                if hasher(text) != self.keys[document]:
                    raise _changed(path)
                yield text
        finally:
            _close(handles)


def scan_corpus(
    files: Sequence[Path],
    *,
    seed: int,
    text_field: str = DEFAULT_TEXT_FIELD,
    progress: Progress = no_progress,
) -> Corpus:
    """Read every file once, check that it is text, and note where its documents are.

    Raises:
        CorpusError: files that cannot be read or are not text; all of them, one sentence each.
    """
    problems: list[str] = []
    sizes = [_size(path) for path in files]
    text_sizes = [s for p, s in zip(files, sizes, strict=True) if not _is_json_lines(p)]
    piece_bytes = _piece_bytes(text_sizes)
    hasher = _keyed_hasher(seed)
    numbers, raws, texts = array("I"), array("I"), array("I")
    offsets, keys = array("Q"), array("Q")
    done, total = 0, sum(sizes)
    for number, (path, size) in enumerate(zip(files, sizes, strict=True)):
        offset = 0
        try:
            with path.open("rb") as file:
                pieces = (
                    _json_lines(file, text_field)
                    if _is_json_lines(path)
                    else _text_pieces(file, piece_bytes)
                )
                for raw_bytes, text in pieces:
                    if text:
                        numbers.append(number)
                        offsets.append(offset)
                        raws.append(raw_bytes)
                        texts.append(len(text))
                        keys.append(hasher(text))
                    offset += raw_bytes
                    progress("reading", done + min(offset, size), total)
        except OSError as error:
            problems.append(
                f"corpus file {path}: {_reason(error)}; make it readable or leave it out"
            )
        except _BadDocumentError as error:
            problems.append(f"corpus file {path} {error}")
        done += size
    if problems:
        raise CorpusError(problems)
    if not keys:
        raise CorpusError(["the corpus has no text in it; name files with --corpus PATH"])
    return Corpus(
        files=tuple(files),
        seed=seed,
        text_field=text_field,
        file_numbers=np.array(numbers, dtype=np.uint32),
        offsets=np.array(offsets, dtype=np.uint64),
        raw_bytes=np.array(raws, dtype=np.uint32),
        text_bytes=np.array(texts, dtype=np.uint32),
        keys=np.array(keys, dtype=np.uint64),
    )


class _BadDocumentError(Exception):
    """The fault of a document; the text continues the sentence that begins with the file's name."""


def _text_pieces(file: BinaryIO, piece_bytes: int) -> Iterator[tuple[int, bytes]]:
    """(length, text) of the pieces of a text file; together they are the whole file."""
    offset, rest = 0, b""
    while piece := rest + file.read(piece_bytes - len(rest)):
        rest = b""
        if len(piece) == piece_bytes:  # not the end of the file: cut at the end of a line
            cut = piece.rfind(b"\n") + 1 or _character_end(piece)
            piece, rest = piece[:cut], piece[cut:]
        _check_text(piece, f"at byte {offset:,}", "leave it out, or convert it to UTF-8 text first")
        yield len(piece), piece
        offset += len(piece)


def _json_lines(file: BinaryIO, text_field: str) -> Iterator[tuple[int, bytes]]:
    """(length of the line, its text) of a JSON lines file; blank lines have no text."""
    line_number = 0
    while line := file.readline(LINE_BYTES_MAX + 1):
        line_number += 1
        try:
            yield len(line), _json_text(line, text_field)
        except _BadDocumentError as error:
            raise _BadDocumentError(f"line {line_number:,} {error}") from error


def _json_text(line: bytes, text_field: str) -> bytes:
    if len(line) > LINE_BYTES_MAX:
        raise _BadDocumentError(
            f"is longer than {LINE_BYTES_MAX // MIB} MiB; cut its text in pieces"
        )
    if not line.strip():
        return b""
    try:
        record = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _BadDocumentError(
            f"cannot be read as a JSON object ({error}); a .jsonl file has one object a line: "
            "repair the line, or rename the file to .txt if it is plain text"
        ) from error
    if text_field not in record:
        names = ", ".join(repr(name) for name in sorted(record)[:8]) or "none"
        raise _BadDocumentError(
            f'has no field "{text_field}" (its fields: {names}); set text_field to one with text'
        )
    try:
        text = msgspec.json.decode(record[text_field], type=str).encode()
    except (msgspec.DecodeError, UnicodeError) as error:
        raise _BadDocumentError(
            f'has a field "{text_field}" that is not text ({error}); '
            "set text_field to the one with text"
        ) from error
    if b"\0" in text:
        raise _BadDocumentError("has byte 0 (\\u0000) in its text; remove it from there")
    return text


def _check_text(data: bytes, where: str, advice: str) -> None:
    if b"\0" in data:
        raise _BadDocumentError(f"is binary (byte 0 found {where} or after); {advice}")
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise _BadDocumentError(
            f"is not UTF-8 text (byte 0x{data[error.start]:02x}, {error.start:,} bytes after "
            f"{where.removeprefix('at ')}); {advice}"
        ) from error


def _character_end(data: bytes) -> int:
    """End of the last whole UTF-8 character of `data`; its length if there is none."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:  # not a continuation byte: a character begins here
            width = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return (len(data) - back if width > back else len(data)) or len(data)
    return len(data)


def _piece_bytes(sizes: Sequence[int]) -> int:
    pieces = sum(-(-size // DOCUMENT_BYTES_MAX) for size in sizes)
    if pieces >= DOCUMENTS_WANTED:
        return DOCUMENT_BYTES_MAX
    return min(max(sum(sizes) // DOCUMENTS_WANTED, DOCUMENT_BYTES_MIN), DOCUMENT_BYTES_MAX)


def _keyed_hasher(seed: int) -> Callable[[bytes], int]:
    key = blake3(_KEY_CONTEXT + str(seed).encode()).digest()
    return lambda text: int.from_bytes(blake3(text, key=key).digest(length=8), "big")


def _is_json_lines(path: Path) -> bool:
    return path.suffix.lower() in JSON_LINES_SUFFIXES


def _is_text(path: Path) -> bool:
    try:
        data = path.read_bytes()
        data.decode()
    except (OSError, UnicodeDecodeError):
        return False
    return b"\0" not in data


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0  # opening it explains what is wrong


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _changed(path: Path) -> CorpusError:
    return CorpusError(
        [f"corpus file {path} changed while it was read; leave it alone and try again"]
    )


def _close(handles: dict[int, BinaryIO]) -> None:
    for handle in handles.values():
        handle.close()
    handles.clear()
