"""About how much text the files of a corpus hold, without reading all of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gossamer.protocol.limits import KIB
from gossamer.trainer.text.sources.corpus_errors import BadDocumentError, CorpusError
from gossamer.trainer.text.sources.documents import LINE_BYTES_MAX, json_text
from gossamer.trainer.text.sources.tables import table_bytes, table_groups
from gossamer.trainer.text.sources.unpacking import form_of, open_unpacked, planned_bytes

_SAMPLED_FILES = 8
"""Files of a source that are looked at for the part of JSON lines that is text."""

_SAMPLED_BYTES = 256 * KIB
"""Bytes of each."""


def measured(path: Path, text_field: str) -> tuple[int, int]:
    """Returns about how many bytes of text a file has, and of a table its groups of rows.

    A file that cannot be used has some, so that it is in a part, whose scan says what is wrong.

    Raises:
        OSError: the file cannot be looked at.
    """
    form, size = form_of(path), path.stat().st_size
    try:
        if form.content in ("parquet", "arrow"):
            num_bytes = table_bytes(path, form.content, text_field)
            return max(1, num_bytes), max(1, table_groups(path, form.content, text_field))
        return (planned_bytes(path, form.packing) if form.packing else size), 0
    except (CorpusError, BadDocumentError):
        return size, 1 if form.content in ("parquet", "arrow") else 0


def text_share(files: Sequence[Path], text_field: str) -> float:
    """Returns about which part of the bytes of a source's JSON lines is text.

    What cannot be read is passed over here, and named by the scan.
    """
    lines = [path for path in files if form_of(path).content == "lines"]
    if len(lines) < len(files) or not lines:
        return 1.0
    raw = text = 0
    step = -(-len(lines) // _SAMPLED_FILES)
    for path in lines[::step]:
        form, left = form_of(path), _SAMPLED_BYTES
        with suppress(BadDocumentError), path.open("rb") as file:
            packed = form.packing
            stream = open_unpacked(file, path.stat().st_size, packed) if packed else file
            while left > 0 and (line := stream.readline(LINE_BYTES_MAX)):
                left -= len(line)
                with suppress(BadDocumentError):
                    text += len(json_text(line, text_field))
                raw += len(line)
    return text / raw if text else 1.0
