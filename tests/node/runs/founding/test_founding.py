import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import trio
import zstandard

from gossamer.node.base.roles import Found
from gossamer.node.base.settings.settings import Settings
from gossamer.node.network.identity import Identity, verify
from gossamer.node.runs.founding import starting
from gossamer.node.runs.founding.founding import FoundedRun, risk_of
from gossamer.node.runs.founding.starting import _draft_of, found_here
from gossamer.node.runs.planning.draft import Draft, draft_of_preset
from gossamer.node.storage.blocks import BlockStore
from gossamer.protocol.errors import ManifestError
from gossamer.protocol.ids import Digest, digest_of, peer_id_from_public_key
from gossamer.protocol.manifest import decode_manifest, signing_bytes
from gossamer.protocol.model_config import ModelConfig
from gossamer.protocol.shard_index import decode_index
from gossamer.protocol.state.digest import FloatVector, genesis_digest_of
from gossamer.trainer.presets.preset import OuterStep
from gossamer.trainer.presets.table import PRESETS
from gossamer.trainer.pretrained.folder import open_pretrained
from gossamer.trainer.text.data import load_shard
from gossamer.trainer.text.sources.corpus_errors import CorpusError
from gossamer.trainer.text.tokenizers.tokens import load_tokenizer
from tests.support.founded_runs import found_run
from tests.support.model_folders import config_of_family, make_folder
from tests.support.synced import Synced

IDENTITY = Identity.from_seed(bytes(32))
replace = msgspec.structs.replace


class Store:
    def __init__(self) -> None:
        self.blocks: dict[bytes, bytes] = {}

    def put(self, data: bytes) -> Digest:
        digest = digest_of(data)
        self.blocks[digest] = data
        return digest


def init_genesis(model: ModelConfig, seed: int) -> FloatVector:
    return np.random.default_rng(seed).standard_normal(model.num_parameters, dtype=np.float32)


def found(draft: Draft, corpus: list[Path], store: Store) -> FoundedRun:
    return found_run(
        draft,
        corpus,
        identity=IDENTITY,
        put=store.put,
        init_genesis=init_genesis,
        created_unix_seconds=1_700_000_000,
    )


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(60):
        words = " ".join(f"word{(number * i) % 97}" for i in range(400))
        (folder / f"{number}.txt").write_text(f"Text {number}.\n{words}\n")
    return folder


def test_a_founded_run_is_signed_and_complete(corpus: Path, tmp_path: Path) -> None:
    store = Store()
    draft = draft_of_preset("tiny", name="a run")

    founded = found(draft, [corpus], store)

    manifest = decode_manifest(founded.signed.manifest)
    assert manifest == founded.manifest
    assert verify(IDENTITY.peer_id, signing_bytes(manifest.run_id), founded.signed.signature)
    assert (manifest.name, manifest.founder) == ("a run", IDENTITY.peer_id)
    assert (manifest.model, manifest.inner) == (draft.model, draft.inner)
    assert manifest.created_unix_seconds == 1_700_000_000
    genesis = init_genesis(draft.model, draft.seed)
    assert manifest.genesis_digest == genesis_digest_of(genesis, draft.outer.chunk_elements)

    index = decode_index(store.blocks[manifest.data.index_digest])
    assert index == founded.index
    assert len(index.shards) == manifest.data.num_shards
    characters: Counter[int] = Counter()
    ends = 0
    for infos, num_tokens in (
        (index.shards, manifest.data.num_tokens),
        (index.heldout, manifest.data.heldout_tokens),
    ):
        stream = b""
        for info in infos:
            path = tmp_path / info.digest.hex()
            path.write_bytes(store.blocks[info.digest])
            stream += bytes(load_shard(path, manifest.data.token_bytes, 256).tolist())
        assert len(stream) == num_tokens
        characters.update(stream)
        ends += stream.count(0)
    # Sequences of the training text are shuffled, held-out text is not; it came last.
    documents = {path.read_bytes() for path in corpus.iterdir()}
    assert ends == len(documents)
    assert characters == Counter(b"\0".join([*documents, b""]))
    assert set(stream.split(b"\0")[:-1]) <= documents


