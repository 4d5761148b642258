"""The text of a run: noting where its documents are, and reading those in any order.

- `corpus_files` finds the files, and `documents` cuts them. Compressed files, Parquet and
  Arrow are unpacked once into a `Spool`, because a stream cannot be read in random order.
- `scan_corpus` reads everything once and keeps 28 bytes a document, not the text. A document's
  `key` is a hash of the seed and of its text: sorted by key, documents are in random order, and
  neither the files' names nor their order on the command line play a part. Equal documents have
  equal keys and are neighbours, so a copy can never be on both sides of the held-out split.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from gossamer.trainer.text.sources.corpus_errors import (
    BadDocumentError,
    BadFilesError,
    NoTextError,
    Skipped,
    changed,
    first_of,
    unreadable,
)
from gossamer.trainer.text.sources.documents import (
    LineReader,
    OnBad,
    Window,
    file_window,
    json_lines,
    json_text,
    json_text_of,
    piece_bytes_of,
    refuse,
    text_pieces,
)
from gossamer.trainer.text.sources.spool import Spool
from gossamer.trainer.text.sources.tables import Groups, table_bytes, table_texts
from gossamer.trainer.text.sources.unpacking import Form, form_of, open_unpacked, unpacked_bytes

if TYPE_CHECKING:
    # Jinja comes with it, and a daemon, which loads this module, renders no conversation.
    from gossamer.trainer.text.sources.chat import Chat

Progress = Callable[[str, int, int], None]
"""Called with (what is being done, bytes done, bytes in all)."""

IntVector = npt.NDArray[np.int64]
KeyVector = npt.NDArray[np.uint64]

DEFAULT_TEXT_FIELD = "text"

# Handles kept while documents are read in random order; far below any system's limit.
OPEN_FILES_MAX = 32

_KEY_CONTEXT = b"gossamer corpus order 1:"


def no_progress(_stage: str, _done: int, _total: int) -> None:
    """A `Progress` that does nothing."""


class Section(NamedTuple):
    """A part of a file: the lines that begin from byte `start` to before `stop`, of a compressed
    one in what it unpacks to. The last one of a packed file has no end (`sys.maxsize`)."""

    path: Path
    start: int
    stop: int
    groups: Groups = None
    """Of a table the groups of rows from one number to before another."""


@dataclass(frozen=True)
class Corpus:
    """The place of each document. All vectors have one element a document."""

    files: tuple[Path, ...]
    seed: int
    text_field: str
    file_numbers: npt.NDArray[np.uint32]
    offsets: npt.NDArray[np.uint64]
    """In the file, or of a packed file in the spool."""
    raw_bytes: npt.NDArray[np.uint32]
    """Bytes in the file: of a JSON line, the whole line."""
    text_bytes: npt.NDArray[np.uint32]
    """Bytes of the text itself in UTF-8."""
    keys: KeyVector
    spool: Spool = field(default_factory=Spool)
    """The texts of packed files, and of all conversations."""
    chat: Chat | None = None
    """How the documents are written, if they are conversations."""

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
                offset, num_bytes = int(self.offsets[document]), int(self.raw_bytes[document])
                form = form_of(path)
                try:
                    if form.is_packed or self.chat is not None:
                        text = self.spool.read(offset, num_bytes)
                    else:
                        raw = _read_at(handles, number, path, offset, num_bytes)
                        text = json_text(raw, self.text_field) if form.content == "lines" else raw
                except (OSError, BadDocumentError) as error:
                    raise changed(path) from error
                if hasher(text) != self.keys[document]:
                    raise changed(path)
                yield text
        finally:
            _close(handles)


def scan_corpus(
    files: Sequence[Path] | Sequence[Section],
    *,
    seed: int,
    text_field: str = DEFAULT_TEXT_FIELD,
    scratch: Path | None = None,
    skipped: Skipped | None = None,
    chat: Chat | None = None,
    progress: Progress = no_progress,
) -> Corpus:
    """Read every file once, check that it is text, and note where its documents are.

    Args:
        files: whole files, or sections of files.
        scratch: folder on a disk with room for what packed files hold; None: the system's own.
        skipped: notes the files and lines that are left out; None: nothing may be.
        chat: writes the conversations that the files then have to hold, one on a line of JSON.

    Raises:
        BadFilesError: files that cannot be read or are not text; all of them, one sentence each.
        NoTextError: there is no text.
        CorpusError: there is no room for packed files, or pyarrow is missing.
    """
    scan = _Scan(seed, text_field, Spool(scratch), skipped, chat, progress)
    sections = [each if isinstance(each, Section) else _whole(each) for each in files]
    scan.measure(sections)
    for section in sections:
        scan.read(section)
    return scan.corpus([section.path for section in sections])


class _Scan:
    """What is known of the documents that were read.

    It has more than 12 attributes: there is a column for each fact about a document, because
    millions of objects would not fit into memory.
    """

    def __init__(
        self,
        seed: int,
        text_field: str,
        spool: Spool,
        skipped: Skipped | None,
        chat: Chat | None,
        progress: Progress,
    ) -> None:
        self._chat = chat
        self._read_line: LineReader = chat.document if chat else json_text_of(text_field)
        self._seed = seed
        self._text_field = text_field
        self._spool = spool
        self._skipped = skipped
        self._progress = progress
        self._hasher = _keyed_hasher(seed)
        self._problems: dict[Path, str] = {}
        self._numbers, self._raws, self._texts = array("I"), array("I"), array("I")
        self._offsets, self._keys = array("Q"), array("Q")
        self._number = self._done = self._total = self._piece_bytes = 0

    def measure(self, sections: Sequence[Section]) -> None:
        """Learns how long the files are, and requires room for what is packed in them. Raises
        CorpusError."""
        text_sizes: list[int] = []
        packed_bytes = 0
        for section in sections:
            path, form = section.path, form_of(section.path)
            try:
                size = _length(section)
                self._total += size
                if self._chat is not None and form.content != "lines":
                    raise BadDocumentError(
                        "does not hold JSON lines, and conversations are read from .jsonl files "
                        "(also .gz or .zst); leave it out or convert it"
                    )
                if form.content in ("parquet", "arrow"):
                    num_bytes = table_bytes(path, form.content, self._text_field)
                else:
                    num_bytes = unpacked_bytes(path, form.packing)
                if form.is_packed and section != _whole(path):
                    num_bytes = size
            except OSError as error:
                self._problems[path] = unreadable(path, error)
                continue
            except BadDocumentError as error:
                self._problems[path] = f"corpus file {path} {error}"
                continue
            if form.content == "text":
                text_sizes.append(num_bytes if form.is_packed else size)
            if form.is_packed or self._chat is not None:
                packed_bytes += num_bytes if form.is_packed else size
        if packed_bytes:
            self._spool.require_room(packed_bytes)
        self._piece_bytes = piece_bytes_of(text_sizes)

    def read(self, section: Section) -> None:
        """Notes the documents of the next section. Raises CorpusError: the spool has no room."""
        path, size = section.path, 0
        documents, spooled = len(self._keys), self._spool.num_bytes
        lines = self._skipped.lines if self._skipped is not None else 0
        if path not in self._problems:
            try:
                size = _length(section)
                for done in self._take(section, form_of(path)):
                    self._progress("reading", self._done + min(done, size), self._total)
            except OSError as error:
                self._problems[path] = unreadable(path, error)
            except BadDocumentError as error:
                place = f", from byte {section.start:,} on," if section.start else ""
                self._problems[path] = f"corpus file {path}{place} {error}"
        if self._skipped is not None and path in self._problems:
            self._skipped.file(self._problems.pop(path))
            self._skipped.lines = lines
            for vector in (self._numbers, self._offsets, self._raws, self._texts, self._keys):
                del vector[documents:]
            self._spool.cut(spooled)
        self._number += 1
        self._done += size

    def corpus(self, files: Sequence[Path]) -> Corpus:
        """Returns what was found. Raises CorpusError."""
        if self._problems:
            raise BadFilesError(*first_of(list(self._problems.values())))
        if not self._keys:
            left_out = [] if self._skipped is None else self._skipped.summary()
            raise NoTextError(
                "the corpus has no text in it; name files with --corpus PATH", *left_out
            )
        return Corpus(
            files=tuple(files),
            seed=self._seed,
            text_field=self._text_field,
            file_numbers=np.array(self._numbers, dtype=np.uint32),
            offsets=np.array(self._offsets, dtype=np.uint64),
            raw_bytes=np.array(self._raws, dtype=np.uint32),
            text_bytes=np.array(self._texts, dtype=np.uint32),
            keys=np.array(self._keys, dtype=np.uint64),
            spool=self._spool,
            chat=self._chat,
        )

    def _on_bad(self, path: Path) -> OnBad:
        skipped = self._skipped
        if skipped is None:
            return refuse
        return lambda error: skipped.line(f"corpus file {path} {error}")

    def _take(self, section: Section, form: Form) -> Iterator[int]:
        """Notes the documents of a section, and yields after each how much of it is done."""
        path, size = section.path, section.path.stat().st_size
        if form.content in ("parquet", "arrow"):
            num_bytes = _length(section)
            on_bad, groups = self._on_bad(path), section.groups
            for part, text in table_texts(path, form.content, self._text_field, on_bad, groups):
                self._note_packed(text)
                yield round(part * num_bytes)
            return
        with path.open("rb") as file:
            stream: BinaryIO | Window = file
            offset = first = 0
            if form.packing:
                stream = open_unpacked(file, size, form.packing)
                if section != _whole(path):
                    stream = Window(stream, section.start, section.stop)
                    first = stream.first
            elif section.start or section.stop < size:
                stream = file_window(file, section.start, section.stop)
                offset = first = stream.first
            pieces = (
                json_lines(stream, self._read_line, self._on_bad(path))
                if form.content == "lines"
                else text_pieces(stream, self._piece_bytes, is_start=not section.start)
            )
            for raw_bytes, text in pieces:
                if form.packing or self._chat is not None:
                    self._note_packed(text)
                    yield stream.at - first if isinstance(stream, Window) else file.tell()
                    continue
                self._note(offset, raw_bytes, text)
                offset += raw_bytes
                yield offset - first

    def _note_packed(self, text: bytes) -> None:
        if text:
            self._note(self._spool.add(text), len(text), text)

    def _note(self, offset: int, raw_bytes: int, text: bytes) -> None:
        if text:
            self._numbers.append(self._number)
            self._offsets.append(offset)
            self._raws.append(raw_bytes)
            self._texts.append(len(text))
            self._keys.append(self._hasher(text))


def _whole(path: Path) -> Section:
    """A whole file, however long it grows to be until it is read."""
    return Section(path, 0, sys.maxsize)


def _length(section: Section) -> int:
    """Returns how long a section is, as progress counts it: in bytes of the file, or of text if it
    is a part of a packed one. Raises OSError."""
    path, start, stop, _ = section
    size, form = path.stat().st_size, form_of(path)
    if section == _whole(path):
        return size
    if not form.is_packed:
        return min(stop, size) - start
    if stop == sys.maxsize:
        stop = max(start + 1, unpacked_bytes(path, form.packing))
    return stop - start


def _keyed_hasher(seed: int) -> Callable[[bytes], int]:
    key = blake3(_KEY_CONTEXT + str(seed).encode()).digest()
    return lambda text: int.from_bytes(blake3(text, key=key).digest(length=8), "big")


def _read_at(
    handles: dict[int, BinaryIO], number: int, path: Path, offset: int, num_bytes: int
) -> bytes:
    """Bytes of a file; `handles` are those of the files that were read last."""
    if number not in handles:
        if len(handles) == OPEN_FILES_MAX:
            _close(handles)
        handles[number] = path.open("rb")
    handles[number].seek(offset)
    return handles[number].read(num_bytes)


def _close(handles: dict[int, BinaryIO]) -> None:
    for handle in handles.values():
        handle.close()
    handles.clear()
