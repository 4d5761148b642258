"""A peer's own text: which run wants one, what it is cut into, and when it is cut anew."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import trio
import zstandard

from gossamer.node.app.data_parts import open_own_data
from gossamer.node.runs.founding.founding import PreparedData, prepare_data
from gossamer.node.runs.founding.importing import with_pretrained
from gossamer.node.runs.founding.own_text import (
    founders_text,
    key_of,
    own_seed,
    own_text_of,
    require_fitting,
)
from gossamer.node.runs.planning.draft import CorpusDraft, Draft, SourceDraft, draft_of_preset
from gossamer.node.runs.planning.manifest_file import parse_manifest_file, render
from gossamer.node.storage.own_data import OwnData
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.errors import ManifestError
from gossamer.protocol.ids import digest_of
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.shard_index import PROMPT_BIT
from gossamer.trainer.pretrained.errors import FolderError
from gossamer.trainer.pretrained.folder import open_pretrained
from gossamer.trainer.text.data import load_shard
from gossamer.trainer.text.sources.corpus_errors import CorpusError
from tests.support.block_dict import BlockDict
from tests.support.builders import manifest, peer
from tests.support.model_folders import config_of_family, make_folder
from tests.support.synced import Synced

replace = msgspec.structs.replace
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
)
BYTES = draft_of_preset("tiny")
BYTES = replace(BYTES, data="own", model=replace(BYTES.model, context=32))


def text_file(path: Path, word: str, lines: int = 400) -> Path:
    path.write_text("\n".join(f"{word} {number} and more of it" for number in range(lines)))
    return path


def with_heldout(draft: Draft, *paths: Path) -> Draft:
    return replace(draft, corpus=replace(draft.corpus, heldout=tuple(map(str, paths))))


def run_of(draft: Draft, data: PreparedData) -> Manifest:
    return replace(manifest(), data=data.config, model=draft.model)


def prepared(draft: Draft, store: BlockDict) -> PreparedData:
    return prepare_data(draft, (), put=store.put)


def cut(
    run: Manifest, paths: list[Path], state: Path, tokenizer: bytes = b"", me: int = 0
) -> OwnData:
    async def inline(function):  # type: ignore[no-untyped-def]
        return function()

    async def main() -> OwnData:
        text = own_text_of(paths)
        return await open_own_data(run, text, peer(me), StateDir(state), tokenizer, inline)

    state.mkdir(exist_ok=True)
    return trio.run(main)


def tokens_of(data: OwnData, run: Manifest) -> np.ndarray:
    width, words = run.data.token_bytes, run.model.vocabulary
    return np.concatenate([load_shard(each.path, width, words) for each in data.shards])


@pytest.fixture
def run(tmp_path: Path) -> Manifest:
    draft = with_heldout(BYTES, text_file(tmp_path / "heldout.txt", "shared"))
    return run_of(draft, prepared(draft, BlockDict()))


def test_a_founder_gives_away_what_it_names_and_nothing_else(tmp_path: Path) -> None:
    heldout, private = (
        text_file(tmp_path / "h.txt", "shared"),
        text_file(tmp_path / "p.txt", "mine"),
    )
    draft = with_heldout(BYTES, heldout)
    draft = replace(draft, corpus=replace(draft.corpus, paths=(str(private),)))
    store = BlockDict()
    data = prepared(draft, store)
    assert data.config.own is True
    assert (data.config.num_shards, data.config.num_tokens, data.index.shards) == (0, 0, ())
    assert data.config.heldout_tokens > heldout.stat().st_size
    given = b"".join(
        zstandard.ZstdDecompressor().decompress(store[info.digest], max_output_size=2**20)
        for info in data.index.heldout
    )
    assert np.frombuffer(given, "<u2").astype(np.uint8).tobytes().count(b"shared 7 ") == 1
    assert "mine".encode("utf-16-le") not in given
    text = founders_text(draft.corpus, ())
    assert text.corpus.paths == (str(private),)
    assert founders_text(draft.corpus, [heldout]).corpus.paths == (str(heldout),)
    with pytest.raises(CorpusError, match="name yours with --corpus"):
        founders_text(CorpusDraft(), ())


def test_a_learnt_vocabulary_is_of_the_text_that_all_get(tmp_path: Path) -> None:
    draft = with_heldout(draft_of_preset("1m"), text_file(tmp_path / "h.txt", "shared", 3000))
    draft = replace(draft, data="own")
    store = BlockDict()
    data = prepared(draft, store)
    assert b"shared" in store[data.config.tokenizer_digest]
    run = run_of(draft, data)
    own = cut(
        run, [text_file(tmp_path / "p.txt", "mine")], tmp_path, store[run.data.tokenizer_digest]
    )
    assert len(tokens_of(own, run))


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="--heldout FILE"):
        prepared(BYTES, BlockDict())
    shared = replace(with_heldout(BYTES, tmp_path), data="shared")
    with pytest.raises(ManifestError, match=r'corpus\.heldout is for data = "own"'):
        prepared(shared, BlockDict())
    chat = replace(BYTES, data="shared", corpus=CorpusDraft(format="messages"))
    with pytest.raises(ManifestError, match="--init-from FOLDER"):
        prepared(chat, BlockDict())


def test_the_keys_come_back_from_a_manifest_file(tmp_path: Path) -> None:
    draft = replace(BYTES, corpus=CorpusDraft(heldout=("h.txt",), format="messages"))
    read = parse_manifest_file(render(draft), tmp_path)
    assert (read.data, read.corpus.format) == ("own", "messages")
    assert read.corpus.heldout == (str(tmp_path / "h.txt"),)
    with pytest.raises(ManifestError, match='data is "mine"; allowed: "shared", "own"'):
        parse_manifest_file('preset = "tiny"\ndata = "mine"\n', tmp_path)


def test_a_run_has_a_text_of_the_peer_or_has_none(run: Manifest) -> None:
    require_fitting(run, has_text=True)
    require_fitting(run, has_text=False, has_shards=True)
    require_fitting(manifest(), has_text=False)
    with pytest.raises(CorpusError, match="--corpus FOLDER"):
        require_fitting(run, has_text=False)
    with pytest.raises(CorpusError, match="leave out --corpus"):
        require_fitting(manifest(), has_text=True)


def test_all_of_the_text_is_cut_in_an_order_of_the_peer(run: Manifest, tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(20):
        text_file(folder / f"{number}.txt", f"word{number}")
    mine = cut(run, [folder], tmp_path / "a", me=1)
    again = cut(run, [folder], tmp_path / "b", me=1)
    other = cut(run, [folder], tmp_path / "c", me=2)
    of_mine, of_other = tokens_of(mine, run), tokens_of(other, run)
    assert of_mine.tolist() == tokens_of(again, run).tolist()
    assert of_mine.tolist() != of_other.tolist()
    assert np.array_equal(np.sort(of_mine), np.sort(of_other))
    texts = sum(path.stat().st_size for path in folder.iterdir())
    assert np.count_nonzero(of_mine) == texts  # beside the ends; nothing is held out
    assert oct((tmp_path / "a" / "own").stat().st_mode)[-3:] == "700"
    assert not list((tmp_path / "a" / "own").rglob("tmp"))


def test_it_is_cut_anew_when_it_has_changed_and_only_then(run: Manifest, tmp_path: Path) -> None:
    path, state = text_file(tmp_path / "p.txt", "mine"), tmp_path / "state"
    cut(run, [path], state).save(500)
    assert cut(run, [path], state).position == 500
    assert cut(run, [], state).position == 500  # its owner names it once
    text = own_text_of([path])
    assert text is not None
    before = key_of(text, run, peer(0))
    os.utime(path, (1, 1))
    assert key_of(text, run, peer(0)) != before
    changed = cut(run, [path], state)
    assert changed.position == 0
    assert len(list((state / "own").iterdir())) == 2


def test_a_text_that_cannot_be_used_leaves_the_one_before(run: Manifest, tmp_path: Path) -> None:
    state = tmp_path / "state"
    cut(run, [text_file(tmp_path / "p.txt", "mine")], state).save(500)
    (tmp_path / "bad.txt").write_bytes(b"a\0b")
    with pytest.raises(CorpusError, match=r"(?s)bad.txt is binary.*--skip-bad"):
        cut(run, [tmp_path / "bad.txt"], state)
    (tmp_path / "short.txt").write_text("short")
    with pytest.raises(CorpusError, match="has 6 tokens, but one sequence of this run takes 33"):
        cut(run, [tmp_path / "short.txt"], state)
    assert cut(run, [], state).position == 500


def test_nothing_to_go_on_with_is_said(run: Manifest, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="name yours"):
        cut(run, [], tmp_path / "state")


def test_a_founders_sources_have_their_weights_at_home_too(run: Manifest, tmp_path: Path) -> None:
    for name in ("code", "prose"):
        (tmp_path / name).mkdir()
        for number in range(30):
            lines = [json.dumps({"text": f"{name} {number} {n} " + "x" * 40}) for n in range(20)]
            data = zstandard.ZstdCompressor().compress("\n".join(lines).encode())
            (tmp_path / name / f"{number}.jsonl.zst").write_bytes(data)
    sources = (
        SourceDraft(path=str(tmp_path / "code" / "*.zst"), weight=3.0),
        SourceDraft(path=str(tmp_path / "prose"), weight=1.0),
    )
    text = founders_text(CorpusDraft(sources=sources), ())

    async def main() -> OwnData:
        return await open_own_data(
            run, text, peer(0), StateDir(tmp_path), b"", trio.to_thread.run_sync
        )

    tokens = tokens_of(trio.run(main), run).astype(np.uint8).tobytes()
    assert tokens.count(b"code ") / tokens.count(b"prose ") == pytest.approx(3, rel=0.1)


# Conversations


def talks(path: Path, answer: str, number: int = 200) -> Path:
    messages = [
        [{"role": "user", "content": f"what is {n}?"}, {"role": "assistant", "content": answer}]
        for n in range(number)
    ]
    path.write_text("\n".join(json.dumps({"messages": each}) for each in messages))
    return path


def chat_draft(tmp_path: Path, template: str | None = CHATML) -> Draft:
    make_folder(tmp_path / "model", config_of_family("llama"))
    path = tmp_path / "model" / "tokenizer_config.json"
    config = json.loads(path.read_text()) | {"chat_template": template}
    path.write_text(json.dumps(config))
    draft = with_pretrained(BYTES, open_pretrained(tmp_path / "model"))
    return replace(draft, corpus=replace(draft.corpus, format="messages"))


def test_conversations_stay_at_home_and_only_answers_are_learnt(tmp_path: Path) -> None:
    draft = with_heldout(chat_draft(tmp_path), talks(tmp_path / "h.jsonl", "shared"))
    store = BlockDict()
    data = prepared(draft, store)
    assert (data.config.own, data.config.messages, data.config.token_bytes) == (True, True, 4)
    run = run_of(draft, data)
    file = store[data.config.tokenizer_digest]
    own = cut(run, [talks(tmp_path / "p.jsonl", "mine")], tmp_path / "state", file)
    tokens = tokens_of(own, run)
    num_answers = np.count_nonzero(tokens < PROMPT_BIT)
    # Cut at the ends of shards no answer is lost: four letters, and the end of the turn.
    assert num_answers == 200 * 5
    (tmp_path / "plain.txt").write_text("no conversation " * 100)
    with pytest.raises(CorpusError, match="conversations are read from"):
        cut(run, [tmp_path / "plain.txt"], tmp_path / "state", file)


def test_a_shared_corpus_of_conversations(tmp_path: Path) -> None:
    draft = replace(chat_draft(tmp_path), data="shared")
    store = BlockDict()
    data = prepare_data(draft, [talks(tmp_path / "c.jsonl", "yes")], put=store.put)
    assert data.config.messages is True
    assert data.config.own is msgspec.UNSET
    assert data.index.shards


def test_a_model_without_a_chat_template_is_refused(tmp_path: Path) -> None:
    draft = replace(chat_draft(tmp_path, None), data="shared")
    with pytest.raises(FolderError, match="no chat template"):
        prepare_data(draft, [talks(tmp_path / "c.jsonl", "yes")], put=BlockDict().put)


def test_text_in_a_file_whose_name_is_not_utf8_is_cut(run: Manifest, tmp_path: Path) -> None:
    """The key of other names stays what it was, or each node would cut its text anew."""
    plain = cut(run, [text_file(tmp_path / "p.txt", "mine")], tmp_path / "a")
    latin = tmp_path / os.fsdecode(b"caf\xe9.txt")
    own = cut(run, [text_file(latin, "mine")], tmp_path / "b")
    assert np.array_equal(tokens_of(own, run), tokens_of(plain, run))

    text = own_text_of([tmp_path / "p.txt"])
    assert text is not None
    stat, data = (tmp_path / "p.txt").stat(), run.data
    parts = (
        text,
        [(str(tmp_path / "p.txt"), stat.st_size, stat.st_mtime_ns)],
        (data.tokenizer, data.tokenizer_digest, bool(data.messages), run.model.vocabulary),
        (run.model.context, own_seed(run, peer(0))),
    )
    before = digest_of(b"gossamer own text 1:", msgspec.msgpack.encode(parts))
    assert key_of(text, run, peer(0)) == before


def test_shards_are_on_the_disk_for_good_before_their_place(
    run: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = Synced(monkeypatch)
    begin = OwnData._write

    def write(data: OwnData, place: Any) -> None:
        shards = set((tmp_path / "own").glob("*/*"))
        assert shards
        assert not synced.missing(shards)
        begin(data, place)

    monkeypatch.setattr(OwnData, "_write", write)
    assert cut(run, [text_file(tmp_path / "p.txt", "mine")], tmp_path).shards
