"""Preparing the data in a process of its own."""

import gzip
import json
import os
import random
from pathlib import Path

import msgspec
import pytest
import trio

from gossamer.node.runs.founding.founding import PreparedData, prepare_data
from gossamer.node.runs.founding.preparing import prepare_elsewhere
from gossamer.node.runs.planning.draft import CorpusDraft, Draft, SourceDraft, draft_of_preset
from gossamer.protocol.limits import KIB, MIB
from gossamer.trainer.text.sources.corpus import Progress, no_progress
from gossamer.trainer.text.sources.corpus_errors import PROBLEMS_MAX, CorpusError
from tests.support.block_dict import BlockDict

replace = msgspec.structs.replace
DRAFT = draft_of_preset("tiny")
LATIN = os.fsdecode(b"caf\xe9")
"""A name of a file that is not UTF-8."""


def prepare(
    corpus: Path | None,
    state: Path,
    draft: Draft = DRAFT,
    progress: Progress = no_progress,
    *,
    skip_bad: bool = False,
) -> PreparedData:
    async def main() -> PreparedData:
        blocks = state / "blocks"
        paths = [corpus] if corpus is not None else []
        return await prepare_elsewhere(draft, paths, blocks, 64 * MIB, progress, skip_bad=skip_bad)

    state.mkdir(exist_ok=True)
    return trio.run(main)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    lines = [json.dumps({"text": f"Text {n}. " + "word " * (n % 97)}) for n in range(600)]
    (tmp_path / "texts").mkdir()
    path = tmp_path / "texts" / "a.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return path


def test_packed_text_leaves_nothing_but_blocks(corpus: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    data = prepare(corpus, state)
    assert data.config == prepare_data(DRAFT, [corpus], put=BlockDict().put).config
    assert [path.name for path in state.iterdir()] == ["blocks"]


def test_a_bad_file_ends_it_by_name(corpus: Path, tmp_path: Path) -> None:
    corpus.write_bytes(corpus.read_bytes()[:-20])
    with pytest.raises(CorpusError, match=r"a\.jsonl\.gz cannot be unpacked"):
        prepare(corpus, tmp_path / "state")


def test_bad_files_stop_the_founding_unless_they_may_be_left_out(
    corpus: Path, tmp_path: Path
) -> None:
    good = prepare(corpus.parent, tmp_path / "good")
    for number in range(PROBLEMS_MAX + 5):
        (corpus.parent / f"{number:02}.png").write_bytes(b"\x89PNG\0")
    (corpus.parent / "b.jsonl").write_text('{"text": "Text 1. word "}\n{"body": "x"}\n')
    state = tmp_path / "state"

    with pytest.raises(CorpusError) as caught:
        prepare(corpus.parent, state)
    *_, tenth, more, advice = caught.value.problems
    assert "09.png is binary" in tenth
    assert more == "... and 6 more of this kind"
    assert advice.startswith("nothing was founded")
    assert advice.endswith("start --skip-bad")
    assert not [path for path in state.rglob("*") if path.is_file()]

    data = prepare(corpus.parent, state, skip_bad=True)
    assert data.config == good.config
    count, *first = data.warnings
    assert "files 15, lines 1; the first of them:" in count
    assert len(first) == PROBLEMS_MAX
    assert "00.png is binary" in first[0]


def test_text_in_files_with_names_that_are_not_utf8_is_cut(tmp_path: Path) -> None:
    (tmp_path / LATIN).mkdir()
    file = tmp_path / LATIN / f"{LATIN}.txt"
    file.write_text("\n".join(f"line {n} of it" for n in range(2_000)))
    expected = prepare_data(DRAFT, [file], put=BlockDict().put).config
    state = tmp_path / LATIN / "state"
    assert prepare(file, state).config == expected
    named = replace(DRAFT, corpus=CorpusDraft(paths=(str(file),)))
    assert prepare(None, state, named).config == expected


def test_a_bad_file_with_a_name_that_is_not_utf8_is_named(corpus: Path, tmp_path: Path) -> None:
    good = prepare(corpus.parent, tmp_path / "good")
    (corpus.parent / f"{LATIN}.png").write_bytes(b"\x89PNG\0")
    with pytest.raises(CorpusError, match=r"caf\\udce9\.png is binary"):
        prepare(corpus.parent, tmp_path / "state")
    data = prepare(corpus.parent, tmp_path / "state", skip_bad=True)
    assert data.config == good.config
    assert r"caf\udce9.png is binary" in data.warnings[1]


def with_sources(folder: Path, max_bytes: int) -> Draft:
    for name, number in (("long", 900), ("short", 100)):
        lines = (json.dumps({"text": f"{name} {n} " + "word " * 50}) for n in range(number))
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    sources = tuple(
        SourceDraft(path=str(folder / f"{name}.jsonl"), weight=weight)
        for name, weight in (("long", 3.0), ("short", 1.0))
    )
    return replace(DRAFT, corpus=CorpusDraft(sources=sources, max_bytes=max_bytes))


def test_sources_are_mixed_by_weight_and_the_shares_are_said(tmp_path: Path) -> None:
    exact = prepare(None, tmp_path / "exact", with_sources(tmp_path, 0))
    assert exact.warnings == ()
    long, short, rest = exact.notes
    assert "long.jsonl: 75.0% of the text" in long
    assert "short.jsonl: 25.0% of the text" in short
    assert "corpus.max_bytes takes more" in rest

    missed = prepare(None, tmp_path / "missed", with_sources(tmp_path, 200_000))
    assert missed.notes == ()
    long, short = missed.warnings
    assert "its weight wants 25.0%: it has no more" in short
    assert "its weight wants 75.0%: another source has too little" in long
    assert missed.config.num_tokens > exact.config.num_tokens


def test_a_corpus_on_the_command_line_replaces_the_sources(corpus: Path, tmp_path: Path) -> None:
    draft = with_sources(tmp_path, 0)
    replaced = prepare(corpus, tmp_path / "state", draft)
    assert replaced.config == prepare_data(DRAFT, [corpus], put=BlockDict().put).config


def test_a_corpus_that_will_not_fit_the_cache_is_said_at_once(tmp_path: Path) -> None:
    draw = random.Random(2)
    (tmp_path / "state").mkdir()
    text = "\n".join("".join(draw.choices("abcdefgh", k=60)) for _ in range(30_000))
    (tmp_path / "a.txt").write_text(text)

    async def main(cache_bytes: int) -> PreparedData:
        return await prepare_elsewhere(
            DRAFT,
            [tmp_path / "a.txt"],
            tmp_path / "state" / "blocks",
            cache_bytes,
            no_progress,
            start_bytes=256 * KIB,
        )

    assert not trio.run(main, 64 * MIB).warnings
    assert any("--cache-bytes" in each for each in trio.run(main, MIB // 2).warnings)
