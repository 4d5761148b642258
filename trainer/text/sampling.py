"""A sample of a corpus that comes in parts, to learn its vocabulary from.

The first part alone is a coarse sample: 32 sections, and of a compressed file its beginning. A
vocabulary has to fit the later parts too.

- The text of all parts, in their order, is cut into `PIECES` stretches of one length. Each gives a
  piece from a random place within it. A piece that lies in small files is some of them. Sources
  with weights have their shares, as they have in the plan.
- A compressed file is read forward, and no further than `UNPACKED_TIMES` as many bytes as its
  pieces have: unpacking is then a small part of the learning. The pieces of a longer file come from
  that part of it.
- Files and lines that cannot be used are passed over here. They are named when they are cut.
- Of equal documents one counts.

A sample is a function of files, plan, field and seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np
from blake3 import blake3

from gossamer.trainer.text.corpus_parts import CorpusPlan
from gossamer.trainer.text.sources.corpus_errors import BadDocumentError, CorpusError
from gossamer.trainer.text.sources.documents import (
    DOCUMENT_BYTES_MAX,
    Window,
    file_window,
    json_lines,
    json_text_of,
    text_pieces,
)
from gossamer.trainer.text.sources.tables import table_texts
from gossamer.trainer.text.sources.unpacking import Form, form_of, open_unpacked
from gossamer.trainer.text.tokenizers.tokens import BPE_TRAINING_BYTES_MAX

PIECES = 1024
"""Pieces of a sample. A disk with moving heads takes some 10 ms for each."""

SAMPLE_BYTES_MAX = 2 * BPE_TRAINING_BYTES_MAX
"""Of a sample, which has less unless the last lines of its pieces are very long."""

PIECE_BYTES_MIN = 4096
"""Shorter pieces would be parts of lines."""

UNPACKED_TIMES = 8
"""Bytes of a compressed file that are unpacked for a byte of its pieces. gzip takes some 0.003
seconds of a core for a megabyte, and learning 0.2."""

GROUPS_A_TABLE = 64
"""Groups of rows that are read of one table: some tables are gone through for each of them."""

SEEN_MAX = 1_000_000
"""Documents whose copies are noticed: some 70 bytes of memory each."""

_STREAM = 1
"""The run's seed also orders the sections of the corpus, with another stream of random numbers."""


class _Piece(NamedTuple):
    """Bytes of a file, as the plan counts them."""

    start: int
    stop: int


def sample_texts(plan: CorpusPlan, text_field: str, seed: int, share: float) -> Iterator[bytes]:
    """Yields UTF-8 texts from all parts of a corpus.

    Args:
        share: part of the bytes of all parts that is read, up to 1.
    """
    seen: set[bytes] = set()
    left = SAMPLE_BYTES_MAX
    for file, pieces in sorted(_pieces(plan, seed, share).items()):
        for text in _texts_of(plan, file, pieces, text_field):
            key = blake3(text).digest(length=8)
            if not text or key in seen:
                continue
            if len(seen) < SEEN_MAX:
                seen.add(key)
            yield text
            left -= len(text)
            if left <= 0:
                return


def _pieces(plan: CorpusPlan, seed: int, share: float) -> dict[int, list[_Piece]]:
    """Returns the pieces of each file, in order."""
    random = np.random.default_rng((seed, _STREAM))
    total = plan.num_bytes()
    sources = plan.sources or (0,) * len(plan.files)
    found: dict[int, list[_Piece]] = {}
    for source in sorted(set(sources)):
        sections = [each for each in plan.sections if sources[each[0]] == source]
        ends = list(accumulate(stop - start for _, start, stop in sections))
        wanted = share * ends[-1]
        number = max(1, min(PIECES * ends[-1] // total, int(wanted) // PIECE_BYTES_MIN))
        length, stretch = wanted / number, ends[-1] / number
        firsts = (np.arange(number) * stretch + random.random(number) * (stretch - length)).tolist()
        section = 0
        for first in firsts:
            at, stop = int(first), int(first + length)
            while at < stop:
                while ends[section] <= at:
                    section += 1
                file, _, section_stop = sections[section]
                end = min(stop, ends[section])
                base = section_stop - ends[section]
                found.setdefault(file, []).append(_Piece(base + at, base + end))
                at = end
    return {file: sorted(pieces) for file, pieces in found.items()}


def _texts_of(
    plan: CorpusPlan, file: int, pieces: Sequence[_Piece], text_field: str
) -> Iterator[bytes]:
    path, size = Path(plan.files[file]), plan.sizes[file]
    form = form_of(path)
    with suppress(OSError, BadDocumentError, CorpusError):
        if groups := plan.groups[file]:
            yield from _of_table(path, form, pieces, text_field, size, groups)
        elif form.packing:
            yield from _of_packed(path, form, pieces, text_field, size)
        else:
            yield from _of_plain(path, form, pieces, text_field)


def _of_plain(path: Path, form: Form, pieces: Sequence[_Piece], text_field: str) -> Iterator[bytes]:
    with path.open("rb") as file:
        for piece in pieces:
            window = file_window(file, piece.start, piece.stop)
            yield from _documents(window, form, text_field)


def _of_packed(
    path: Path, form: Form, pieces: Sequence[_Piece], text_field: str, size: int
) -> Iterator[bytes]:
    depth = UNPACKED_TIMES * sum(stop - start for start, stop in pieces)
    part = min(1.0, depth / size)
    at = 0
    with path.open("rb") as file:
        stream = open_unpacked(file, path.stat().st_size, form.packing)
        for piece in pieces:
            start = max(at, round(part * piece.start))
            window = Window(stream, start, start + piece.stop - piece.start, at)
            yield from _documents(window, form, text_field)
            at = window.at


def _of_table(
    path: Path, form: Form, pieces: Sequence[_Piece], text_field: str, size: int, groups: int
) -> Iterator[bytes]:
    assert form.content in ("parquet", "arrow")
    step = -(-len(pieces) // GROUPS_A_TABLE)
    for piece in pieces[::step]:
        first = piece.start * groups // size
        left = step * (piece.stop - piece.start)
        there = max(first + 1, -(-piece.stop * groups // size))
        for _, text in table_texts(path, form.content, text_field, _pass_over, (first, there)):
            yield text
            left -= len(text)
            if left <= 0:
                break


def _documents(window: Window, form: Form, text_field: str) -> Iterator[bytes]:
    if form.content == "lines":
        pieces = json_lines(window, json_text_of(text_field), _pass_over)
    else:
        pieces = text_pieces(window, DOCUMENT_BYTES_MAX, is_start=not window.first)
    with suppress(BadDocumentError):  # a place further on may have text
        for _, text in pieces:
            yield text


def _pass_over(_error: BadDocumentError) -> None:
    """An `OnBad` that lets every bad line pass."""
