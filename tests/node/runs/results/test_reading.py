"""Reading a state directory while its daemon goes on writing to it."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from gossamer.node.base.settings.settings import Settings
from gossamer.node.network.identity import Identity
from gossamer.node.runs.governance.rolling_back import RollbackDesk
from gossamer.node.runs.governance.signed_orders import SignersRun
from gossamer.node.runs.results import reading
from gossamer.node.runs.results.reading import read_state, warn_if_older
from gossamer.node.storage.state import restoring
from gossamer.node.storage.state.committed import CommittedState
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.ids import Digest
from gossamer.protocol.manifest import SignedManifest, encode_manifest, signing_bytes
from tests.support.committed_rounds import IDENTITY, Holder, small_manifest

CACHE_BYTES = 1 << 30


def signed_by(identity: Identity, holder: Holder) -> SignedManifest:
    return SignedManifest(
        manifest=encode_manifest(holder.manifest),
        signature=identity.sign(signing_bytes(holder.manifest.run_id)),
    )


@pytest.mark.parametrize("part", ["ChainStore", "BlockStore"])
def test_rounds_that_are_committed_while_the_directory_is_opened_do_no_harm(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    part: str,
) -> None:
    holder = Holder(small_manifest(), tmp_path)
    StateDir(tmp_path).write_manifest(signed_by(IDENTITY, holder))
    for number in range(2):
        holder.commit(holder.averages(number))
    head, parameters = holder.state.head, holder.state.parameters.copy()
    opened = getattr(restoring, part)
    rounds = itertools.count(2)

    def open_slowly(*arguments: object, **options: object) -> object:
        result = opened(*arguments, **options)
        # Each time: rounds of seconds, and a machine with too much to do.
        holder.commit(holder.averages(next(rounds)))
        return result

    monkeypatch.setattr(restoring, part, open_slowly)
    state = read_state(Settings(state_dir=tmp_path))
    warn_if_older(state)
    assert capsys.readouterr().err == ""
    assert state.entry.head == head  # the newest one when the reading began
    assert (state.parameters == parameters).all()
    older = read_state(Settings(state_dir=tmp_path), 1)
    assert older.entry.round == 1
    newest = holder.state.entry.round
    run = RollbackDesk(SignersRun(holder.manifest, IDENTITY, StateDir(tmp_path)), CACHE_BYTES)
    assert run.plan(1).newest_round == newest


def test_a_reading_that_takes_longer_than_a_round_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = Holder(small_manifest(), tmp_path)
    StateDir(tmp_path).write_manifest(signed_by(IDENTITY, holder))
    holder.commit(holder.averages(0))
    num_readings = 0

    def read_slowly(committed: CommittedState) -> bool:
        nonlocal num_readings
        num_readings += 1
        is_here = restoring.restore(committed)
        holder.commit(holder.averages(num_readings))
        return is_here

    monkeypatch.setattr(reading, "restore", read_slowly)
    state = read_state(Settings(state_dir=tmp_path))
    assert num_readings == 1
    assert state.is_newest
    assert state.entry.round == 1


def test_a_state_that_is_not_whole_is_said_to_be_older(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    holder = Holder(small_manifest(checkpoint_rounds=100), tmp_path)
    StateDir(tmp_path).write_manifest(signed_by(IDENTITY, holder))
    first = holder.commit(holder.averages(0))
    second = holder.commit(holder.averages(1))
    for average in second.update.averages:
        if average.digest not in {each.digest for each in first.update.averages}:
            holder.store.path(Digest(average.digest)).unlink()
    state = read_state(Settings(state_dir=tmp_path))
    assert state.entry.round == 1
    warn_if_older(state)
    assert "this is round 1" in capsys.readouterr().err
