"""The text column of Parquet and Arrow files, through pyarrow, which is imported only for these.

Rows are read in order, a few hundred at a time, on one thread. Of a Parquet file memory holds one
compressed and one unpacked page, or what pyarrow holds of a row group: its text column is bounded.
An Arrow file, as `datasets` writes them, is mapped: its pages are the system's to take away.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal

from gossamer.protocol.limits import MIB
from gossamer.trainer.text.sources.corpus_errors import BadDocumentError, CorpusError
from gossamer.trainer.text.sources.documents import LINE_BYTES_MAX, OnBad, check_text
from gossamer.trainer.text.sources.unpacking import bomb_bytes, is_bomb

# Of the text column in one row group, unpacked. Writers make groups of 1 GiB at most.
GROUP_BYTES_MAX = 2048 * MIB
_BATCH_ROWS = 256
_BUFFER_BYTES = MIB
_INDEXED = b"ARROW1"
"""How an Arrow file with an index begins; a stream begins otherwise."""

_STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"
"""The end of a stream (Arrow columnar format, "IPC Streaming Format")."""

Table = Literal["parquet", "arrow"]
Groups = tuple[int, int] | None


def table_bytes(path: Path, content: Table, text_field: str) -> int:
    """Returns how many bytes the text column has unpacked, as a Parquet file states; of an Arrow
    file the bytes of all columns.

    Raises:
        CorpusError: pyarrow is missing.
        BadDocumentError: the file cannot be used.
        OSError: it cannot be read.
    """
    with _opened(path, content, text_field) as opened:
        return min(opened.num_bytes(), bomb_bytes(path.stat().st_size))


def table_groups(path: Path, content: Table, text_field: str) -> int:
    """Returns the groups of rows that can be read without the others. Errors as `table_bytes`."""
    with _opened(path, content, text_field) as opened:
        return opened.num_groups()


def table_texts(
    path: Path, content: Table, text_field: str, on_bad: OnBad, groups: Groups
) -> Iterator[tuple[float, bytes]]:
    """Yields (the part of the rows that is done, 0 to 1; the text) of each row.

    Args:
        groups: (number of the first group of rows, number after the last one); None: all.

    Raises:
        CorpusError, BadDocumentError, OSError: as `table_bytes`; or `on_bad` raises.
    """
    size = path.stat().st_size
    given = row = 0
    with _opened(path, content, text_field) as opened:
        for done, data in opened.rows(groups):
            row += 1
            given += len(data or b"")
            if given > bomb_bytes(size):
                raise is_bomb(size)
            text = b""
            try:
                text = _checked(data, text_field)
            except BadDocumentError as error:
                on_bad(BadDocumentError(f"row {row:,} {error}"))
            yield done, text


@contextmanager
def _opened(path: Path, content: Table, text_field: str) -> Iterator[_Parquet | _Arrow]:
    """Errors of pyarrow within the block become those of a document."""
    kind = _Parquet if content == "parquet" else _Arrow
    try:
        arrow: Any = importlib.import_module("pyarrow")
    except ImportError as error:
        raise CorpusError(
            f"corpus file {path} is {kind.name}, and reading that takes pyarrow, which is not "
            "installed: pip install 'gossamer[parquet]'"
        ) from error
    try:
        with closing(kind(arrow, path, text_field)) as table:
            table.begin()
            yield table
    except (arrow.ArrowException, OSError) as error:
        raise _damaged(error, kind.name) from error


def _checked(data: bytes | None, text_field: str) -> bytes:
    if data is None:
        raise BadDocumentError(f'has nothing in its column "{text_field}"; remove it')
    if len(data) > LINE_BYTES_MAX:
        raise BadDocumentError(
            f"is longer than {LINE_BYTES_MAX // MIB} MiB; cut its text in pieces"
        )
    check_text(data, "at its beginning", "remove it or repair its text")
    return data


class _Parquet:
    """A Parquet file that has a text column."""

    name = "Parquet"

    def __init__(self, arrow: Any, path: Path, text_field: str) -> None:
        self._arrow = arrow
        parquet: Any = importlib.import_module("pyarrow.parquet")
        self._text_field = text_field
        self._file: Any = parquet.ParquetFile(path, buffer_size=_BUFFER_BYTES)
        self._column = 0

    def begin(self) -> None:
        """Finds the text column among the file's columns."""
        _require_text(self._arrow, self._file.schema_arrow, self._text_field)
        schema = self._file.schema
        paths = [schema.column(number).path for number in range(len(schema.names))]
        self._column = paths.index(self._text_field)

    def close(self) -> None:
        self._file.close()

    def num_bytes(self) -> int:
        """Raises BadDocumentError: a row group has too many."""
        total, metadata = 0, self._file.metadata
        for number in range(metadata.num_row_groups):
            size = int(metadata.row_group(number).column(self._column).total_uncompressed_size)
            if size > GROUP_BYTES_MAX:
                raise BadDocumentError(
                    f"has {size:,} bytes of text in one row group; {GROUP_BYTES_MAX:,} fit into "
                    "memory: write it anew with smaller row groups"
                )
            total += size
        return total

    def num_groups(self) -> int:
        return int(self._file.metadata.num_row_groups)

    def rows(self, groups: Groups = None) -> Iterator[tuple[float, bytes | None]]:
        """Yields (the part that is done, the text of a row as bytes that are not checked; None: it
        has none)."""
        self.num_bytes()
        metadata, row = self._file.metadata, 0
        numbers = range(*(groups or (0, self.num_groups())))
        num_rows = sum(int(metadata.row_group(number).num_rows) for number in numbers)
        for batch in self._file.iter_batches(
            batch_size=_BATCH_ROWS,
            row_groups=list(numbers),
            columns=[self._text_field],
            use_threads=False,
        ):
            for data in _bytes_of(self._arrow, batch.column(0)):
                row += 1
                yield row / num_rows, data


