"""Folders in the form of `datasets`, by pyarrow and by the package itself, and Arrow files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gossamer.trainer.text.sources.corpus import scan_corpus
from gossamer.trainer.text.sources.corpus_errors import BadFilesError, CorpusError, Skipped
from gossamer.trainer.text.sources.corpus_files import find_files

TEXTS = [f"Zeile {n} ü\nund mehr" for n in range(700)]


@pytest.fixture
def arrow() -> Any:
    return pytest.importorskip("pyarrow", reason="install it with: pip install '.[parquet]'")


def write(
    path: Path, arrow: Any, rows_of_a_batch: int = 100, form: str = "stream", **columns: Any
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = arrow.table(columns)
    ipc: Any = pytest.importorskip("pyarrow.ipc")
    make = ipc.new_stream if form == "stream" else ipc.new_file
    with make(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=rows_of_a_batch)
    return path


def save(folder: Path, arrow: Any, *tables: list[str], **state: Any) -> Path:
    """A folder in the form of `Dataset.save_to_disk`."""
    names = [f"data-{n:05}-of-{len(tables):05}.arrow" for n in range(len(tables))]
    for name, texts in zip(names, tables, strict=True):
        write(folder / name, arrow, text=texts, number=list(range(len(texts))))
    listed = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "ab"} | state
    (folder / "state.json").write_text(json.dumps(listed))
    (folder / "dataset_info.json").write_text('{"description": "not to be trained on"}')
    return folder


def texts_of(*paths: Path, text_field: str = "text", skipped: Skipped | None = None) -> list[bytes]:
    files = find_files(paths, skipped)
    corpus = scan_corpus(
        files, seed=1, text_field=text_field, scratch=paths[0].parent, skipped=skipped
    )
    return list(corpus.read(np.arange(len(corpus.keys))[::-1]))[::-1]


def problem_of(*paths: Path) -> str:
    with pytest.raises(CorpusError) as caught:
        texts_of(*paths)
    (problem,) = caught.value.problems
    return problem


@pytest.mark.parametrize("form", ["stream", "file"])
@pytest.mark.parametrize("kind", ["string", "large_string", "dictionary"])
def test_each_row_is_a_document(tmp_path: Path, arrow: Any, kind: str, form: str) -> None:
    column = arrow.array([*TEXTS, ""])
    column = column.dictionary_encode() if kind == "dictionary" else column.cast(kind)
    path = write(tmp_path / "a.arrow", arrow, 300, form, number=list(range(701)), body=column)
    assert texts_of(path, text_field="body") == [text.encode() for text in TEXTS]


@pytest.mark.parametrize("form", ["stream", "file"])
def test_progress_rises_to_the_size_of_the_file(tmp_path: Path, arrow: Any, form: str) -> None:
    path = write(tmp_path / "a.arrow", arrow, 100, form, text=TEXTS)
    seen: list[int] = []
    scan_corpus([path], seed=1, progress=lambda _stage, done, _total: seen.append(done))
    assert seen == sorted(seen)
    assert len(set(seen)) > 100
    assert seen[-1] >= path.stat().st_size - 16, "the mark of the end comes after the last row"


def test_a_saved_dataset_has_only_the_tables_that_it_names(tmp_path: Path, arrow: Any) -> None:
    folder = save(tmp_path / "corpus", arrow, TEXTS[:300], TEXTS[300:])
    write(folder / "cache-1234.arrow", arrow, text=["what map() left there"])
    write(folder / "sub" / "old.arrow", arrow, text=["what somebody put there"])
    assert texts_of(folder) == [text.encode() for text in TEXTS]


def test_a_folder_of_datasets_and_other_files(tmp_path: Path, arrow: Any) -> None:
    save(tmp_path / "all" / "one", arrow, ["first"])
    (tmp_path / "all" / "zz.txt").write_text("second")
    (tmp_path / "all" / "a" / "state.json").parent.mkdir()
    (tmp_path / "all" / "a" / "state.json").write_text('{"of": "another program"}')
    found = texts_of(tmp_path / "all")
    assert sorted(found) == [b"first", b"second", b'{"of": "another program"}']


def test_several_splits_have_to_be_named(tmp_path: Path, arrow: Any) -> None:
    for split in ("train", "test"):
        save(tmp_path / "d" / split, arrow, [split])
    listed = tmp_path / "d" / "dataset_dict.json"
    listed.write_text('{"splits": ["train", "test"]}')
    assert "has several splits (train, test); name those to train on, such as" in problem_of(
        tmp_path / "d"
    )
    assert texts_of(tmp_path / "d" / "train") == [b"train"]
    listed.write_text('{"splits": ["train"]}')
    (tmp_path / "d" / "test" / "state.json").unlink()
    for left in (tmp_path / "d" / "test").iterdir():
        left.unlink()
    assert texts_of(tmp_path / "d") == [b"train"]


def test_a_table_that_is_missing_is_named_and_may_be_left_out(tmp_path: Path, arrow: Any) -> None:
    folder = save(tmp_path / "corpus", arrow, ["one"], ["two"])
    (folder / "data-00001-of-00002.arrow").unlink()
    with pytest.raises(
        BadFilesError, match=r"00001-of-00002.arrow: no such file.*state.json names"
    ):
        texts_of(folder)
    skipped = Skipped()
    assert texts_of(folder, skipped=skipped) == [b"one"]
    assert skipped.files == 1


def test_a_name_cannot_lead_out_of_the_folder(tmp_path: Path, arrow: Any) -> None:
    write(tmp_path / "secret.arrow", arrow, text=["secret"])
    folder = save(
        tmp_path / "corpus", arrow, ["one"], _data_files=[{"filename": "../secret.arrow"}]
    )
    with pytest.raises(CorpusError, match=r"corpus/secret\.arrow: no such file"):
        texts_of(folder)


def test_a_selection_of_an_old_version_is_refused(tmp_path: Path, arrow: Any) -> None:
    folder = save(tmp_path / "c", arrow, ["one"], _indices_data_files=[{"filename": "i.arrow"}])
    assert "call flatten_indices() and save it again" in problem_of(folder)


def test_rows_that_cannot_be_used(tmp_path: Path, arrow: Any) -> None:
    path = write(tmp_path / "a.arrow", arrow, text=["one", None, "three"])
    assert f'{path} row 2 has nothing in its column "text"' in problem_of(path)
    skipped = Skipped()
    assert texts_of(path, skipped=skipped) == [b"one", b"three"]
    assert skipped.lines == 1
    other = write(tmp_path / "b.arrow", arrow, body=["one"], number=[1])
    assert "has no column \"text\" (its columns: 'body', 'number')" in problem_of(other)
    numbers = write(tmp_path / "c.arrow", arrow, text=[1])
    assert "of type int64, which is not text" in problem_of(numbers)


@pytest.mark.parametrize("cut", [1, 8, 9, 500, 5_000])
def test_a_file_that_is_cut_is_refused_wherever(tmp_path: Path, arrow: Any, cut: int) -> None:
    path = write(tmp_path / "a.arrow", arrow, text=TEXTS)
    path.write_bytes(path.read_bytes()[:-cut])
    assert "damaged or not whole" in problem_of(path)


def test_what_is_no_arrow_file_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="install it with: pip install '.[parquet]'")
    for content in (b"This is text." * 50, b"ARROW1" + bytes(100)):
        path = tmp_path / "a.arrow"
        path.write_bytes(content)
        assert "cannot be read as Arrow" in problem_of(path)


def test_folders_of_the_package_itself(tmp_path: Path) -> None:
    datasets: Any = pytest.importorskip("datasets", reason="install it with: pip install datasets")
    whole = datasets.Dataset.from_dict({"text": TEXTS, "number": list(range(700))})
    whole.save_to_disk(str(tmp_path / "whole"), num_shards=3)
    whole.shuffle(seed=1).select(range(50)).save_to_disk(str(tmp_path / "part"))
    both = datasets.DatasetDict({"train": whole, "test": whole.select([3])})
    both.save_to_disk(str(tmp_path / "both"))
    assert texts_of(tmp_path / "whole") == [text.encode() for text in TEXTS]
    part = texts_of(tmp_path / "part")
    assert len(part) == 50
    assert set(part) <= {text.encode() for text in TEXTS}
    assert "has several splits (train, test)" in problem_of(tmp_path / "both")
    assert texts_of(tmp_path / "both" / "train") == [text.encode() for text in TEXTS]
