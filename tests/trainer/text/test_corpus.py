import gzip
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gossamer.trainer.text.sources import corpus as corpus_module
from gossamer.trainer.text.sources.corpus import Corpus, Section, scan_corpus
from gossamer.trainer.text.sources.corpus_errors import PROBLEMS_MAX, CorpusError
from gossamer.trainer.text.sources.corpus_files import default_files, find_files
from gossamer.trainer.text.sources.documents import DOCUMENT_BYTES_MIN, LINE_BYTES_MAX


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def texts_of(corpus: Corpus) -> list[bytes]:
    return list(corpus.read(np.arange(len(corpus.keys))))


def problems_of_scan(*files: Path) -> list[str]:
    with pytest.raises(CorpusError) as caught:
        scan_corpus(find_files(files), seed=1)
    return caught.value.problems


def test_a_folder_is_walked_in_order_without_hidden_and_empty_files(tmp_path: Path) -> None:
    for name in ("b/2.txt", "a.txt", "b/1.md", ".git/config", "b/.hidden"):
        write(tmp_path / name, "text")
    write(tmp_path / "empty.txt", "")

    found = find_files([tmp_path])

    assert [str(path.relative_to(tmp_path.resolve())) for path in found] == [
        "a.txt",
        "b/1.md",
        "b/2.txt",
    ]


def test_a_file_named_twice_is_found_once(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "text")
    assert find_files([path, tmp_path, path]) == [path.resolve()]


def test_every_unusable_path_is_named_with_what_to_do(tmp_path: Path) -> None:
    empty = write(tmp_path / "empty.txt", "")
    hollow = tmp_path / "hollow"
    hollow.mkdir()
    broken = tmp_path / "links"
    broken.mkdir()
    (broken / "gone.txt").symlink_to(tmp_path / "nowhere")

    with pytest.raises(CorpusError) as caught:
        find_files([tmp_path / "missing", empty, hollow, broken, Path("/dev/null")])

    missing, is_empty, nothing, link, no_text, device = caught.value.problems
    assert "missing: no such file" in missing
    assert "check the spelling" in missing
    assert f"{empty} is empty; leave it out" in is_empty
    assert f"{hollow} has no file with text" in nothing
    assert "gone.txt: no such file" in link
    assert str(broken) in no_text
    assert "neither a file nor a folder" in device


def test_binary_and_wrongly_encoded_files_are_named_together(tmp_path: Path) -> None:
    write(tmp_path / "good.txt", "fine")
    write(tmp_path / "picture.png", b"\x89PNG\0\0")
    write(tmp_path / "latin.txt", "Grüße".encode("latin-1"))

    latin, picture = problems_of_scan(tmp_path)

    assert "latin.txt is not UTF-8 text (byte 0xfc, 2 bytes after byte 0)" in latin
    assert "picture.png is binary" in picture
    assert "leave it out, or convert it" in picture


def test_a_folder_full_of_mistakes_gives_a_short_list(tmp_path: Path) -> None:
    for number in range(PROBLEMS_MAX + 5):
        write(tmp_path / f"{number:02}.bin", b"\0")

    problems = problems_of_scan(tmp_path)

    assert len(problems) == PROBLEMS_MAX + 1
    assert problems[-1] == "... and 5 more of this kind"


def test_each_json_line_is_a_document(tmp_path: Path) -> None:
    lines = [{"text": "one\nline", "id": 1}, {"text": ""}, {"id": 2, "text": "zwölf ✓"}]
    content = "\n\n".join(json.dumps(line) for line in lines)
    path = write(tmp_path / "a.jsonl", content)

    corpus = scan_corpus([path], seed=1)

    assert texts_of(corpus) == [b"one\nline", "zwölf ✓".encode()]
    assert corpus.num_bytes == len("one\nline") + len("zwölf ✓".encode())


def test_a_byte_order_mark_before_json_lines_is_no_text(tmp_path: Path) -> None:
    content = b'\xef\xbb\xbf{"text": "one"}\r\n{"text": "two"}\r\n'
    plain = write(tmp_path / "a.jsonl", content)
    packed = write(tmp_path / "a.jsonl.gz", gzip.compress(content))
    for path in (plain, packed):
        assert texts_of(scan_corpus([path], seed=1)) == [b"one", b"two"]


@pytest.mark.parametrize("suffix", [".txt", ".md.gz", ".zst"])
def test_a_byte_order_mark_is_no_text_at_the_start_of_a_file_alone(
    tmp_path: Path, suffix: str
) -> None:
    """Elsewhere it is a character of the text, an unbreakable space of no width."""
    mark = "\ufeff".encode()
    lines = b"".join(b"%d a line\n" % number for number in range(1_000))
    text = lines + mark + lines
    packed = {".md.gz": gzip.compress(mark + text), ".zst": zstandard.compress(mark + text)}
    path = write(tmp_path / f"a{suffix}", packed.get(suffix, mark + text))
    corpus = scan_corpus([path], seed=1)
    assert len(corpus.keys) > 2
    assert b"".join(texts_of(corpus)) == text
    assert corpus.num_bytes == len(text)


def test_a_section_that_begins_with_a_byte_order_mark_within_a_file_keeps_it(
    tmp_path: Path,
) -> None:
    mark = "\ufeff".encode()
    path = write(tmp_path / "a.txt", mark + b"one\n" + mark + b"two\n")
    sections = [Section(path, 0, 7), Section(path, 7, 14)]
    assert texts_of(scan_corpus(sections, seed=1)) == [b"one\n", mark + b"two\n"]


