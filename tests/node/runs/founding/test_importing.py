"""Drafts of runs that begin with a folder, their data, and their first state on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from gossamer.node.network.identity import Identity
from gossamer.node.runs.founding.founding import FoundedRun, prepare_data
from gossamer.node.runs.founding.importing import draft_for, with_pretrained, write_genesis
from gossamer.node.runs.planning.draft import Draft, problems_of_draft
from gossamer.node.runs.planning.manifest_file import parse_manifest_file, render
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.storage.state.restoring import open_read_only, restore
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.errors import ManifestError
from gossamer.protocol.manifest import decode_manifest
from gossamer.protocol.model_config import ImportedShape
from gossamer.protocol.state.chunk_plan import default_chunk_elements
from gossamer.trainer.presets.table import PRESETS
from gossamer.trainer.pretrained.errors import FolderError
from gossamer.trainer.pretrained.folder import Pretrained, open_pretrained
from gossamer.trainer.pretrained.model_files import unpack_model_files
from gossamer.trainer.text.data import load_shard
from tests.support.founded_runs import found_run
from tests.support.model_folders import config_of_family, make_folder

CACHE_BYTES = 10**9
END, BEGIN = 1, 3


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(40):
        words = " ".join(f"word{(number * i) % 97}" for i in range(100))
        (folder / f"{number}.txt").write_text(f"Text {number}.\n{words}\n")
    return folder


def opened(tmp_path: Path, config: dict[str, Any], **options: Any) -> Pretrained:
    make_folder(tmp_path / "model", config, **options)
    return open_pretrained(tmp_path / "model")


def test_the_model_is_the_folders_and_the_rest_the_presets(tmp_path: Path) -> None:
    pretrained = opened(tmp_path, config_of_family("qwen3"))
    draft, preset = draft_for(pretrained, None)
    assert preset == "tiny"  # no preset is smaller than this model
    assert draft.model == msgspec.structs.replace(pretrained.model, context=64)
    assert draft.tokenizer.kind == "files"
    assert draft.inner.learning_rate == pytest.approx(PRESETS["tiny"].inner.learning_rate / 10)
    assert draft.outer.warmup_rounds == 0
    assert draft.outer.chunk_elements == default_chunk_elements(draft.model.num_parameters)
    assert not problems_of_draft(draft)
    assert draft_for(pretrained, "1m")[1] == "1m"


def test_the_preset_is_the_largest_below_the_model(tmp_path: Path) -> None:
    pretrained = opened(tmp_path, config_of_family("llama"))
    shape = pretrained.model.imported
    assert isinstance(shape, ImportedShape)
    smollm2 = msgspec.structs.replace(
        pretrained.model, num_layers=30, width=576, num_heads=9, num_kv_heads=3, hidden_width=1536,
        vocabulary=49_152, context=8192, tied_embeddings=True,
        imported=msgspec.structs.replace(shape, head_width=64),
    )  # fmt: skip
    assert smollm2.num_parameters == 134_515_008  # as published
    large = Pretrained(pretrained.folder, smollm2, pretrained.files, pretrained.weights)
    draft, preset = draft_for(large, None)
    assert preset == "40m"
    assert not problems_of_draft(draft)


def test_a_manifest_keeps_its_settings_and_its_context(tmp_path: Path) -> None:
    pretrained = opened(tmp_path, config_of_family("llama"))
    text = 'preset = "1m"\n[model]\ncontext = 32\n[inner]\nlearning_rate = 7e-4'
    file = parse_manifest_file(text, tmp_path)
    draft = with_pretrained(file, pretrained)
    assert draft.model == msgspec.structs.replace(pretrained.model, context=32)
    assert draft.inner == file.inner
    assert draft.outer.chunk_elements == default_chunk_elements(draft.model.num_parameters)
    chosen = parse_manifest_file(text + "\n[outer]\nchunk_elements = 4096", tmp_path)
    assert with_pretrained(chosen, pretrained).outer.chunk_elements == 4096
    # What comes from the folder is no key of a manifest file.
    for line in ('init_from = "x"', '[tokenizer]\nkind = "files"'):
        with pytest.raises(ManifestError):
            parse_manifest_file(f'preset = "1m"\n{line}', tmp_path)
    assert "imported" not in render(file)


def test_a_context_beyond_the_models_is_refused(tmp_path: Path) -> None:
    pretrained = opened(tmp_path, config_of_family("llama", max_position_embeddings=48))
    with pytest.raises(ManifestError, match=r"model\.context is 128; allowed: 8 to 48"):
        with_pretrained(parse_manifest_file('preset = "1m"', tmp_path), pretrained)
    assert draft_for(pretrained, "1m")[0].model.context == 48


def found(tmp_path: Path, corpus: Path, draft: Draft, weights: np.ndarray) -> FoundedRun:
    return found_run(
        draft,
        [corpus],
        identity=Identity.from_seed(bytes(32)),
        put=BlockStore(tmp_path / "state" / "blocks", CACHE_BYTES).put,
        init_genesis=lambda _model, _seed: weights,
    )


def test_the_first_state_is_found_on_disk(tmp_path: Path, corpus: Path) -> None:
    pretrained = opened(tmp_path, config_of_family("llama"), begins=True)
    draft = draft_for(pretrained, None)[0]
    weights = pretrained.weights.read()
    state_dir = StateDir(tmp_path / "state")
    founded = found(tmp_path, corpus, draft, weights)
    assert decode_manifest(founded.signed.manifest) == founded.manifest
    write_genesis(founded, weights, state_dir.blocks_path, CACHE_BYTES)

    committed, store = open_read_only(founded.manifest, state_dir, CACHE_BYTES)
    assert restore(committed)
    np.testing.assert_array_equal(committed.parameters, weights)
    assert not committed.momentum.any()
    assert not committed.begins_with_drawn_weights
    data = founded.manifest.data
    assert data.tokenizer == "files"
    assert unpack_model_files(store.get(data.tokenizer_digest)).files == pretrained.files.files  # type: ignore[arg-type]

    # Each document begins and ends as the model's authors have it.
    shard = load_shard(str(store.path(founded.index.heldout[0].digest)), data.token_bytes, 320)  # type: ignore[arg-type]
    ends = np.flatnonzero(shard == END)
    assert shard[0] == BEGIN
    assert ends[-1] == len(shard) - 1
    assert (shard[ends[:-1] + 1] == BEGIN).all()


def test_a_state_larger_than_the_cache_drops_no_data(tmp_path: Path, corpus: Path) -> None:
    pretrained = opened(tmp_path, config_of_family("llama"))
    weights = pretrained.weights.read()
    founded = found(tmp_path, corpus, draft_for(pretrained, None)[0], weights)
    blocks = tmp_path / "state" / "blocks"
    write_genesis(founded, weights, blocks, cache_bytes=weights.nbytes // 2)
    store = BlockStore(blocks, CACHE_BYTES)
    shards = (*founded.index.shards, *founded.index.heldout)
    assert not store.missing([shard.digest for shard in shards])  # type: ignore[misc]


def test_a_tokenizer_of_another_model_stops_the_founding(tmp_path: Path, corpus: Path) -> None:
    pretrained = opened(tmp_path, config_of_family("llama", vocab_size=100))
    blocks: list[bytes] = []
    with pytest.raises(FolderError, match="do not belong together"):
        prepare_data(draft_for(pretrained, None)[0], [corpus], put=blocks.append)  # type: ignore[arg-type]
    assert not blocks
