"""`gossamer doctor` on what lies in a state directory."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from gossamer.node.commands.machine.state_checks import Check, check_run
from gossamer.node.network.identity import Identity
from gossamer.node.storage.state_dir import FORMAT, StateDir, StateDirError
from gossamer.protocol.ids import digest_of
from gossamer.protocol.manifest import SignedManifest, encode_manifest, signing_bytes
from tests.support import builders


def founded(root: Path) -> StateDir:
    founder = Identity.from_seed(digest_of(b"founder"))
    manifest = replace(builders.manifest(), founder=founder.peer_id, name="kitchen")
    signature = founder.sign(signing_bytes(manifest.run_id))
    state_dir = StateDir(root)
    with state_dir.locked():
        state_dir.write_manifest(
            SignedManifest(manifest=encode_manifest(manifest), signature=signature)
        )
    Identity.load_or_create(state_dir.identity_path)
    return state_dir


def run_of(state_dir: StateDir) -> Check:
    checks = {check.name: check for check in check_run(state_dir)}
    return checks["run"]


def test_a_run_is_named(tmp_path: Path) -> None:
    checks = list(check_run(founded(tmp_path)))
    assert [check.level for check in checks] == ["ok"] * len(checks)
    assert "kitchen" in run_of(StateDir(tmp_path)).text


def test_a_directory_without_a_run_has_nothing_to_check(tmp_path: Path) -> None:
    assert not list(check_run(StateDir(tmp_path)))
    assert not list(check_run(StateDir(tmp_path / "none")))


def test_a_manifest_that_is_garbage_fails(tmp_path: Path) -> None:
    state_dir = founded(tmp_path)
    state_dir.manifest_path.write_bytes(b"garbage")
    state_dir.manifest_files.copy_path.write_bytes(b"garbage")
    check = run_of(state_dir)
    assert check.level == "fail"
    assert "is damaged" in check.text


@pytest.mark.parametrize("name", ["manifest.msgpack", "manifest.copy"])
def test_one_damaged_file_of_the_manifest_is_a_warning(tmp_path: Path, name: str) -> None:
    state_dir = founded(tmp_path)
    (tmp_path / name).write_bytes(b"garbage")
    levels = [check.level for check in check_run(state_dir) if check.name == "run"]
    assert levels == ["ok", "warn"]
    assert name in list(check_run(state_dir))[-1].text


def test_a_manifest_that_its_founder_did_not_sign_fails(tmp_path: Path) -> None:
    state_dir = founded(tmp_path)
    signed = state_dir.read_manifest()
    assert signed is not None
    state_dir.manifest_path.write_bytes(
        msgspec.msgpack.encode(replace(signed, signature=bytes(64)))
    )
    state_dir.manifest_files.copy_path.unlink()
    assert run_of(state_dir).level == "fail"


def test_a_run_of_an_earlier_protocol_fails(tmp_path: Path) -> None:
    state_dir = founded(tmp_path)
    signed = state_dir.read_manifest()
    assert signed is not None
    old = msgspec.msgpack.decode(signed.manifest)
    old["version"] -= 1
    state_dir.manifest_path.write_bytes(
        msgspec.msgpack.encode(replace(signed, manifest=msgspec.msgpack.encode(old)))
    )
    state_dir.manifest_files.copy_path.unlink()
    check = run_of(state_dir)
    assert check.level == "fail"
    assert "version" in check.text


def test_a_damaged_key_fails(tmp_path: Path) -> None:
    state_dir = founded(tmp_path)
    state_dir.identity_path.write_bytes(b"no key")
    checks = {check.name: check.level for check in check_run(state_dir)}
    assert checks["identity"] == "fail"


def test_a_directory_of_a_later_gossamer_is_refused_and_told(tmp_path: Path) -> None:
    state_dir = founded(tmp_path)
    text, what = f"{FORMAT + 1}\n", "newer version of Gossamer"
    state_dir.format_path.write_text(text)
    with pytest.raises(StateDirError, match=what), state_dir.locked():
        pass
    with pytest.raises(StateDirError, match=what):
        state_dir.read_manifest()
    check = run_of(state_dir)
    assert check.level == "fail"
    assert what in check.text
    assert state_dir.format_path.read_text() == text


@pytest.mark.parametrize("damaged", [b"", b"x", b"\xff\xfe1"])
def test_a_damaged_number_of_the_format_is_written_anew(tmp_path: Path, damaged: bytes) -> None:
    state_dir = founded(tmp_path)
    state_dir.format_path.write_bytes(damaged)
    with state_dir.locked():
        assert int(state_dir.format_path.read_text()) == FORMAT
    assert state_dir.read_manifest() is not None


def test_a_lost_number_of_the_format_is_written_anew(tmp_path: Path) -> None:
    state_dir = founded(tmp_path)
    state_dir.format_path.unlink()
    assert [check.level for check in check_run(state_dir)] == ["ok", "ok"]  # it can be read
    with state_dir.locked():
        pass
    assert int(state_dir.format_path.read_text()) == FORMAT