def test_the_same_corpus_and_draft_found_the_same_run(corpus: Path) -> None:
    draft = draft_of_preset("tiny")
    first = found(draft, [corpus], Store())
    again = found(draft, sorted(corpus.iterdir(), reverse=True), Store())
    reseeded = found(replace(draft, seed=2), [corpus], Store())

    assert again.manifest.run_id == first.manifest.run_id
    assert reseeded.manifest.data.index_digest != first.manifest.data.index_digest
    assert reseeded.manifest.genesis_digest != first.manifest.genesis_digest


def test_a_compressed_corpus_founds_the_same_run(corpus: Path) -> None:
    (corpus / "long.txt").write_text("".join(f"line {n} of many\n" for n in range(20_000)))
    draft = draft_of_preset("tiny")
    plain = found(draft, [corpus], Store())
    for number, path in enumerate(sorted(corpus.iterdir())):
        data = path.read_bytes()
        if number % 2:
            path.with_suffix(".txt.gz").write_bytes(gzip.compress(data))
        else:
            path.with_suffix(".txt.zst").write_bytes(zstandard.ZstdCompressor().compress(data))
        path.unlink()
    assert found(draft, [corpus], Store()).manifest.run_id == plain.manifest.run_id


def test_a_table_founds_the_run_of_the_same_json_lines(tmp_path: Path) -> None:
    arrow: Any = pytest.importorskip("pyarrow")
    parquet: Any = pytest.importorskip("pyarrow.parquet")
    texts = [f"Text {n}. " + "word " * (n % 97) for n in range(600)]
    lines, table = tmp_path / "a.jsonl", tmp_path / "a.parquet"
    lines.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    parquet.write_table(arrow.table({"text": texts}), table)
    of_lines, of_table = (
        found(draft_of_preset("tiny"), [path], Store()).manifest.run_id for path in (lines, table)
    )
    assert of_table == of_lines


def test_a_bpe_tokenizer_travels_as_a_block(corpus: Path) -> None:
    store = Store()
    founded = found(draft_of_preset("1m"), [corpus], store)
    data = founded.manifest.data
    tokenizer = load_tokenizer(data.tokenizer, store.blocks[data.tokenizer_digest])
    assert data.tokenizer == "bpe"
    assert 257 < tokenizer.vocabulary <= founded.manifest.model.vocabulary


def test_the_drafts_corpus_is_used_unless_another_is_named(corpus: Path, tmp_path: Path) -> None:
    draft = draft_of_preset("tiny")
    draft = replace(draft, corpus=replace(draft.corpus, paths=(str(corpus),)))
    other = tmp_path / "other.txt"
    other.write_text("".join(f"line {number}\n" for number in range(5_000)))

    own = found(draft, [], Store()).manifest.data
    named = found(draft, [other], Store()).manifest.data

    assert own.num_tokens + own.heldout_tokens == 60 + sum(
        path.stat().st_size for path in corpus.iterdir()
    )
    assert own.num_tokens != named.num_tokens


def test_max_bytes_bounds_the_default_corpus() -> None:
    draft = draft_of_preset("tiny")
    draft = replace(draft, corpus=replace(draft.corpus, max_bytes=1_000_000))
    data = found(draft, [], Store()).manifest.data
    assert 800_000 < data.num_tokens + data.heldout_tokens < 1_010_000
    assert data.num_shards >= 32


def test_the_founder_is_always_allowed(corpus: Path) -> None:
    friend = peer_id_from_public_key(bytes(range(32)))
    draft = replace(draft_of_preset("tiny"), admission="allow", allowed=(friend,))
    manifest = found(draft, [corpus], Store()).manifest
    assert manifest.allowed == tuple(sorted([friend, IDENTITY.peer_id]))


def test_a_wrong_draft_is_refused_before_anything_is_stored(corpus: Path) -> None:
    store = Store()
    draft = draft_of_preset("tiny")
    wrong = replace(draft, seed=-1, inner=replace(draft.inner, learning_rate=0.0))
    with pytest.raises(ManifestError) as caught:
        found(wrong, [corpus], store)
    assert [problem.split(";")[0] for problem in caught.value.problems] == [
        "seed is -1",
        "inner.learning_rate is 0.0",
    ]
    assert not store.blocks