class _Arrow:
    """An Arrow file that has a text column: a stream of record batches, as `datasets` writes it, or
    the form with an index behind them."""

    name = "Arrow"

    def __init__(self, arrow: Any, path: Path, text_field: str) -> None:
        self._arrow, self._text_field = arrow, text_field
        self._size = path.stat().st_size
        self._source: Any = arrow.memory_map(str(path))
        self._has_index = False
        self._reader: Any = None

    def begin(self) -> None:
        """Reads the schema."""
        ipc: Any = importlib.import_module("pyarrow.ipc")
        self._has_index = self._source.read(len(_INDEXED)) == _INDEXED
        self._source.seek(0)
        opened = ipc.open_file if self._has_index else ipc.open_stream
        self._reader = opened(self._source)
        _require_text(self._arrow, self._reader.schema, self._text_field)

    def close(self) -> None:
        self._source.close()

    def num_bytes(self) -> int:
        return self._size

    def num_groups(self) -> int:
        if self._has_index:
            return int(self._reader.num_record_batches)
        return sum(1 for _ in self._batches())

    def rows(self, groups: Groups = None) -> Iterator[tuple[float, bytes | None]]:
        """See `_Parquet.rows`."""
        number = self._reader.schema.get_field_index(self._text_field)
        done = 0.0
        for number_of_batch, (batch_done, batch) in enumerate(self._batches()):
            if groups is not None and not groups[0] <= number_of_batch < groups[1]:
                continue
            column, num_rows = batch.column(number), batch.num_rows
            for start in range(0, num_rows, _BATCH_ROWS):
                texts = _bytes_of(self._arrow, column.slice(start, _BATCH_ROWS))
                for row, data in enumerate(texts, start + 1):
                    yield done + (batch_done - done) * row / num_rows, data
            done = batch_done

    def _batches(self) -> Iterator[tuple[float, Any]]:
        """Yields (the part of the file that is done with it, a record batch)."""
        if self._has_index:
            num_batches = self._reader.num_record_batches
            for number in range(num_batches):
                yield (number + 1) / num_batches, self._reader.get_batch(number)
            return
        for batch in self._reader:
            yield self._source.tell() / self._size, batch
        # A stream that is cut between two batches ends without a word.
        is_whole = self._source.tell() == self._size
        self._source.seek(max(0, self._size - len(_STREAM_END)))
        if not is_whole or self._source.read() != _STREAM_END:
            raise BadDocumentError(
                "has no end of its Arrow stream; it is damaged or not whole: fetch it again or "
                "leave it out"
            )


def _bytes_of(arrow: Any, column: Any) -> list[bytes | None]:
    """Returns the texts of a column as bytes, so that a row that is not UTF-8 is one bad row."""
    if arrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    texts: list[bytes | None] = column.cast(arrow.large_binary()).to_pylist()
    return texts


def _require_text(arrow: Any, schema: Any, text_field: str) -> None:
    """Raises BadDocumentError unless a table has a column of text with this name."""
    if (number := schema.names.count(text_field)) != 1:
        names = ", ".join(repr(name) for name in schema.names[:8]) or "none"
        raise BadDocumentError(
            f'has {number or "no"} column{"s" * (number > 1)} "{text_field}" (its columns: '
            f"{names}); set text_field to one with text"
        )
    kind = schema.field(text_field).type
    value = kind.value_type if arrow.types.is_dictionary(kind) else kind
    if str(value) not in ("string", "large_string", "string_view"):
        raise BadDocumentError(
            f'has a column "{text_field}" of type {value}, which is not text; set text_field to '
            "one with text"
        )


def _damaged(error: Exception, what: str) -> Exception:
    """pyarrow reports damage as an OSError without a number."""
    if isinstance(error, OSError) and error.errno is not None:
        return error
    summary = str(error).split("\n", 1)[0][:200]
    return BadDocumentError(
        f"cannot be read as {what} ({summary}); it is damaged or not whole: fetch it again or "
        "leave it out"
    )
