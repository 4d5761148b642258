"""`gossamer serve --follow` beside a node that commits rounds."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from gossamer.node.base.settings.settings import Settings
from gossamer.node.commands.model.serve import serve
from gossamer.node.commands.options import StateOptions
from gossamer.node.runs.results.reading import StateOnDisk, read_state
from gossamer.node.serving import model as model_module
from gossamer.node.serving import server
from gossamer.node.serving.model import ServedModel
from gossamer.node.storage.chain.chain_store import ChainStore
from gossamer.node.storage.state import restoring
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.manifest import SignedManifest, encode_manifest, signing_bytes
from tests.support.committed_rounds import IDENTITY, Holder, small_manifest


@pytest.fixture
def holder(tmp_path: Path) -> Holder:
    """A node's state directory after the first round."""
    holder = Holder(small_manifest(), tmp_path)
    signature = IDENTITY.sign(signing_bytes(holder.manifest.run_id))
    signed = SignedManifest(manifest=encode_manifest(holder.manifest), signature=signature)
    StateDir(tmp_path).write_manifest(signed)
    holder.commit(holder.averages(0))
    return holder


@pytest.fixture
def model(holder: Holder, tmp_path: Path) -> Iterator[ServedModel]:
    """The model after that round."""
    model = ServedModel(Settings(state_dir=tmp_path), read_state(Settings(state_dir=tmp_path)), "")
    yield model
    os.close(model._descriptor)
    model._folder.cleanup()


def not_whole(state: StateOnDisk) -> Callable[..., StateOnDisk]:
    """A reader of a disk that has this state, but not all of the newest one."""
    return lambda *_arguments, **_options: dataclasses.replace(state, is_newest=False)


def test_the_last_round_is_taken_though_its_state_was_not_whole_at_the_first_look(
    holder: Holder, model: ServedModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The run is finished: no later round makes the server look again."""
    holder.commit(holder.averages(1))
    before_the_last = read_state(Settings(state_dir=tmp_path))
    holder.commit(holder.averages(2))
    with monkeypatch.context() as patch:
        patch.setattr(model_module, "read_state", not_whole(before_the_last))
        trio.run(model._follow)
    assert model.entry.round == 2
    trio.run(model._follow)
    assert model.entry.round == 3


def test_an_older_state_than_the_served_one_is_taken_only_if_the_run_went_back_to_it(
    holder: Holder, model: ServedModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    older = read_state(Settings(state_dir=tmp_path))
    holder.commit(holder.averages(1))
    trio.run(model._follow)
    assert model.entry.round == 2
    holder.commit(holder.averages(2))
    monkeypatch.setattr(model_module, "read_state", not_whole(older))
    trio.run(model._follow)
    assert model.entry.round == 2
    monkeypatch.setattr(model_module, "read_state", lambda *_: older)
    trio.run(model._follow)
    assert model.entry.round == 1


def test_a_newest_state_that_stays_broken_is_read_ever_more_rarely(
    model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []

    async def follow() -> bool:
        looks.append(trio.current_time())
        return len(looks) == 8

    async def nothing(*_: object) -> None:
        pass

    async def main() -> None:
        with trio.move_on_after(400):
            await model.run(follow=True)

    descriptor = os.dup(model._descriptor)
    for name, stand_in in (("_start", nothing), ("_end", nothing), ("_follow", follow)):
        monkeypatch.setattr(model, name, stand_in)
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    model._descriptor = descriptor
    waits = [round(later - sooner) for sooner, later in pairwise(looks)]
    assert waits[:9] == [4, 8, 16, 32, 60, 60, 60, 2, 4]


def test_a_round_that_is_committed_while_another_is_read_is_no_warning(
    holder: Holder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
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
