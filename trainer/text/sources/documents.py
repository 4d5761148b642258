"""Cutting a stream of bytes into documents.

- JSON lines hold one JSON object a line, whose text field is one document. Every other file is
  UTF-8 text: one document, or several where it is long, cut at ends of lines.
- Text never contains byte 0, so that plain bytes can end a document with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

import msgspec

from gossamer.protocol.limits import KIB, MIB
from gossamer.trainer.text.sources.corpus_errors import BadDocumentError

# A long text file is cut into documents of this size: what is held in memory at a time.
DOCUMENT_BYTES_MAX = MIB
# A corpus of a few long files is cut finer, so that a small part of it can be held out.
DOCUMENTS_WANTED = 128
DOCUMENT_BYTES_MIN = 4 * KIB
# One JSON line, or one row of a table, is one document and is read whole.
LINE_BYTES_MAX = 16 * MIB

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""Some programs write it before UTF-8 text, mostly on Windows. It belongs to no JSON, and to no
text where a file begins with it."""

_UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")
"""Other text begins so: no UTF-8 has these bytes."""

LineReader = Callable[[bytes], bytes]
"""Returns the document of a JSON line, and nothing of a blank one; or raises BadDocumentError."""

OnBad = Callable[[BadDocumentError], None]
"""Is told of a line that cannot be used. It raises the error, or the line is left out."""


def refuse(error: BadDocumentError) -> None:
    """An `OnBad` that lets no bad line pass."""
    raise error


class Window:
    """The lines of a stream that begin from byte `start` to before `stop`, as a stream. What lies
    before is read and forgotten."""

    def __init__(self, stream: BinaryIO, start: int, stop: int, at: int = 0) -> None:
        """`at`: bytes of the stream that were read before, no more than `start`. The line that
        they end in is left out."""
        self._stream = stream
        self._stop = stop
        self.at = at
        """Bytes of the stream that were read."""
        self._in_line = start > 0  # the line that `start` lies in belongs to those before
        while self.at < start - 1 and (data := stream.read(min(MIB, start - 1 - self.at))):
            self.at += len(data)
        while self._in_line and self._line(DOCUMENT_BYTES_MAX):
            pass
        self.first = self.at
        """Where the first line begins."""

    def read(self, num_bytes: int) -> bytes:
        data = b""
        while len(data) < num_bytes:
            wanted = num_bytes - len(data)
            if self.at < self._stop:
                piece = self._stream.read(min(wanted, self._stop - self.at))
                self._took(piece)
            else:
                piece = self.readline(wanted)
            if not piece:
                break
            data += piece
        return data

    def readline(self, limit: int) -> bytes:
        return self._line(limit) if self._in_line or self.at < self._stop else b""

    def _line(self, limit: int) -> bytes:
        data = self._stream.readline(limit)
        self._took(data)
        return data

    def _took(self, data: bytes) -> None:
        self.at += len(data)
        self._in_line = bool(data) and not data.endswith(b"\n")


def file_window(file: BinaryIO, start: int, stop: int) -> Window:
    """Returns the window of a file, of which nothing before it is read."""
    at = max(0, start - 1)
    file.seek(at)
    return Window(file, start, stop, at)


def text_pieces(
    file: BinaryIO | Window, piece_bytes: int, *, is_start: bool
) -> Iterator[tuple[int, bytes]]:
    """(length, text) of the pieces of a text file; together they are the whole file.

    Args:
        is_start: whether the stream is at the file's start, where a byte order mark is no text.
    """
    offset, rest = 0, b""
    while piece := rest + file.read(piece_bytes - len(rest)):
        rest = b""
        if len(piece) == piece_bytes:  # not the end of the file: cut at the end of a line
            cut = piece.rfind(b"\n") + 1 or _character_end(piece)
            piece, rest = piece[:cut], piece[cut:]
        if is_start and not offset:
            _refuse_utf_16(piece)
            if piece.startswith(_BYTE_ORDER_MARK):
                offset = len(_BYTE_ORDER_MARK)
                yield offset, b""
                piece = piece[offset:]
        check_text(piece, f"at byte {offset:,}", "leave it out, or convert it to UTF-8 text first")
        yield len(piece), piece
        offset += len(piece)


