import gzip
import json
import random
from pathlib import Path

import numpy as np
import pytest
import zstandard

from gossamer.trainer.text.sources import spool as spool_module
from gossamer.trainer.text.sources import unpacking
from gossamer.trainer.text.sources.corpus import Corpus, scan_corpus
from gossamer.trainer.text.sources.corpus_errors import BadFilesError, CorpusError
from gossamer.trainer.text.sources.corpus_files import find_files
from gossamer.trainer.text.sources.spool import Spool


def some_text(num_lines: int) -> bytes:
    draw = random.Random(num_lines)
    return "".join(f"{n} {draw.random()} ü\n" for n in range(num_lines)).encode()


def some_lines(num_lines: int) -> bytes:
    return b"".join(json.dumps({"text": f"line {n} ü"}).encode() + b"\n" for n in range(num_lines))


def packed(data: bytes, suffix: str) -> bytes:
    return gzip.compress(data) if suffix == ".gz" else zstandard.ZstdCompressor().compress(data)


def texts_of(corpus: Corpus) -> list[bytes]:
    """Every text, read last one first."""
    return list(corpus.read(np.arange(len(corpus.keys))[::-1]))[::-1]


def problem_of(path: Path) -> str:
    with pytest.raises(CorpusError) as caught:
        scan_corpus([path], seed=1)
    (problem,) = caught.value.problems
    return problem


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("content", ["a.txt", "a.jsonl", "a.NDJSON"])
def test_a_compressed_file_has_the_documents_of_the_plain_one(
    tmp_path: Path, content: str, suffix: str
) -> None:
    data = some_text(30_000) if content == "a.txt" else some_lines(500)
    plain, other = tmp_path / "plain" / content, tmp_path / "packed" / (content + suffix)
    for path, value in ((plain, data), (other, packed(data, suffix))):
        path.parent.mkdir()
        path.write_bytes(value)

    of_plain = scan_corpus(find_files([plain]), seed=1)
    of_packed = scan_corpus(find_files([other.parent]), seed=1, scratch=tmp_path)

    assert texts_of(of_packed) == texts_of(of_plain)
    assert of_packed.keys.tolist() == of_plain.keys.tolist()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["packed", "plain"]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_parts_behind_one_another_are_read_as_one(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(
        packed(some_lines(7), suffix) + packed(some_lines(9)[len(some_lines(7)) :], suffix)
    )
    texts = texts_of(scan_corpus([path], seed=1))
    assert texts[6] == "line 6 ü".encode()
    assert texts[-1] == "line 8 ü".encode()


def test_frames_of_zstd_that_hold_no_text_are_passed_over(tmp_path: Path) -> None:
    """RFC 8878, section 3.1.2; parallel compressors write them."""
    skippable = (0x184D2A50).to_bytes(4, "little") + (5_000).to_bytes(4, "little") + bytes(5_000)
    frame = packed(some_text(100), ".zst")
    path = tmp_path / "a.txt.zst"
    for data in (skippable + frame, frame + skippable):
        path.write_bytes(data)
        assert b"".join(texts_of(scan_corpus([path], seed=1))) == some_text(100)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_damaged_or_cut_file_is_named(tmp_path: Path, suffix: str) -> None:
    whole = packed(some_text(5_000), suffix)
    path = tmp_path / f"a.txt{suffix}"
    for data in (whole[: len(whole) // 2], whole[:-1], b"no archive at all", whole + b"rubbish"):
        path.write_bytes(data)
        problem = problem_of(path)
        assert f"corpus file {path} cannot be unpacked (" in problem
        assert "fetch it again" in problem


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_packed_binary_file_is_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.tar{suffix}"
    path.write_bytes(packed(b"a\0b", suffix))
    assert "is binary" in problem_of(path)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_bomb_is_refused_before_it_fills_the_disk(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacking, "UNPACKED_BYTES_FREE", 2**20)
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(packed(b"x" * 2**26, suffix))
    written: list[int] = []
    add = Spool.add

    def noted(self: Spool, text: bytes) -> int:
        written.append(len(text))
        return add(self, text)

    monkeypatch.setattr(Spool, "add", noted)

    assert "a decompression bomb?): leave it out" in problem_of(path)
    assert sum(written) <= unpacking.bomb_bytes(path.stat().st_size) < 2**24


def test_a_zstd_window_that_needs_too_much_memory_is_refused(tmp_path: Path) -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=28, enable_ldm=False)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    path = tmp_path / "a.txt.zst"
    path.write_bytes(compressor.compress(some_text(100)) + compressor.flush())
    problem = problem_of(path)
    assert "with a window of more than 128 MiB" in problem
    assert "pack it anew" in problem
    assert "damaged" not in problem  # it is whole, and fetching it again gives the same


def test_a_disk_that_is_too_small_is_known_before_anything_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(some_text(1_000)))
    monkeypatch.setattr(spool_module, "DISK_RESERVE_BYTES", 2**62)
    monkeypatch.setattr(Spool, "add", None)
    assert f"{tmp_path} has room for 0" in problem_of_scratch(path, tmp_path)


def test_a_disk_that_fills_meanwhile_ends_the_unpacking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path)
    spool.add(bytes(2**20))
    monkeypatch.setattr(spool_module, "DISK_RESERVE_BYTES", 2**62)
    monkeypatch.setattr(spool_module, "_CHECK_BYTES", 2**20)
    with pytest.raises(CorpusError, match="make room there"):
        spool.add(bytes(2**20))


def test_plain_files_need_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(some_text(10))
    monkeypatch.setattr(spool_module, "DISK_RESERVE_BYTES", 2**62)
    assert texts_of(scan_corpus([path], seed=1, scratch=tmp_path)) == [some_text(10)]


def problem_of_scratch(path: Path, scratch: Path) -> str:
    with pytest.raises(CorpusError) as caught:
        scan_corpus([path], seed=1, scratch=scratch)
    (problem,) = caught.value.problems
    return problem


def test_patterns_that_no_shell_expanded_are_expanded(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl", "deep/c.jsonl", "d.txt", "odd[1].jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")

    def names(pattern: str) -> list[str]:
        return [path.name for path in find_files([tmp_path / pattern])]

    assert names("*.jsonl") == ["a.jsonl", "b.jsonl", "odd[1].jsonl"]
    assert names("**/c.*") == ["c.jsonl"]
    assert names("odd[1].jsonl") == ["odd[1].jsonl"]
    with pytest.raises(CorpusError, match=r"x\*: no such file"):
        names("x*")


def test_a_pattern_passes_over_empty_files_as_a_folder_does(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").touch()
    with pytest.raises(BadFilesError, match=r"__init__.py is empty"):
        find_files([tmp_path / "*.py"])
    (tmp_path / "code.py").write_text("pass")
    assert find_files([tmp_path / "*.py"]) == [tmp_path / "code.py"]
    with pytest.raises(BadFilesError, match=r"__init__.py is empty"):
        find_files([tmp_path / "__init__.py"])
