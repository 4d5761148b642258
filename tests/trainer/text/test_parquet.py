import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gossamer.trainer.text.sources import tables as tables_module
from gossamer.trainer.text.sources import unpacking
from gossamer.trainer.text.sources.corpus import scan_corpus
from gossamer.trainer.text.sources.corpus_errors import CorpusError


@pytest.fixture
def arrow() -> Any:
    return pytest.importorskip("pyarrow", reason="install it with: pip install '.[parquet]'")


def write(path: Path, arrow: Any, rows_of_a_group: int = 100, **columns: Any) -> Path:
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table(columns), path, row_group_size=rows_of_a_group)
    return path


def texts_of(path: Path, text_field: str = "text") -> list[bytes]:
    corpus = scan_corpus([path], seed=1, text_field=text_field, scratch=path.parent)
    return list(corpus.read(np.arange(len(corpus.keys))[::-1]))[::-1]


def problem_of(path: Path) -> str:
    with pytest.raises(CorpusError) as caught:
        texts_of(path)
    (problem,) = caught.value.problems
    return problem


@pytest.mark.parametrize("kind", ["string", "large_string", "dictionary"])
def test_each_row_is_a_document(tmp_path: Path, arrow: Any, kind: str) -> None:
    texts = [f"Zeile {n % 200} ü\nnext" for n in range(700)] + [""]
    column = arrow.array(texts)
    column = column.dictionary_encode() if kind == "dictionary" else column.cast(kind)
    path = write(tmp_path / "a.parquet", arrow, body=column, number=list(range(701)))
    assert texts_of(path, "body") == [text.encode() for text in texts[:-1]]


def test_progress_of_rows_ends_at_the_files_size(tmp_path: Path, arrow: Any) -> None:
    path = write(tmp_path / "a.parquet", arrow, text=[f"text {n}" for n in range(300)])
    seen: list[tuple[str, int, int]] = []
    scan_corpus([path], seed=1, progress=lambda *report: seen.append(report))
    size = path.stat().st_size
    assert seen[-1] == ("reading", size, size)
    assert len(seen) == 300


def test_a_row_without_text_is_named(tmp_path: Path, arrow: Any) -> None:
    path = write(tmp_path / "a.parquet", arrow, text=["one", None, "three"])
    assert f'{path} row 2 has nothing in its column "text"' in problem_of(path)
    path = write(tmp_path / "b.parquet", arrow, text=["one", "two", "a\0b"])
    assert f"{path} row 3 is binary" in problem_of(path)


def test_a_table_without_a_text_column_is_named_with_its_columns(
    tmp_path: Path, arrow: Any
) -> None:
    path = write(tmp_path / "a.parquet", arrow, body=["one"])
    assert "has no column \"text\" (its columns: 'body'); set text_field" in problem_of(path)
    path = write(tmp_path / "b.parquet", arrow, text=[1])
    assert 'has a column "text" of type int64' in problem_of(path)
    parquet = pytest.importorskip("pyarrow.parquet")
    twice = arrow.Table.from_arrays([arrow.array(["one"])] * 2, names=["text", "text"])
    parquet.write_table(twice, tmp_path / "c.parquet")
    assert 'has 2 columns "text"' in problem_of(tmp_path / "c.parquet")


def test_a_damaged_or_cut_table_is_named(tmp_path: Path, arrow: Any) -> None:
    path = write(tmp_path / "a.parquet", arrow, text=[f"text {n}" for n in range(3_000)])
    whole = path.read_bytes()
    middle = len(whole) // 3
    for data in (
        whole[: len(whole) // 2],
        b"text",
        whole[:middle] + bytes(200) + whole[middle + 200 :],
    ):
        path.write_bytes(data)
        assert f"corpus file {path} cannot be read as Parquet (" in problem_of(path)


def test_a_table_that_is_a_bomb_is_refused(
    tmp_path: Path, arrow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.parquet", arrow, text=["x" * 10_000] * 2_000)
    monkeypatch.setattr(unpacking, "UNPACKED_BYTES_FREE", 2**20)
    assert "a decompression bomb?" in problem_of(path)
    monkeypatch.setattr(tables_module, "GROUP_BYTES_MAX", 1_000)
    assert "smaller row groups" in problem_of(path)


def test_without_pyarrow_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1")
    assert "pip install 'gossamer[parquet]'" in problem_of(path)


def test_pyarrow_is_imported_for_parquet_only(tmp_path: Path) -> None:
    already = "pyarrow" in sys.modules
    path = tmp_path / "a.txt"
    path.write_text("text")
    assert texts_of(path) == [b"text"]
    assert ("pyarrow" in sys.modules) == already