def json_lines(
    file: BinaryIO | Window, read_line: LineReader, on_bad: OnBad
) -> Iterator[tuple[int, bytes]]:
    """(length of the line, its document) of a JSON lines file; blank lines have none, nor have bad
    ones that `on_bad` leaves out."""
    line_number = 0
    while line := file.readline(LINE_BYTES_MAX + 1):
        line_number += 1
        num_bytes, text = len(line), b""
        try:
            text = read_line(line)
        except BadDocumentError as error:
            on_bad(BadDocumentError(f"line {line_number:,} {error}"))
            while len(line) > LINE_BYTES_MAX and not line.endswith(b"\n"):
                line = file.readline(LINE_BYTES_MAX + 1)  # the rest of a line that is too long
                num_bytes += len(line)
        yield num_bytes, text


def json_text_of(text_field: str) -> LineReader:
    """Returns a reader of one field's text."""
    return lambda line: json_text(line, text_field)


def is_blank(line: bytes) -> bool:
    """Returns whether a line of a JSON lines file holds nothing."""
    return not line.removeprefix(_BYTE_ORDER_MARK).strip()


def json_record(line: bytes) -> dict[str, msgspec.Raw]:
    """Returns the fields of a JSON line; of a blank one none. BadDocumentError: it is no object, or
    too long."""
    if len(line) > LINE_BYTES_MAX:
        raise BadDocumentError(
            f"is longer than {LINE_BYTES_MAX // MIB} MiB; cut its text in pieces"
        )
    if is_blank(line):
        return {}
    _refuse_utf_16(line)
    try:
        found = line.removeprefix(_BYTE_ORDER_MARK)
        return msgspec.json.decode(found, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadDocumentError(
            f"cannot be read as a JSON object ({error}); a .jsonl file has one object a line: "
            "repair the line, or rename the file to .txt if it is plain text"
        ) from error


def json_text(line: bytes, text_field: str) -> bytes:
    """Returns the text of a JSON line in UTF-8; of a blank one nothing.

    Raises:
        BadDocumentError: it has none, or none that can be used.
    """
    record = json_record(line)
    if is_blank(line):
        return b""
    if text_field not in record:
        names = ", ".join(repr(name) for name in sorted(record)[:8]) or "none"
        raise BadDocumentError(
            f'has no field "{text_field}" (its fields: {names}); set text_field to one with text'
        )
    try:
        text = msgspec.json.decode(record[text_field], type=str).encode()
    except (msgspec.DecodeError, UnicodeError) as error:
        raise BadDocumentError(
            f'has a field "{text_field}" that is not text ({error}); '
            "set text_field to the one with text"
        ) from error
    if b"\0" in text:
        raise BadDocumentError("has byte 0 (\\u0000) in its text; remove it from there")
    return text


def check_text(data: bytes, where: str, advice: str) -> None:
    """Raises BadDocumentError unless it is UTF-8 without byte 0."""
    if b"\0" in data:
        raise BadDocumentError(f"is binary (byte 0 found {where} or after); {advice}")
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise BadDocumentError(
            f"is not UTF-8 text (byte 0x{data[error.start]:02x}, {error.start:,} bytes after "
            f"{where.removeprefix('at ')}); {advice}"
        ) from error


def _refuse_utf_16(data: bytes) -> None:
    """Raises BadDocumentError if the first bytes of a file, or of a line, are those of UTF-16."""
    if data.startswith(_UTF_16_MARKS):
        raise BadDocumentError(
            "is UTF-16 text, by its first two bytes; leave it out, or convert it to UTF-8 first"
        )


def _character_end(data: bytes) -> int:
    """End of the last whole UTF-8 character of `data`; its length if there is none."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:  # not a continuation byte: a character begins here
            width = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return (len(data) - back if width > back else len(data)) or len(data)
    return len(data)


def piece_bytes_of(sizes: Sequence[int]) -> int:
    """Returns how long a document of text files of these sizes may be, in bytes."""
    pieces = sum(-(-size // DOCUMENT_BYTES_MAX) for size in sizes)
    if pieces >= DOCUMENTS_WANTED:
        return DOCUMENT_BYTES_MAX
    return min(max(sum(sizes) // DOCUMENTS_WANTED, DOCUMENT_BYTES_MIN), DOCUMENT_BYTES_MAX)
