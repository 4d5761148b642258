"""The text column of Parquet files, through pyarrow, which is imported only where there is one.

Rows are read in order, a few hundred at a time, on one thread. Memory is that of one compressed and
one unpacked page, or of what pyarrow holds of a row group: its text column is bounded.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gossamer.protocol.limits import MIB
from gossamer.trainer.text.corpus_errors import BadDocumentError, CorpusError
from gossamer.trainer.text.documents import LINE_BYTES_MAX, OnBad, check_text
from gossamer.trainer.text.unpacking import bomb_bytes, is_bomb

# Of the text column in one row group, unpacked. Writers make groups of 1 GiB at most.
GROUP_BYTES_MAX = 2048 * MIB
_BATCH_ROWS = 256
_BUFFER_BYTES = MIB


def parquet_bytes(path: Path, text_field: str) -> int:
    """Returns how many bytes the text column has unpacked, as the file states.

    Raises:
        CorpusError: pyarrow is missing.
        BadDocumentError: the file cannot be used.
        OSError: it cannot be read.
    """
    with _Opened(path, text_field) as opened:
        return min(sum(opened.group_bytes()), bomb_bytes(path.stat().st_size))


def parquet_texts(path: Path, text_field: str, on_bad: OnBad) -> Iterator[tuple[float, bytes]]:
    """Yields (the part of the file that is done, 0 to 1; the text) of each row.

    Raises:
        CorpusError, BadDocumentError, OSError: as `parquet_bytes`; or `on_bad` raises.
    """
    size = path.stat().st_size
    given = row = 0
    with _Opened(path, text_field) as opened:
        for data in opened.rows():
            row += 1
            given += len(data or b"")
            if given > bomb_bytes(size):
                raise is_bomb(size)
            text = b""
            try:
                text = _checked(data, text_field)
            except BadDocumentError as error:
                on_bad(BadDocumentError(f"row {row:,} {error}"))
            yield row / opened.num_rows, text


def _checked(data: bytes | None, text_field: str) -> bytes:
    if data is None:
        raise BadDocumentError(f'has nothing in its column "{text_field}"; remove it')
    if len(data) > LINE_BYTES_MAX:
        raise BadDocumentError(
            f"is longer than {LINE_BYTES_MAX // MIB} MiB; cut its text in pieces"
        )
    check_text(data, "at its beginning", "remove it or repair its text")
    return data


class _Opened:
    """A Parquet file that has a text column."""

    def __init__(self, path: Path, text_field: str) -> None:
        try:
            self._arrow: Any = importlib.import_module("pyarrow")
            parquet: Any = importlib.import_module("pyarrow.parquet")
        except ImportError as error:
            raise CorpusError(
                [
                    f"corpus file {path} is Parquet, and reading that takes pyarrow, which is not "
                    "installed: pip install 'gossamer[parquet]'"
                ]
            ) from error
        self._text_field = text_field
        try:
            self._file: Any = parquet.ParquetFile(path, buffer_size=_BUFFER_BYTES)
        except (self._arrow.ArrowException, OSError) as error:
            raise self._damaged(error) from error
        try:
            self._column = self._text_column()
        except BadDocumentError:
            self._file.close()
            raise

    @property
    def num_rows(self) -> int:
        return int(self._file.metadata.num_rows)

    def __enter__(self) -> _Opened:
        return self

    def __exit__(self, *_of_error: object) -> None:
        self._file.close()

    def group_bytes(self) -> Iterator[int]:
        """Yields the bytes of the text column in each row group.

        Raises:
            BadDocumentError: one has too many.
        """
        metadata = self._file.metadata
        for number in range(metadata.num_row_groups):
            size = int(metadata.row_group(number).column(self._column).total_uncompressed_size)
            if size > GROUP_BYTES_MAX:
                raise BadDocumentError(
                    f"has {size:,} bytes of text in one row group; {GROUP_BYTES_MAX:,} fit into "
                    "memory: write it anew with smaller row groups"
                )
            yield size

    def rows(self) -> Iterator[bytes | None]:
        """Yields the text of each row as bytes that are not checked; None: it has none."""
        sum(self.group_bytes())
        try:
            for batch in self._file.iter_batches(
                batch_size=_BATCH_ROWS, columns=[self._text_field], use_threads=False
            ):
                column = batch.column(0)
                if self._arrow.types.is_dictionary(column.type):
                    column = column.dictionary_decode()
                # As bytes, so that a row that is not UTF-8 is one bad row.
                yield from column.cast(self._arrow.large_binary()).to_pylist()
        except (self._arrow.ArrowException, OSError) as error:
            raise self._damaged(error) from error

    def _text_column(self) -> int:
        """The number of the text column among the file's columns."""
        schema = self._file.schema_arrow
        if self._text_field not in schema.names:
            names = ", ".join(repr(name) for name in schema.names[:8]) or "none"
            raise BadDocumentError(
                f'has no column "{self._text_field}" (its columns: {names}); set text_field to '
                "one with text"
            )
        kind = schema.field(self._text_field).type
        value = kind.value_type if self._arrow.types.is_dictionary(kind) else kind
        if str(value) not in ("string", "large_string", "string_view"):
            raise BadDocumentError(
                f'has a column "{self._text_field}" of type {value}, which is not text; set '
                "text_field to one with text"
            )
        paths = [
            self._file.schema.column(number).path for number in range(len(self._file.schema.names))
        ]
        return paths.index(self._text_field)

    @staticmethod
    def _damaged(error: Exception) -> Exception:
        """pyarrow reports damage as an OSError without a number."""
        if isinstance(error, OSError) and error.errno is not None:
            return error
        summary = str(error).split("\n", 1)[0][:200]
        return BadDocumentError(
            f"cannot be read as Parquet ({summary}); it is damaged or not whole: fetch it again "
            "or leave it out"
        )
