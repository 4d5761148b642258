"""A sample of a whole corpus: from all parts, with their shares, without what is bad."""

from __future__ import annotations

import gzip
import importlib
import json
import random
from collections import Counter
from pathlib import Path

import pytest
import zstandard

from gossamer.protocol.limits import KIB
from gossamer.trainer.text import sampling
from gossamer.trainer.text.corpus_parts import CorpusPlan, plan_parts
from gossamer.trainer.text.mixing import Mixture
from gossamer.trainer.text.sampling import sample_texts

START_BYTES = 256 * KIB


def lines_of(number: int, seed: int = 1) -> list[str]:
    draw = random.Random(seed)
    return [f"{n} " + "w" * draw.randrange(120) for n in range(number)]


def plan_of(files: list[Path], mixture: Mixture | None = None) -> CorpusPlan:
    plan = plan_parts(files, 7, START_BYTES, mixture=mixture)
    assert plan is not None
    return plan


def sampled(plan: CorpusPlan, share: float = 0.1, seed: int = 7) -> list[str]:
    texts = sample_texts(plan, "text", seed, share)
    return [line for text in texts for line in text.decode().splitlines()]


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz"])
def test_the_byte_order_mark_of_a_file_is_in_no_sample(tmp_path: Path, suffix: str) -> None:
    data = ("\ufeff" + "\n".join(lines_of(20_000)) + "\n").encode()
    path = tmp_path / f"a{suffix}"
    path.write_bytes(gzip.compress(data) if suffix.endswith(".gz") else data)
    found = sampled(plan_of([path]), 1.0)
    assert "0 " in {line[:2] for line in found}, "the sample has the file's first line"
    assert not [line for line in found if "\ufeff" in line]


@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".txt.gz", ".jsonl.zst"])
def test_a_sample_is_from_everywhere_and_as_long_as_was_asked(tmp_path: Path, suffix: str) -> None:
    lines = lines_of(40_000)
    rows = lines if "txt" in suffix else [json.dumps({"text": each}) for each in lines]
    data = ("\n".join(rows) + "\n").encode()
    path = tmp_path / f"a{suffix}"
    if suffix.endswith(".gz"):
        data = gzip.compress(data)
    elif suffix.endswith(".zst"):
        data = zstandard.ZstdCompressor().compress(data)
    path.write_bytes(data)
    plan = plan_of([path])
    found = sampled(plan, 0.2)
    assert len(set(found)) == len(found), "a line was taken twice"
    assert set(found) <= set(lines)
    assert sum(map(len, found)) == pytest.approx(0.2 * sum(map(len, lines)), rel=0.1)
    # A tenth of the file has about a tenth of the sample.
    of_tenths = Counter(int(line.split()[0]) // 4_000 for line in found)
    assert len(of_tenths) == 10
    assert max(of_tenths.values()) < 2 * min(of_tenths.values())
    assert sampled(plan, 0.2) == found
    assert sampled(plan, 0.2, seed=8) != found


def test_pieces_go_over_many_small_files(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"{number:03}.txt").write_text("\n".join(lines_of(60, number)) + "\n")
    files = sorted(tmp_path.iterdir())
    total = sum(path.stat().st_size for path in files)
    found = sampled(plan_of(files), 0.2)
    assert sum(len(line) + 1 for line in found) == pytest.approx(0.2 * total, rel=0.15)


def test_a_long_compressed_file_is_not_unpacked_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "UNPACKED_TIMES", 2)
    lines = lines_of(40_000)
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    numbers = [int(line.split()[0]) for line in sampled(plan_of([path]), 0.1)]
    assert min(numbers) < 2_000
    assert 7_000 < max(numbers) < 10_000


def test_sources_have_their_shares(tmp_path: Path) -> None:
    """Half of the bytes of a are text, and b has three times as much as it may give."""
    rows = [{"text": f"a{line}", "of": "x" * len(line)} for line in lines_of(20_000)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "b.txt").write_text("\n".join(f"b{line}" for line in lines_of(20_000, 2)))
    files = [tmp_path / "a.jsonl", tmp_path / "b.txt"]
    mixture = Mixture(("a", "b"), (3.0, 1.0), (0, 1))
    found = sampled(plan_of(files, mixture), 0.3)
    of_a = sum(len(line) for line in found if line[0] == "a")
    assert of_a / sum(map(len, found)) == pytest.approx(0.75, abs=0.04)


def test_what_cannot_be_used_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n".join(lines_of(8_000)))
    (tmp_path / "b.txt").write_bytes(b"\xff\x00" * 200_000)
    (tmp_path / "c.jsonl").write_text("{}\n" * 100_000 + '{"text": "good"}\n' * 20_000)
    (tmp_path / "d.txt.gz").write_bytes(gzip.compress(b"short\n" * 100_000)[:-100])
    plan = plan_of(sorted(tmp_path.iterdir()))
    found = sampled(plan, 0.3)
    assert found.count("good") == 1, "copies are learnt once"
    assert len(found) > 1_000
    (tmp_path / "a.txt").unlink()
    assert "good" in sampled(plan, 0.3)


def test_groups_of_a_table_are_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrow = pytest.importorskip("pyarrow", reason="install the parquet extra")
    parquet = importlib.import_module("pyarrow.parquet")
    lines = lines_of(20_000)
    path = tmp_path / "a.parquet"
    table = arrow.table({"text": [line + "\n" for line in lines]})
    parquet.write_table(table, path, row_group_size=100, use_dictionary=False)
    monkeypatch.setattr(sampling, "PIECES", 100)
    found = sampled(plan_of([path]), 0.2)
    assert len(set(found)) == len(found)
    tenths = {int(line.split()[0]) // 2_000 for line in found}
    assert len(tenths) == 10
    assert 0.1 < len(found) / len(lines) < 0.4


def test_one_long_line_does_not_make_a_sample_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "SAMPLE_BYTES_MAX", 50_000)
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": f"{n}" * 30_000}) + "\n" for n in range(60)))
    texts = list(sample_texts(plan_of([path]), "text", 7, 0.5))
    assert 1 <= len(texts) <= 2
