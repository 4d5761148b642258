"""What cannot be used is left out, counted and named, where the founder asks for that."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gossamer.trainer.text.sources.corpus import scan_corpus
from gossamer.trainer.text.sources.corpus_errors import (
    PROBLEMS_MAX,
    BadFilesError,
    CorpusError,
    Skipped,
)
from gossamer.trainer.text.sources.corpus_files import find_files
from gossamer.trainer.text.sources.documents import DOCUMENT_BYTES_MIN, LINE_BYTES_MAX


def used(*paths: Path) -> tuple[list[bytes], Skipped]:
    with pytest.raises(BadFilesError):
        scan_corpus(find_files(paths), seed=1)
    skipped = Skipped()
    corpus = scan_corpus(find_files(paths, skipped), seed=1, skipped=skipped)
    return list(corpus.read(np.arange(len(corpus.keys)))), skipped


def test_a_bad_text_file_is_left_out_whole(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"good\n" * DOCUMENT_BYTES_MIN + b"\xff")
    (tmp_path / "b.txt").write_bytes(b"fine")
    (tmp_path / "c.txt").symlink_to(tmp_path / "nowhere")
    texts, skipped = used(tmp_path)
    assert texts == [b"fine"]
    assert (skipped.files, skipped.lines) == (2, 0)
    link, bad = skipped.first
    assert "c.txt: no such file" in link
    assert "a.txt is not UTF-8 text" in bad


def test_of_json_lines_only_the_bad_ones_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    endless = b'{"text": "' + b"x" * (2 * LINE_BYTES_MAX + 7) + b'"}\n'
    path.write_bytes(b'{"text": "one"}\nbad\n' + endless + b'{"text": "\\u00fc"}\n{"text": 1}')
    texts, skipped = used(path)
    assert texts == [b"one", "ü".encode()]
    assert (skipped.files, skipped.lines) == (0, 3)
    assert [problem.split()[4] for problem in skipped.first] == ["2", "3", "5"]


def test_a_compressed_file_that_ends_too_soon_is_left_out_whole(tmp_path: Path) -> None:
    lines = b"bad\n" + b"".join(b'{"text": "line %d"}\n' % n for n in range(100_000))
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines)[:-1_000])
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"fine"))
    texts, skipped = used(tmp_path)
    assert texts == [b"fine"]
    assert (skipped.files, skipped.lines) == (1, 0)


def test_of_a_table_only_the_bad_rows_are_left_out(tmp_path: Path) -> None:
    arrow: Any = pytest.importorskip("pyarrow")
    parquet: Any = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    parquet.write_table(arrow.table({"text": ["one", None, "three"]}), path)
    texts, skipped = used(path)
    assert texts == [b"one", b"three"]
    assert skipped.first == [
        f'corpus file {path} row 2 has nothing in its column "text"; remove it'
    ]


def test_a_corpus_of_nothing_but_mistakes_is_refused(tmp_path: Path) -> None:
    for number in range(PROBLEMS_MAX + 5):
        (tmp_path / f"{number:02}.bin").write_bytes(b"\0")
    skipped = Skipped()
    with pytest.raises(CorpusError, match="files 15, lines 0") as caught:
        scan_corpus(find_files([tmp_path], skipped), seed=1, skipped=skipped)
    assert len(caught.value.problems) == 2 + PROBLEMS_MAX


def test_a_path_that_is_missing_is_never_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    with pytest.raises(CorpusError, match="missing: no such file") as caught:
        find_files([tmp_path / "missing", tmp_path / "a.txt"], Skipped())
    assert not isinstance(caught.value, BadFilesError)
    assert len(caught.value.problems) == 1
