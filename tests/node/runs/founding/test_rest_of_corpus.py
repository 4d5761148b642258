"""The rest of a corpus: parts with a learnt vocabulary, of conversations, of packed files, and with
lines that cannot be used; and which corpora are cut as a whole."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zstandard
from numpy.typing import NDArray

from gossamer.node.runs.founding.founding import PreparedData, prepare_data
from gossamer.node.runs.founding.importing import with_pretrained
from gossamer.node.runs.founding.rest_of_corpus import cut_rest, expected_tokens
from gossamer.node.runs.planning.draft import CorpusDraft, Draft, SourceDraft, draft_of_preset
from gossamer.protocol.limits import KIB
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.shard_index import PROMPT_BIT, ShardInfo
from gossamer.trainer.pretrained.folder import open_pretrained
from gossamer.trainer.text.sources.corpus_errors import BadFilesError, NoTextError
from gossamer.trainer.text.tokenizers.tokens import load_tokenizer
from tests.support.block_dict import BlockDict
from tests.support.builders import manifest
from tests.support.model_folders import config_of_family, make_folder

replace = msgspec.structs.replace
BYTES = draft_of_preset("tiny")
BPE = replace(
    BYTES, tokenizer=replace(BYTES.tokenizer, kind="bpe", vocabulary=300), model=replace(
        BYTES.model, vocabulary=300
    )
)  # fmt: skip
START_BYTES = 256 * KIB
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
)


def lines_of(number: int, seed: int = 1) -> list[str]:
    draw = random.Random(seed)
    return [f"line {n} of {seed} " + "w" * draw.randrange(400) for n in range(number)]


def prepared(
    draft: Draft, paths: list[Path], store: BlockDict, skip_bad: bool = False
) -> PreparedData:
    return prepare_data(draft, paths, put=store.put, start_bytes=START_BYTES, skip_bad=skip_bad)


def run_of(draft: Draft, data: PreparedData) -> Manifest:
    return replace(manifest(), data=data.config, model=draft.model)


def parts_of(
    draft: Draft, data: PreparedData, store: BlockDict, scratch: Path
) -> Iterator[tuple[tuple[ShardInfo, ...], list[str]]]:
    assert data.rest is not None
    run = run_of(draft, data)
    file = store[run.data.tokenizer_digest] if run.data.tokenizer_digest else b""
    for number in range(1, data.rest.plan.num_parts):
        yield cut_rest(data.rest, number, run, file, put=store.put, scratch=scratch)


def tokens_of(
    shards: tuple[ShardInfo, ...], store: BlockDict, token_bytes: int
) -> NDArray[np.uint32]:
    packed = (store[shard.digest] for shard in shards)
    data = b"".join(zstandard.ZstdDecompressor().decompress(each) for each in packed)
    return np.frombuffer(data, dtype=f"<u{token_bytes}").astype(np.uint32)


def test_parts_have_the_vocabulary_of_the_first_one(tmp_path: Path) -> None:
    text = "\n".join(lines_of(4_000))
    (tmp_path / "a.txt").write_text(text)
    store = BlockDict()
    data = prepared(BPE, [tmp_path / "a.txt"], store)
    tokenizer = load_tokenizer("bpe", store[data.config.tokenizer_digest])
    there = [data.index.shards, data.index.heldout]
    there += [shards for shards, _ in parts_of(BPE, data, store, tmp_path)]
    tokens = np.concatenate([tokens_of(shards, store, 2) for shards in there])
    # Sequences are shuffled: what is the same is how often each byte is there.
    found = np.frombuffer(tokenizer.decode(tokens).encode(), np.uint8)
    expected = np.frombuffer(text.encode(), np.uint8)
    letters = np.frombuffer(b"line of w0123456789\n", np.uint8)
    for letter in letters:
        assert np.count_nonzero(found == letter) == np.count_nonzero(expected == letter)


def test_all_is_expected_from_the_first_part(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n".join(lines_of(8_000)))
    store = BlockDict()
    data = prepared(BYTES, [tmp_path / "a.txt"], store)
    assert data.rest is not None
    assert data.config.grows
    rest = sum(s.num_tokens for shards, _ in parts_of(BYTES, data, store, tmp_path) for s in shards)
    expected = expected_tokens(data.rest.plan, run_of(BYTES, data))
    assert expected == pytest.approx(data.config.num_tokens + rest, rel=0.1)
    assert any("begins with" in note for note in data.notes)


def test_conversations_come_in_parts_and_only_answers_are_learnt(tmp_path: Path) -> None:
    make_folder(tmp_path / "model", config_of_family("llama"))
    path = tmp_path / "model" / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": CHATML}))
    draft = with_pretrained(BYTES, open_pretrained(tmp_path / "model"))
    draft = replace(draft, corpus=replace(draft.corpus, format="messages"))
    talks = [
        [{"role": "user", "content": f"what {n}?"}, {"role": "assistant", "content": "yes"}]
        for n in range(6_000)
    ]
    (tmp_path / "c.jsonl").write_text("\n".join(json.dumps({"messages": each}) for each in talks))
    store = BlockDict()
    data = prepared(draft, [tmp_path / "c.jsonl"], store)
    there = [data.index.shards, data.index.heldout]
    there += [shards for shards, _ in parts_of(draft, data, store, tmp_path)]
    assert len(there) > 2
    tokens = np.concatenate([tokens_of(shards, store, 4) for shards in there])
    assert np.count_nonzero(tokens < PROMPT_BIT) == 6_000 * 4


def test_a_packed_file_comes_in_parts(tmp_path: Path) -> None:
    text = "\n".join(lines_of(12_000))
    path = tmp_path / "all.txt.gz"
    path.write_bytes(gzip.compress(text.encode()))
    store = BlockDict()
    data = prepared(BYTES, [path], store)
    assert data.rest is not None
    assert data.rest.plan.num_parts > 2
    assert data.config.num_tokens < len(text) / 2
    there = [data.index.shards, data.index.heldout]
    there += [shards for shards, _ in parts_of(BYTES, data, store, tmp_path)]
    num_tokens = sum(shard.num_tokens for shards in there for shard in shards)
    assert len(text) < num_tokens < 1.01 * len(text)


def test_bad_lines_of_a_later_part_are_left_out_if_the_founder_said_so(tmp_path: Path) -> None:
    rows = [json.dumps({"text": line}) for line in lines_of(6_000)]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(rows))
    good = prepared(BYTES, [path], BlockDict())
    assert good.rest is not None
    plan = good.rest.plan
    start = plan.part(plan.num_parts - 1)[0].start
    text = bytearray(path.read_bytes())
    bad = text.index(b"\n", start) + 1
    text[bad : bad + 2] = b"!!"
    path.write_bytes(text)

    store = BlockDict()
    strict = prepared(BYTES, [path], store)
    with pytest.raises(BadFilesError, match=r"a\.jsonl"):
        list(parts_of(BYTES, strict, store, tmp_path))
    lenient = prepared(BYTES, [path], store, skip_bad=True)
    *_, (_, warnings) = parts_of(BYTES, lenient, store, tmp_path)
    assert "lines 1" in warnings[0]


def test_own_text_is_cut_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n".join(lines_of(4_000)))
    own = replace(BYTES, data="own", corpus=CorpusDraft(heldout=(str(tmp_path / "a.txt"),)))
    assert prepared(own, [], BlockDict()).rest is None


def counts_of(shards: tuple[ShardInfo, ...], store: BlockDict) -> tuple[int, int]:
    tokens = tokens_of(shards, store, 2)
    return int(np.count_nonzero(tokens == ord("a"))), int(np.count_nonzero(tokens == ord("b")))


@pytest.mark.parametrize("packed", [False, True])
def test_sources_with_shares_come_in_parts_that_have_them(tmp_path: Path, packed: bool) -> None:
    """Source a has JSON lines of which a half is text, b plain or packed text, three times as
    much as it may give."""
    draw = random.Random(2)
    rows = [{"text": f"{n} " + "a" * draw.randrange(400)} for n in range(4_000)]
    (tmp_path / "a.jsonl").write_text(
        "\n".join(json.dumps(row | {"of": "x" * len(row["text"])}) for row in rows)
    )
    text = "\n".join(f"{n} " + "b" * draw.randrange(400) for n in range(4_000)).encode()
    name = "b.txt.gz" if packed else "b.txt"
    (tmp_path / name).write_bytes(gzip.compress(text) if packed else text)
    sources = (
        SourceDraft(path=str(tmp_path / "a.jsonl"), weight=3.0),
        SourceDraft(path=str(tmp_path / name), weight=1.0),
    )
    draft, store = replace(BYTES, corpus=CorpusDraft(sources=sources)), BlockDict()
    data = prepared(draft, [], store)
    assert data.config.grows
    assert not any("its weight wants" in sentence for sentence in data.warnings)
    parts = [counts_of((*data.index.shards, *data.index.heldout), store)]
    parts += [counts_of(shards, store) for shards, _ in parts_of(draft, data, store, tmp_path)]
    assert len(parts) > 2
    assert parts[0][0] / sum(parts[0]) == pytest.approx(0.75, abs=0.04)
    for of_a, of_b in parts[:-1]:  # the last one is what is left, some few sections
        assert of_a / (of_a + of_b) == pytest.approx(0.75, abs=0.05)
    all_of_a, all_of_b = (sum(counts) for counts in zip(*parts, strict=True))
    assert all_of_a > 0.93 * sum(len(row["text"]) for row in rows)
    assert all_of_a / (all_of_a + all_of_b) == pytest.approx(0.75, abs=0.03)


def test_a_source_too_short_for_its_share_of_a_limit_is_named(tmp_path: Path) -> None:
    for number, name in enumerate("ab"):
        (tmp_path / f"{name}.txt").write_text("\n".join(lines_of(4_000 if number else 12_000)))
    sources = tuple(SourceDraft(path=str(tmp_path / f"{n}.txt"), weight=1.0) for n in "ab")
    draft = replace(BYTES, corpus=CorpusDraft(sources=sources, max_bytes=12 * START_BYTES))
    data = prepared(draft, [], BlockDict())
    assert data.rest is not None
    assert "b.txt" in data.warnings[-1]
    assert "it has no more of it" in data.warnings[-1]


def test_a_part_without_text_has_no_shards(tmp_path: Path) -> None:
    """A packed file has less text than it was planned with."""
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress("\n".join(lines_of(8_000)).encode()))
    store = BlockDict()
    data = prepared(BYTES, [path], store)
    assert data.rest is not None
    *_, last = range(data.rest.plan.num_parts)
    path.write_bytes(gzip.compress("\n".join(lines_of(1_500)).encode()))
    run = run_of(BYTES, data)
    assert cut_rest(data.rest, last, run, b"", put=store.put, scratch=tmp_path) == ((), [])


def test_a_limit_of_bytes_holds_for_all_parts(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n".join(lines_of(12_000)))
    limited = replace(BYTES, corpus=CorpusDraft(max_bytes=3 * START_BYTES))
    store = BlockDict()
    data = prepared(limited, [tmp_path / "a.txt"], store)
    there = [data.index.shards, data.index.heldout]
    there += [shards for shards, _ in parts_of(limited, data, store, tmp_path)]
    num_tokens = sum(shard.num_tokens for shards in there for shard in shards)
    assert 2.9 * START_BYTES < num_tokens < 3.2 * START_BYTES


def test_a_corpus_of_one_long_line_is_cut_as_a_whole(tmp_path: Path) -> None:
    """Sections begin at lines, so nearly all of its sections have no text."""
    (tmp_path / "a.txt").write_text(" ".join(lines_of(12_000)))
    data = prepared(BYTES, [tmp_path / "a.txt"], BlockDict())
    assert data.rest is None
    assert not data.config.grows
    assert data.config == prepare_data(BYTES, [tmp_path / "a.txt"], put=BlockDict().put).config


def test_a_first_part_of_lines_that_cannot_be_used_is_the_end(tmp_path: Path) -> None:
    """Who named a wrong field need not wait until all of the corpus is read."""
    rows = [json.dumps({"text": line}) for line in lines_of(6_000)]
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    wrong = replace(BYTES, corpus=CorpusDraft(text_field="body"))
    read = list[int]()
    with pytest.raises(NoTextError):
        prepare_data(
            wrong,
            [tmp_path / "a.jsonl"],
            put=BlockDict().put,
            start_bytes=START_BYTES,
            skip_bad=True,
            progress=lambda _stage, _done, total: read.append(total),
        )
    assert max(read) < 2 * START_BYTES
