"""A corpus that is cut part by part: every line is in one part, and nothing that is held out is
trained on."""

from __future__ import annotations

import gzip
import importlib
import io
import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
import zstandard

from gossamer.protocol.ids import Digest, digest_of
from gossamer.protocol.limits import DATA_PARTS_MAX, KIB, MIB
from gossamer.trainer.text.corpus_parts import CorpusPlan, PartWish, cut_part, plan_parts
from gossamer.trainer.text.mixing import Mixture
from gossamer.trainer.text.shards import cut_corpus
from gossamer.trainer.text.sources import estimates
from gossamer.trainer.text.sources.corpus import Section, scan_corpus
from gossamer.trainer.text.sources.corpus_errors import BadFilesError, CorpusError
from gossamer.trainer.text.sources.documents import Window, file_window
from gossamer.trainer.text.tokenizers.tokens import ByteTokenizer

START_BYTES = 64 * KIB
CONTEXT = 32


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Plain text, JSON lines and a packed file: some 600 KB, in which every line is another."""
    draw = random.Random(3)
    number = 0

    def lines(count: int) -> list[str]:
        nonlocal number
        number += count
        return [f"{number - n} " + "w" * draw.randrange(200) for n in range(count)]

    for name in "abc":
        (tmp_path / f"{name}.txt").write_text("\n".join(lines(1_000)) + "\n")
    rows = [json.dumps({"text": line + "\n"}) for line in lines(1_500)]
    (tmp_path / "d.jsonl").write_text("\n".join(rows) + "\n")
    return sorted(tmp_path.iterdir())


def plan_of(files: list[Path], seed: int = 7) -> CorpusPlan:
    plan = plan_parts(files, seed, START_BYTES)
    assert plan is not None
    return plan


def texts_of(sections: list[Section]) -> list[str]:
    corpus = scan_corpus(sections, seed=7)
    texts = corpus.read(np.arange(len(corpus.keys)))
    return [line for text in texts for line in text.decode().splitlines()]


def test_every_line_is_in_one_part(files: list[Path]) -> None:
    plan = plan_of(files)
    assert plan.num_parts > 3
    there = Counter(line for n in range(plan.num_parts) for line in texts_of(plan.part(n)))
    assert there == Counter(texts_of([Section(path, 0, path.stat().st_size) for path in files]))
    assert set(there.values()) == {1}
    assert plan.num_bytes() == sum(path.stat().st_size for path in files)


def test_the_first_part_is_as_large_as_was_asked_and_comes_from_everywhere(
    files: list[Path],
) -> None:
    plan = plan_of(files)
    assert START_BYTES <= plan.num_bytes(1) < 2 * START_BYTES
    assert len({section.path for section in plan.part(0)}) >= 3
    second = plan.num_bytes(2) - plan.num_bytes(1)
    assert second >= plan.num_bytes(1)
    assert plan_of(files) == plan
    assert plan_of(files, seed=8) != plan


def test_a_corpus_of_little_more_is_one_part_and_a_limit_counts(files: list[Path]) -> None:
    total = sum(path.stat().st_size for path in files)
    assert plan_parts(files, 7, total // 2 + 1) is None
    assert plan_parts(files, 7, START_BYTES, max_bytes=START_BYTES) is None
    limited = plan_parts(files, 7, START_BYTES, max_bytes=4 * START_BYTES)
    assert limited is not None
    assert 4 * START_BYTES <= limited.num_bytes() < 5 * START_BYTES


@pytest.mark.long
def test_a_huge_corpus_has_fewer_parts_than_a_list_may_name(tmp_path: Path) -> None:
    path = tmp_path / "huge.txt"
    with path.open("wb") as file:
        file.truncate(4 * 10**12)  # a hole, which takes no room
    plan = plan_parts([path], 1, 256 * KIB * KIB)
    assert plan is not None
    assert plan.num_parts <= DATA_PARTS_MAX
    assert plan.num_bytes() == 4 * 10**12


def test_a_line_that_is_longer_than_sections_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_text("a" * 100_000 + "\n" + "b" * 150_000 + "\nend")
    cuts = [0, 50_000, 100_000, 100_001, 200_000, path.stat().st_size]
    sections = [Section(path, start, stop) for start, stop in pairwise(cuts)]
    scans = scan_corpus(sections, seed=1)
    assert scans.num_bytes == path.stat().st_size


def packed(data: bytes, suffix: str) -> bytes:
    if suffix == ".gz":
        return gzip.compress(data)
    compressor = zstandard.ZstdCompressor(write_content_size=False)
    return compressor.compress(data)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("form", ["txt", "jsonl"])
def test_every_line_of_a_compressed_file_is_in_one_part(
    tmp_path: Path, suffix: str, form: str
) -> None:
    draw = random.Random(4)
    lines = [f"{n} " + "w" * draw.randrange(300) for n in range(4_000)]
    rows = lines if form == "txt" else [json.dumps({"text": line + "\n"}) for line in lines]
    files = []
    for number in range(2):
        files.append(tmp_path / f"{number}.{form}{suffix}")
        half = rows[2_000 * number : 2_000 * (number + 1)]
        files[-1].write_bytes(packed(("\n".join(half) + "\n").encode(), suffix))
    plan = plan_of(files)
    assert plan.num_parts > 2
    assert {section.path for section in plan.part(0)} == set(files)
    for number in range(plan.num_parts):
        of_files = [section.path for section in plan.part(number)]
        assert len(of_files) == len(set(of_files)), "a part unpacks a file twice"
    there = Counter(line for n in range(plan.num_parts) for line in texts_of(plan.part(n)))
    assert there == Counter(lines)


@pytest.mark.parametrize("kind", ["parquet", "stream", "file"])
def test_every_row_of_a_table_is_in_one_part(tmp_path: Path, kind: str) -> None:
    arrow = pytest.importorskip("pyarrow", reason="install the parquet extra")
    ipc, parquet = (
        importlib.import_module("pyarrow.ipc"),
        importlib.import_module("pyarrow.parquet"),
    )
    draw = random.Random(4)
    lines = [f"{n} " + "w" * draw.randrange(300) for n in range(4_000)]
    table = arrow.table({"text": [line + "\n" for line in lines]})
    path = tmp_path / ("a.parquet" if kind == "parquet" else "a.arrow")
    if kind == "parquet":
        parquet.write_table(table, path, row_group_size=70, use_dictionary=False)
    else:
        opened = ipc.new_stream if kind == "stream" else ipc.new_file
        with opened(str(path), table.schema) as writer:
            writer.write_table(table, max_chunksize=70)
    plan = plan_of([path])
    assert plan.num_parts > 2
    there = Counter(line for n in range(plan.num_parts) for line in texts_of(plan.part(n)))
    assert there == Counter(lines)


def line_start(data: bytes, at: int) -> int:
    """Where the first line begins that begins at byte `at` or later; the end if there is none."""
    return (data.find(b"\n", at - 1) + 1 or len(data)) if at else 0


@pytest.mark.parametrize("opened", [Window, file_window])
@pytest.mark.parametrize("seed", range(20))
def test_windows_have_the_lines_that_begin_in_them(
    seed: int, opened: Callable[[BinaryIO, int, int], Window]
) -> None:
    draw = random.Random(seed)
    data = b"\n".join(b"x" * draw.choice([0, 1, 5, 40, 700]) for _ in range(60))
    cuts = sorted({0, len(data), *(draw.randrange(len(data)) for _ in range(6))})
    for start, stop in pairwise(cuts):
        first, end = line_start(data, start), line_start(data, stop)
        window = opened(io.BytesIO(data), start, stop)
        assert window.first == first
        pieces = []
        while piece := window.read(draw.randrange(1, 90)):
            pieces.append(piece)
        assert b"".join(pieces) == data[first:end]
        lines = opened(io.BytesIO(data), start, stop)
        assert b"".join(iter(lambda lines=lines: lines.readline(50), b"")) == data[first:end]  # type: ignore[misc]


def test_a_long_compressed_file_is_unpacked_a_few_times_at_most(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "huge.jsonl.zst"
    path.write_bytes(b"x")
    monkeypatch.setattr(estimates, "planned_bytes", lambda *_: 10**11)
    plan = plan_parts([path], 1, 256 * MIB)
    assert plan is not None
    read = [section.stop for n in range(plan.num_parts - 1) for section in plan.part(n)]
    assert sum(read) + 10**11 < 6 * 10**11
    assert plan.part(plan.num_parts - 1)[0].stop == sys.maxsize
    assert plan.num_bytes(1) < 300 * MIB


class Shards(dict[Digest, bytes]):
    def put(self, data: bytes) -> Digest:
        self[digest_of(data)] = data
        return digest_of(data)


def test_a_later_part_leaves_out_copies_of_what_is_held_out(files: list[Path]) -> None:
    plan, shards = plan_of(files), Shards()
    first = scan_corpus(plan.part(0), seed=7)
    cut = cut_corpus(first, "bytes", 257, CONTEXT, put=shards.put)
    assert len(cut.heldout_keys)
    wish = PartWish(2, CONTEXT, 100_000, cut.heldout_keys)
    same = cut_part(first, wish, ByteTokenizer(), put=shards.put)
    tokens = sum(shard.num_tokens for shard in same)
    assert tokens == sum(shard.num_tokens for shard in cut.index.shards)

    both = scan_corpus([*plan.part(0), *plan.part(1)], seed=7)
    more = cut_part(both, wish, ByteTokenizer(), put=shards.put)
    again = Shards()
    assert cut_part(both, wish, ByteTokenizer(), put=again.put) == more
    assert sum(shard.num_tokens for shard in more) > tokens
    everything = PartWish(2, CONTEXT, 100_000, first.keys)
    with pytest.raises(CorpusError, match="held out"):
        cut_part(first, everything, ByteTokenizer(), put=shards.put)


@pytest.mark.parametrize("packing", ["gz", "zst"])
def test_a_damaged_file_is_in_a_part_whose_scan_names_it(files: list[Path], packing: str) -> None:
    bad = files[0].with_name(f"z.jsonl.{packing}")
    bad.write_bytes(b"not packed\n" * 50_000)
    mixture = Mixture(("good", "bad"), (1.0, 1.0), (0, 1))
    plan = plan_parts([files[-1], bad], 7, START_BYTES, mixture=mixture)
    assert plan is not None
    with pytest.raises(BadFilesError, match=f"{bad.name}.* cannot be unpacked"):
        scan_corpus(plan.part(0), seed=7)


def test_a_bad_line_is_named_by_its_place(files: list[Path]) -> None:
    path = files[0]
    data = bytearray(path.read_bytes())
    data[-10] = 0xFF
    path.write_bytes(data)
    middle = len(data) // 2
    scan_corpus([Section(path, 0, middle)], seed=1)
    with pytest.raises(BadFilesError, match=f"from byte {middle:,} on"):
        scan_corpus([Section(path, middle, len(data))], seed=1)
