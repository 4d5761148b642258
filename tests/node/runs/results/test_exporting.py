"""`gossamer export` on a state directory, with its command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gossamer.node.base.settings.settings import Settings
from gossamer.node.base.terminal.printable import printable
from gossamer.node.cli import run_command
from gossamer.trainer.export.hugging_face import CARD_MARK
from gossamer.trainer.pretrained.folder import open_pretrained
from tests.support.gguf_forward import GgufModel
from tests.support.imported_run import found_imported_run


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return found_imported_run(tmp_path_factory.mktemp("run"))


def export(settings: Settings, folder: Path, *options: str) -> int:
    return run_command(["export", str(folder), "--state-dir", str(settings.state_dir), *options])


def test_a_folder_comes_back_with_a_card(settings: Settings, tmp_path: Path) -> None:
    assert export(settings, tmp_path / "out", "--round", "0") == 0
    given = open_pretrained(settings.state_dir.parent / "model")
    again = open_pretrained(tmp_path / "out")
    np.testing.assert_array_equal(again.weights.read(), given.weights.read())
    card = (tmp_path / "out" / "README.md").read_text()
    assert CARD_MARK in card
    assert "| rounds | 0" in card
    assert "imported weights" in card
    assert "their licence holds" in card


@pytest.mark.parametrize("name", ["m[v2]", "n[/b]", "x\x1b[2J"])
def test_the_folder_is_named_as_it_was_given(
    settings: Settings, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / name
    assert export(settings, folder) == 0
    assert capsys.readouterr().out.endswith(f" written to {printable(str(folder))}\n")


def test_a_gguf_file_has_the_weights(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(settings, tmp_path / "out", "--gguf") == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model.gguf"]
    read = GgufModel(tmp_path / "out" / "model.gguf")
    given = open_pretrained(settings.state_dir.parent / "model")
    embedding = given.weights.read()[: given.model.vocabulary * given.model.width]
    np.testing.assert_array_equal(read.tensors["token_embd.weight"].numpy().ravel(), embedding)
    assert export(settings, tmp_path / "out", "--gguf") == 2
    assert "--force" in capsys.readouterr().err
    assert export(settings, tmp_path / "out", "--gguf", "--force") == 0


def test_a_gguf_file_has_the_name_that_was_given(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out" / "better.gguf"
    assert export(settings, path) == 2
    assert "give --gguf" in capsys.readouterr().err
    assert export(settings, path, "--gguf") == 0
    assert list((tmp_path / "out").iterdir()) == [path]
    assert "token_embd.weight" in GgufModel(path).tensors
    assert export(settings, path, "--gguf") == 2
    assert "--force" in capsys.readouterr().err
    assert export(settings, path, "--gguf", "--force") == 0
