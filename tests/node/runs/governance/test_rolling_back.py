"""What a founder reads before rounds are taken back."""

from __future__ import annotations

from pathlib import Path

import pytest

from gossamer.node.cli import run_command
from gossamer.node.storage.state import retention
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.manifest import SignedManifest, encode_manifest, signing_bytes
from tests.support.committed_rounds import IDENTITY, Holder, small_manifest

LOST = 3
NEWEST = 12


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_rollback_behind_a_lost_record_says_that_newcomers_stay_out(
    is_lost: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No checkpoint of the chain may be signed of a later round, and none before leads over it."""
    monkeypatch.setattr(retention, "CHECKPOINT_SECONDS", -1.0)
    holder = Holder(small_manifest(checkpoint_rounds=6), tmp_path)
    state = StateDir(tmp_path)
    signature = IDENTITY.sign(signing_bytes(holder.manifest.run_id))
    signed = SignedManifest(manifest=encode_manifest(holder.manifest), signature=signature)
    state.write_manifest(signed)
    state.identity_path.touch(mode=0o600)
    state.identity_path.write_bytes(IDENTITY.pem())
    for number in range(1, NEWEST + 1):
        holder.commit(holder.averages(number))
    if is_lost:
        (record,) = state.chain_path.glob(f"{LOST:010d}-*")
        record.unlink()
    assert run_command(["rollback", str(NEWEST - 2), "--yes", "--state-dir", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    warning = f"The record of round {LOST} is missing on this disk"
    assert (warning in told) == is_lost
    assert ("newcomers can join no more" in told) == is_lost