def test_a_file_with_nothing_but_a_byte_order_mark_has_no_text(tmp_path: Path) -> None:
    for name, content in (("a.txt", b""), ("b.jsonl", b"\r\n")):
        path = write(tmp_path / name, b"\xef\xbb\xbf" + content)
        assert "the corpus has no text in it" in problems_of_scan(path)[0]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.txt.gz"])
def test_a_file_in_utf_16_is_named_as_that(tmp_path: Path, name: str, encoding: str) -> None:
    data = '\ufeff{"text": "one"}\n'.encode(encoding)
    path = write(tmp_path / name, gzip.compress(data) if name.endswith(".gz") else data)
    (problem,) = problems_of_scan(path)
    assert "is UTF-16 text" in problem
    assert "convert it to UTF-8" in problem


def test_another_field_of_a_json_line_may_hold_the_text(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"body": "here", "text": "not here"}\n')
    assert texts_of(scan_corpus([path], seed=1, text_field="body")) == [b"here"]


@pytest.mark.parametrize(
    ("line", "explanation"),
    [
        ('{"body": "x"}', "has no field \"text\" (its fields: 'body')"),
        ('{"text": 3}', 'has a field "text" that is not text'),
        ('{"text": "\\ud800"}', "cannot be read as a JSON object"),
        ('{"text": "a\\u0000b"}', "has byte 0"),
        ("plain text", "cannot be read as a JSON object"),
        ("[1, 2]", "cannot be read as a JSON object"),
    ],
)
def test_a_bad_json_line_is_named_by_its_number(
    tmp_path: Path, line: str, explanation: str
) -> None:
    path = write(tmp_path / "a.jsonl", f'{{"text": "good"}}\n{line}\n')
    (problem,) = problems_of_scan(path)
    assert f"{path.resolve()} line 2 {explanation}" in problem


def test_an_endless_json_line_is_not_read_whole(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", b"x" * (2 * LINE_BYTES_MAX))
    (problem,) = problems_of_scan(path)
    assert "line 1 is longer than 16 MiB" in problem


def test_a_long_text_is_cut_at_ends_of_lines(tmp_path: Path) -> None:
    lines = [f"line {number} of a long file\n" for number in range(5_000)]
    corpus = scan_corpus([write(tmp_path / "a.txt", "".join(lines))], seed=1)

    pieces = texts_of(corpus)

    assert len(pieces) > 20
    assert all(piece.endswith(b"\n") and len(piece) <= DOCUMENT_BYTES_MIN for piece in pieces)
    assert b"".join(pieces).decode() == "".join(lines)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    text=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1),
    copies=st.integers(1, 2_000),
)
def test_pieces_of_a_text_are_the_text(tmp_path: Path, text: str, copies: int) -> None:
    content = (text * copies)[:20_000]
    corpus = scan_corpus([write(tmp_path / "a.txt", content)], seed=1)
    pieces = texts_of(corpus)
    assert b"".join(pieces) == content.encode()
    assert all(piece.decode() for piece in pieces)  # no character was cut


def test_keys_depend_on_seed_and_text_only(tmp_path: Path) -> None:
    first = write(tmp_path / "one/a.txt", "same")
    second = write(tmp_path / "two/b.jsonl", '{"text": "same"}')
    other = write(tmp_path / "c.txt", "different")

    corpus = scan_corpus([first, second, other], seed=1)
    reseeded = scan_corpus([first], seed=2)

    assert corpus.keys[0] == corpus.keys[1]
    assert len({*corpus.keys.tolist(), *reseeded.keys.tolist()}) == 3


def test_a_file_that_changes_after_the_scan_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "before")
    corpus = scan_corpus([path], seed=1)
    write(path, "behind")
    with pytest.raises(CorpusError, match=r"a\.txt changed while it was read"):
        texts_of(corpus)
    path.unlink()
    with pytest.raises(CorpusError, match=r"a\.txt changed while it was read"):
        texts_of(corpus)


def test_documents_are_read_in_any_order_with_few_open_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus_module, "OPEN_FILES_MAX", 2)
    files = [
        write(tmp_path / f"{n}.jsonl", f'{{"text": "{n}a"}}\n{{"text": "{n}b"}}') for n in "0123"
    ]
    corpus = scan_corpus(files, seed=1)
    order = np.array([7, 0, 5, 2, 1, 4])
    assert list(corpus.read(order)) == [b"3b", b"0a", b"2b", b"1a", b"0b", b"2a"]


def test_progress_ends_at_the_total(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{n}.txt", "x" * n) for n in range(1, 4)]
    seen: list[tuple[str, int, int]] = []
    scan_corpus(files, seed=1, progress=lambda *report: seen.append(report))
    assert seen == [("reading", 1, 6), ("reading", 3, 6), ("reading", 6, 6)]


def test_the_default_corpus_is_python_without_tests_and_packages() -> None:
    files = default_files()
    folders = {part for path in files for part in path.parts[:-1]}
    assert all(path.suffix == ".py" for path in files)
    assert not folders & {"site-packages", "__pycache__", "test"}
    assert sum(path.stat().st_size for path in files) > 4 * 2**20


def test_the_default_corpus_takes_the_tests_where_the_rest_is_small(tmp_path: Path) -> None:
    for name in ("a.py", "test/b.py", "site-packages/c.py", "notes.txt"):
        write(tmp_path / name, "x = 1\n")
    write(tmp_path / "test/latin.py", b"# -*- coding: latin-1 -*-\n# \xfc\n")

    assert [path.name for path in default_files(tmp_path)] == ["a.py", "b.py"]
    with pytest.raises(CorpusError, match="name a corpus with --corpus"):
        default_files(tmp_path / "nothing")


def test_reading_text_does_not_import_torch() -> None:
    code = (
        "import sys, gossamer.trainer.text.shards, gossamer.trainer.presets.table\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
