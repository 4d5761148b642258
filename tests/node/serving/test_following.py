"""`gossamer serve --follow` beside a node that commits rounds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import trio

from gossamer.node.base.settings import Settings
from gossamer.node.commands.model.serve import serve
from gossamer.node.commands.options import StateOptions
from gossamer.node.runs.reading import read_state
from gossamer.node.serving import server
from gossamer.node.serving.model import ServedModel
from gossamer.node.storage import restoring
from gossamer.node.storage.chain_store import ChainStore
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.manifest import SignedManifest, encode_manifest, signing_bytes
from tests.support.committed_rounds import IDENTITY, Holder, small_manifest


def test_a_round_that_is_committed_while_another_is_read_is_no_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    holder = Holder(small_manifest(), tmp_path)
    signature = IDENTITY.sign(signing_bytes(holder.manifest.run_id))
    signed = SignedManifest(manifest=encode_manifest(holder.manifest), signature=signature)
    StateDir(tmp_path).write_manifest(signed)
    holder.commit(holder.averages(0))
    taken = []

    def open_slowly(*arguments: Any, **options: Any) -> ChainStore:
        chain = ChainStore(*arguments, **options)
        holder.commit(holder.averages(2))
        return chain

    def follow_once(settings: Settings, *_: object, **__: object) -> int:
        model = ServedModel(settings, read_state(settings), "cpu")
        holder.commit(holder.averages(1))
        monkeypatch.setattr(restoring, "ChainStore", open_slowly)
        trio.run(model._follow)
        taken.append(model.entry.round)
        os.close(model._descriptor)
        model._folder.cleanup()
        return 0

    monkeypatch.setattr(server, "serve_model", follow_once)
    assert serve(follow=True, options=StateOptions(state_dir=tmp_path)) == 0
    assert taken == [2]
    said = capsys.readouterr().err
    assert "the model is that of a new round" in said
    assert "warning" not in said, said
