"""A run's manifest lies twice in a state directory, and one damaged file loses nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gossamer.node.network.signed_manifests import open_signed_manifest
from gossamer.node.runs.manifest_here import manifest_here
from gossamer.node.storage.state_dir import StateDir, StateDirError
from gossamer.protocol import limits
from tests.support.chains import run_in


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    state_dir = StateDir(tmp_path / "state")
    run_in(state_dir)
    return state_dir


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 0x10
    path.write_bytes(data)


def run_here(state_dir: StateDir) -> str:
    """The name of the run, with its founder's signature checked."""
    return open_signed_manifest(state_dir.require_manifest()).name


def test_a_bit_anywhere_in_the_manifest_loses_nothing(state: StateDir) -> None:
    whole = state.manifest_path.read_bytes()
    for place in range(0, len(whole), 7):
        flip(state.manifest_path, place)
        assert run_here(state) == "numbers", place
        state.manifest_path.write_bytes(whole)


@pytest.mark.parametrize("damage", ["empty", "cut", "zeros", "long", "lost", "folder"])
def test_a_damaged_manifest_is_written_again_from_its_copy(state: StateDir, damage: str) -> None:
    path = state.manifest_path
    whole = path.read_bytes()
    path.unlink()
    match damage:
        case "empty":
            path.write_bytes(b"")
        case "cut":
            path.write_bytes(whole[: len(whole) // 2])
        case "zeros":
            path.write_bytes(bytes(len(whole)))
        case "long":
            path.write_bytes(bytes(2**20))
        case "folder":
            path.mkdir()
    assert state.has_run()
    assert run_here(state) == "numbers"
    if damage == "folder":
        return  # what is no file is its owner's
    assert state.manifest_files.mend() == "manifest.msgpack"
    assert path.read_bytes() == whole
    assert state.manifest_files.mend() is None


@pytest.mark.parametrize("place", [0, 40, -1])
def test_a_damaged_copy_is_written_again(state: StateDir, place: int) -> None:
    path = state.manifest_files.copy_path
    whole = path.read_bytes()
    flip(path, place)
    assert run_here(state) == "numbers"
    assert state.manifest_files.mend() == "manifest.copy"
    assert path.read_bytes() == whole


def test_a_lost_copy_is_written_again(state: StateDir) -> None:
    path = state.manifest_files.copy_path
    whole = path.read_bytes()
    path.unlink()
    assert run_here(state) == "numbers"
    assert state.manifest_files.damaged() == "manifest.copy"
    assert state.manifest_files.mend() == "manifest.copy"
    assert path.read_bytes() == whole
    assert state.manifest_files.mend() is None


def test_two_damaged_files_are_told_and_stay(state: StateDir) -> None:
    paths = (state.manifest_path, state.manifest_files.copy_path)
    for path in paths:
        flip(path, -1)
    contents = [path.read_bytes() for path in paths]
    assert state.manifest_files.mend() is None
    with pytest.raises(StateDirError, match=r"is damaged .* no whole copy"):
        manifest_here(state)
    assert [path.read_bytes() for path in paths] == contents


def test_a_lost_manifest_with_a_damaged_copy_is_no_new_directory(state: StateDir) -> None:
    """`gossamer start` would found a run on the chain of another one."""
    state.manifest_path.unlink()
    flip(state.manifest_files.copy_path, -1)
    assert state.has_run()
    with pytest.raises(StateDirError, match="it is missing, and its copy is damaged"):
        state.read_manifest()


def test_a_copy_of_another_run_is_not_used(state: StateDir, tmp_path: Path) -> None:
    """A version that does not know the copy has left it there and joined another run."""
    other = StateDir(tmp_path / "other")
    run_in(other, "letters")
    state.manifest_path.write_bytes(other.manifest_path.read_bytes())
    assert run_here(state) == "letters"
    assert state.manifest_files.mend() == "manifest.copy"
    state.manifest_path.unlink()
    assert run_here(state) == "letters"


def test_a_directory_of_another_version_is_told_and_nothing_is_written(
    state: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PROTOCOL_VERSION", limits.PROTOCOL_VERSION + 1)
    files = [state.manifest_path, state.manifest_files.copy_path]
    before = [path.read_bytes() for path in files]
    with capture_logs() as lines, pytest.raises(StateDirError, match="holds a run of protocol"):
        manifest_here(state)
    assert not lines
    assert [path.read_bytes() for path in files] == before
    assert state.manifest_files.damaged() is None
