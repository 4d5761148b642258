"""A manifest whose signature is damaged is told to people, whatever reads it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gossamer.node.cli import run_command
from gossamer.node.storage.state_dir import StateDir
from tests.support.chains import run_in

COMMANDS = (
    "export OUT",
    "generate text",
    "serve --bind 127.0.0.1:0",
    "invite",
    "members",
    "revoke PEER",
    "extend 1000000",
    "rollback 0 --yes",
    "peers",
)


@pytest.fixture
def damaged(tmp_path: Path) -> StateDir:
    state_dir = StateDir(tmp_path / "state")
    run_in(state_dir)
    signed = state_dir.require_manifest()
    forged = msgspec.structs.replace(signed, signature=bytes(len(signed.signature)))
    state_dir.manifest_path.write_bytes(msgspec.msgpack.encode(forged))
    state_dir.manifest_files.copy_path.unlink()
    return state_dir


@pytest.mark.parametrize("line", COMMANDS)
def test_a_damaged_signature_is_told(
    line: str, damaged: StateDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(tmp_path / word) if word == "OUT" else word for word in line.split()]
    assert run_command([*words, "--state-dir", str(damaged.root)]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"gossamer: {damaged.manifest_path} is damaged")
    assert "join the run again" in told
