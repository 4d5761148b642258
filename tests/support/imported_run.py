"""A state directory whose run begins with the random weights of a small folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gossamer.node.base.settings.settings import Settings
from gossamer.node.network.identity import Identity
from gossamer.node.runs.founding.importing import draft_for, write_genesis
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.model_config import Family
from gossamer.trainer.pretrained.folder import open_pretrained
from tests.support.founded_runs import found_run
from tests.support.model_folders import config_of_family, make_folder


def found_imported_run(
    root: Path, family: Family = "qwen3", *, has_template: bool = True, **changes: Any
) -> Settings:
    """Returns the settings of a node that has founded the run below `root` and not trained yet.
    `root / "model"` is the folder. `changes`: of its configuration."""
    (root / "texts").mkdir()
    for number in range(20):
        (root / "texts" / f"{number}.txt").write_text(f"Text {number}.\n" + "some words\n" * 50)
    make_folder(root / "model", config_of_family(family, **changes))
    if not has_template:
        (root / "model" / "tokenizer_config.json").write_text('{"eos_token": "<|endoftext|>"}')
    pretrained = open_pretrained(root / "model")
    settings = Settings(state_dir=root / "state")
    state_dir = StateDir(settings.state_dir)
    weights = pretrained.weights.read()
    with state_dir.locked():
        founded = found_run(
            draft_for(pretrained, None)[0],
            [root / "texts"],
            identity=Identity.load_or_create(state_dir.identity_path),
            put=BlockStore(state_dir.blocks_path, settings.cache_bytes).put,
            init_genesis=lambda _model, _seed: weights,
        )
        write_genesis(founded, weights, state_dir.blocks_path, settings.cache_bytes)
        state_dir.write_manifest(founded.signed)
    return settings
