"""The rounds that a person is told to name instead: those whose states the disk can rebuild."""

from __future__ import annotations

from pathlib import Path

import pytest

from gossamer.node.base.settings.settings import Settings
from gossamer.node.runs.governance.rolling_back import RollbackDesk
from gossamer.node.runs.governance.signed_orders import OrderError, SignersRun
from gossamer.node.runs.results.reading import read_state
from gossamer.node.runs.rounds_here import SPANS_MAX, spans_text
from gossamer.node.storage.block_files import path_of
from gossamer.node.storage.state import retention
from gossamer.node.storage.state_dir import StateDir, StateDirError
from gossamer.protocol.ids import Digest
from gossamer.protocol.manifest import SignedManifest, encode_manifest, signing_bytes
from tests.support.committed_rounds import IDENTITY, Holder, MadeRound, small_manifest

NEWEST = 15


@pytest.fixture
def rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[MadeRound]:
    """The rounds of a node that has the states from round 6 on."""
    monkeypatch.setattr(retention, "CHECKPOINT_SECONDS", -1.0)
    holder = Holder(small_manifest(checkpoint_rounds=6), tmp_path)
    run_id = holder.manifest.run_id
    signature = IDENTITY.sign(signing_bytes(run_id))
    signed = SignedManifest(manifest=encode_manifest(holder.manifest), signature=signature)
    StateDir(tmp_path).write_manifest(signed)
    return [holder.commit(holder.averages(number)) for number in range(1, NEWEST + 1)]


def desk(root: Path) -> RollbackDesk:
    manifest = small_manifest(checkpoint_rounds=6)
    return RollbackDesk(SignersRun(manifest, IDENTITY, StateDir(root)), 1 << 30)


def lose_averages(root: Path, made: MadeRound) -> None:
    for average in made.update.averages:
        path_of(StateDir(root).blocks_path, Digest(average.digest)).unlink()


def can_go_back(root: Path, number: int) -> bool:
    try:
        desk(root).plan(number)
    except OrderError:
        return False
    return True


@pytest.mark.usefixtures("rounds")
def test_a_round_before_the_oldest_state_is_told_the_oldest(tmp_path: Path) -> None:
    with pytest.raises(OrderError, match=r"round 3 .* Name a round from 6 on$"):
        desk(tmp_path).plan(3)
    with pytest.raises(StateDirError, match="name a round from 6 on, or leave the round out"):
        read_state(Settings(state_dir=tmp_path), 3)
    assert [can_go_back(tmp_path, number) for number in (5, 6)] == [False, True]


def test_a_gap_in_what_the_disk_holds_is_not_named(tmp_path: Path, rounds: list[MadeRound]) -> None:
    lose_averages(tmp_path, rounds[8 - 1])
    with pytest.raises(OrderError, match=r"Name one of these rounds: 6 to 7, 12 to 14$"):
        desk(tmp_path).plan(9)
    with pytest.raises(StateDirError, match="name one of these rounds: 6 to 7, 12 to 15, or"):
        read_state(Settings(state_dir=tmp_path), 9)
    possible = [number for number in range(NEWEST) if can_go_back(tmp_path, number)]
    assert possible == [6, 7, 12, 13, 14]


def test_rounds_after_a_record_that_the_disk_lost_can_be_read(
    tmp_path: Path, rounds: list[MadeRound]
) -> None:
    """The newest round was said to be the run's first state, and no other one could be read."""
    (record,) = StateDir(tmp_path).chain_path.glob("0000000010-*")
    record.unlink()
    state = read_state(Settings(state_dir=tmp_path), 13)
    assert state.entry.head == rounds[13 - 1].header.digest
    with pytest.raises(StateDirError, match="name a round from 12 on, or leave the round out"):
        read_state(Settings(state_dir=tmp_path), 11)
    with pytest.raises(
        StateDirError, match="no round 10 here: the newest one is 15, the oldest 11"
    ):
        read_state(Settings(state_dir=tmp_path), 10)


def test_many_gaps_are_told_in_one_short_sentence() -> None:
    text = spans_text(range(0, 100, 3), 99)
    assert text.count(",") == SPANS_MAX - 1
    assert text.endswith("96, 99")