def test_too_little_text_is_refused(tmp_path: Path) -> None:
    draft = draft_of_preset("tiny")
    for number, text in enumerate(["some text", "more text"]):
        (tmp_path / f"{number}.txt").write_text(text)
    with pytest.raises(CorpusError) as caught:
        found(draft, [tmp_path], Store())
    train, heldout = caught.value.problems
    assert "10 tokens to train on, but one inner step takes 513; name more text" in train
    assert "10 tokens, but one sequence takes 65; name more text" in heldout


def test_an_unreadable_corpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="missing: no such file or directory"):
        found(draft_of_preset("tiny"), [tmp_path / "missing"], Store())


def test_a_founder_hears_what_strangers_could_do() -> None:
    draft = draft_of_preset()
    assert draft.admission == "open"
    assert 'trust = "open" or admission = "invite"' in str(risk_of(draft))
    assert risk_of(replace(draft, sync="distro")) == risk_of(draft)
    assert risk_of(replace(draft, trust="open")) is None
    assert risk_of(replace(draft, admission="invite")) is None


def test_the_command_line_chooses_the_inner_optimizer() -> None:
    plain = trio.run(_draft_of, Found(), None)
    assert plain.inner.uses_muon
    assert trio.run(_draft_of, Found(optimizer="muon"), None) == plain
    adamw = trio.run(_draft_of, Found(optimizer="adamw"), None)
    assert adamw.inner == replace(plain.inner, optimizer="adamw")
    steps = PRESETS["tiny"].dense_steps
    assert step_of(plain) == steps.muon != steps.adamw == step_of(adamw)
    assert replace(adamw, inner=plain.inner, outer=plain.outer) == plain


def step_of(draft: Draft) -> OuterStep:
    outer = draft.outer
    return OuterStep(outer.learning_rate, outer.momentum, outer.displacement)


def test_published_weights_go_on_with_adamw_unless_somebody_says_otherwise(tmp_path: Path) -> None:
    make_folder(tmp_path / "model", config_of_family("llama"))
    pretrained = open_pretrained(tmp_path / "model")
    plain, named = tmp_path / "plain.toml", tmp_path / "named.toml"
    plain.write_text('preset = "tiny"\n')
    named.write_text('preset = "tiny"\n[inner]\noptimizer = "muon"\n')
    for role, expected in (
        (Found(), "adamw"),
        (Found(optimizer="muon"), "muon"),
        (Found(manifest_file=plain), "adamw"),
        (Found(manifest_file=named), "muon"),
    ):
        draft = trio.run(_draft_of, role, pretrained)
        assert draft.model.imported
        assert draft.inner.optimizer == expected
        assert step_of(draft) == PRESETS["tiny"].dense_steps.of(draft.inner.optimizer)
    assert trio.run(_draft_of, Found(manifest_file=plain), None).inner.uses_muon


def test_an_unknown_preset_is_named_with_those_that_there_are() -> None:
    with pytest.raises(ManifestError, match="nope"):
        trio.run(_draft_of, Found(preset="nope"), None)


@pytest.mark.parametrize("with_weights", [False, True])
def test_a_founded_run_survives_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_weights: bool
) -> None:
    """At first nobody else could give its founder the blocks that the manifest names."""
    (tmp_path / "text.txt").write_text("\n".join(f"line {n} of it" for n in range(3_000)))
    make_folder(tmp_path / "model", config_of_family("llama"))

    async def drawn(draft: Draft, _settings: Settings) -> FloatVector:
        return init_genesis(draft.model, draft.seed)

    monkeypatch.setattr(starting, "initial_parameters", drawn)
    synced = Synced(monkeypatch)
    blocks = tmp_path / "state" / "blocks"
    blocks.parent.mkdir()
    role = Found(
        corpus=(tmp_path / "text.txt",),
        preset="tiny",
        init_from=tmp_path / "model" if with_weights else None,
    )

    async def main() -> None:
        settings = Settings(state_dir=blocks.parent)
        signed, _ = await found_here(role, IDENTITY, blocks, settings, lambda _: None)
        data = decode_manifest(signed.manifest).data
        assert BlockStore(blocks, 0, read_only=True).has(Digest(data.index_digest))

    trio.run(main)
    assert not synced.missing({*blocks.glob("??/*"), *blocks.glob("??")})
