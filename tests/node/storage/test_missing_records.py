"""Records that the disk lost: the newest state stays the newest, and a checkpoint ends the gap."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from gossamer.node.base.disk_health import DiskError
from gossamer.node.storage.chain import chain_store
from gossamer.node.storage.chain.chain_start import (
    ChainStart,
    KeptCheckpoints,
    read_start,
    start_after,
    write_checkpoints,
    write_start,
)
from gossamer.node.storage.chain.known_rounds import KnownRounds
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.ids import Digest, digest_of
from gossamer.protocol.policy.heads.chain_checkpoint import checkpoint_of
from gossamer.protocol.policy.heads.chain_summary import NO_SUMMARY, extended
from gossamer.protocol.policy.heads.head_choice import HeadChoice
from gossamer.protocol.standing import STANDING_ROUNDS
from gossamer.protocol.state.chain import Commit, Header
from gossamer.protocol.wire.checkpoint_messages import SignedCheckpoint
from tests.node.storage.test_chain_store import PEER
from tests.support.committed_rounds import Holder, small_manifest
from tests.support.long_chains import CHAIN_RUN, TOKENS, open_chain, rounds_after, write_chain

CHECKPOINT_ROUND = 512
NUM_ROUNDS = 600


@pytest.fixture(scope="module")
def rounds() -> list[tuple[Commit, Header]]:
    return list(rounds_after([PEER], NUM_ROUNDS, CHAIN_RUN))


@pytest.fixture(scope="module")
def whole(rounds: list[tuple[Commit, Header]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all rounds and a signed checkpoint of the chain."""
    directory = tmp_path_factory.mktemp("whole") / "chain"
    write_chain(directory, rounds)
    summary = extended(NO_SUMMARY, [header for _, header in rounds[:CHECKPOINT_ROUND]])
    checkpoint = checkpoint_of(rounds[CHECKPOINT_ROUND - 1][1], {PEER: 1}, summary, {PEER: 1})
    signed = SignedCheckpoint(to_msgpack(checkpoint), ())
    write_checkpoints(directory, KeptCheckpoints((signed,), to_msgpack(summary)))
    return directory


@pytest.fixture
def directory(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "chain"))


def lose(directory: Path, *numbers: int) -> None:
    for number in numbers:
        (record,) = directory.glob(f"{number:010d}-*")
        record.write_bytes(b"")


def test_a_whole_chain_has_no_gap(directory: Path, rounds: list[tuple[Commit, Header]]) -> None:
    store, head = open_chain(directory), rounds[-1][1].digest
    assert store.start is None
    assert store.gap_before(head) is None
    assert store.follows_start(head)
    assert store.pieces_to(head) == [[header.digest for _, header in rounds]]
    assert store.start_behind_gap(head) is None


@pytest.mark.parametrize("numbers", [(1,), (300,), (7, 300, 301), (CHECKPOINT_ROUND - 64,)])
def test_a_chain_begins_at_its_signed_checkpoint_when_a_record_before_it_is_lost(
    directory: Path, rounds: list[tuple[Commit, Header]], numbers: tuple[int, ...]
) -> None:
    """A node that waited for the record did nothing meanwhile, and a newcomer that began at that
    checkpoint went on without it."""
    lose(directory, *numbers)
    head = rounds[-1][1].digest
    for read_only in (True, False, False):
        store = open_chain(directory, read_only=read_only)
        assert store.start is not None
        assert store.start.round == CHECKPOINT_ROUND
        assert store.start.before_tokens == TOKENS * (CHECKPOINT_ROUND - STANDING_ROUNDS)
        assert store.is_whole(head)
        assert store.gap_before(head) is None
        assert store.may_follow(head)
        assert (read_start(directory) is None) == read_only
        if not read_only:
            store.remove_leftover()
    kept = sorted(int(path.name.split("-")[0]) for path in directory.glob("0*"))
    assert kept == list(range(CHECKPOINT_ROUND - STANDING_ROUNDS + 1, NUM_ROUNDS + 1))


@pytest.mark.parametrize("number", [CHECKPOINT_ROUND - 63, CHECKPOINT_ROUND, CHECKPOINT_ROUND + 9])
def test_a_record_that_the_checkpoint_needs_or_that_follows_it_is_waited_for(
    directory: Path, rounds: list[tuple[Commit, Header]], number: int
) -> None:
    lose(directory, number)
    store, head = open_chain(directory), rounds[-1][1].digest
    assert store.start is None
    assert store.gap_before(head) == number
    assert store.follows_start(head)
    expected = [header.digest for _, header in rounds]
    assert store.pieces_to(head) == [expected[: number - 1], expected[number:]]
    store.add(*rounds[number - 1])  # a peer brings it
    assert store.is_whole(head)
    assert store.gap_before(head) is None


@pytest.mark.parametrize("pinned_round", [100, 300, 350])
def test_the_head_of_the_link_is_remembered_when_the_chain_begins_at_its_checkpoint(
    directory: Path, rounds: list[tuple[Commit, Header]], pinned_round: int
) -> None:
    """A head that no summary names. Without it no round of the chain would be allowed again."""
    lose(directory, 300)
    pin = rounds[pinned_round - 1][1].digest
    for _life in range(2):
        store = open_chain(directory, pinned_head=pin)
        assert pin in store.passed
        assert pin not in store
        store.remove_leftover()


def test_the_head_of_the_link_is_remembered_over_a_second_checkpoint(
    directory: Path, rounds: list[tuple[Commit, Header]]
) -> None:
    earlier = rounds[255][1]
    summary = extended(NO_SUMMARY, [header for _, header in rounds[:256]])
    pin, before = rounds[99][1].digest, rounds[255 - STANDING_ROUNDS][1]
    start = start_after(256, earlier.digest, before.digest, before.tokens_total, summary)
    passed = (pin,)
    write_start(
        directory,
        ChainStart(
            start.round, start.head, start.before, start.before_tokens, start.summary, passed
        ),
    )
    lose(directory, 300)
    store = open_chain(directory, pinned_head=pin)
    assert store.start is not None
    assert store.start.round == CHECKPOINT_ROUND
    assert pin in store.passed


def test_a_head_of_another_branch_is_not_remembered(
    directory: Path, rounds: list[tuple[Commit, Header]]
) -> None:
    lose(directory, 300)
    store = open_chain(directory, pinned_head=Digest(b"x" * 32))
    assert store.start is not None
    assert store.start.passed == ()


def test_a_disk_that_takes_no_start_keeps_all_rounds(
    directory: Path, rounds: list[tuple[Commit, Header]], monkeypatch: pytest.MonkeyPatch
) -> None:
    lose(directory, 300)

    def full(*_args: object) -> None:
        raise DiskError("the disk is full")

    monkeypatch.setattr(chain_store, "write_start", full)
    store = open_chain(directory)
    assert store.start is None
    assert store.gap_before(rounds[-1][1].digest) == 300
    assert store.remove_leftover() == 0


def test_a_side_branch_is_behind_no_gap(
    directory: Path, rounds: list[tuple[Commit, Header]]
) -> None:
    lose(directory, 300)
    store = open_chain(directory)
    branch = next(
        rounds_after([PEER], 1, rounds[19][1].digest, round_number=20, run_id=digest_of(b"other"))
    )
    assert not store.may_follow(rounds[19][1].digest)
    assert store.gap_before(store.add(*branch)) is None


@pytest.mark.parametrize("lost", [(4, 9), (4,), (9,), (1, 5, 9)])
def test_lost_records_of_old_rounds_and_of_the_newest_do_not_lead_to_the_first_round(
    tmp_path: Path, lost: tuple[int, ...]
) -> None:
    """The states of the rounds between are on the disk. The run began again with round 0."""
    holder = Holder(small_manifest(), tmp_path)
    digests = []
    for seed in range(9):
        digests.append(holder.commit(holder.averages(seed)).header.state_digest)
    lose(holder.chain._directory, *lost)
    again = Holder(small_manifest(), tmp_path)
    newest = 8 if 9 in lost else 9
    assert again.state.entry.round == newest
    assert again.state.entry.state_digest == digests[newest - 1]
    again.assert_whole()
    again.commit(again.averages(100))
    assert again.state.entry.round == newest + 1
    once_more = Holder(small_manifest(), tmp_path)
    assert once_more.state.entry.round == newest + 1


@pytest.mark.parametrize("content", [b"", b"\n", b"ab\n", bytes(65)])
def test_a_head_file_that_a_power_cut_emptied_is_a_damaged_one(
    tmp_path: Path, content: bytes
) -> None:
    state_dir = StateDir(tmp_path)
    state_dir.head_path.write_bytes(content)
    with pytest.raises(ValueError, match=r"head|hex"):
        state_dir.read_head()
    assert state_dir.newest_head() is None


def test_a_power_cut_takes_no_record_that_the_head_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head is durable. Records that are not would be empty files, one in the middle of the
    chain as well."""
    synced: set[int] = set()
    fsync = os.fsync

    def noted_fsync(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    holder = Holder(small_manifest(), tmp_path)
    for seed in range(5):
        holder.commit(holder.averages(seed))
    folder = holder.chain._directory
    assert folder.stat().st_ino in synced, "the names of the files"
    for record in folder.iterdir():
        if record.stat().st_ino not in synced:
            record.write_bytes(b"")
    again = Holder(small_manifest(), tmp_path)
    assert again.state.entry.round == 5
    assert again.chain.is_whole(again.state.head)


def test_the_choice_of_a_head_forgets_the_gap_that_a_record_has_filled(
    tmp_path: Path, rounds: list[tuple[Commit, Header]]
) -> None:
    """What was remembered of forks before does not fit what is found after: the search from fork
    to fork had no end."""
    lost = 3
    early, late, newest = (rounds[number - 1][1].digest for number in (lost, 20, 30))
    store = write_chain(tmp_path / "chain", rounds[: lost - 1] + rounds[lost:20])
    choice = HeadChoice(KnownRounds(store), PEER)
    assert choice.fork_of(rounds[1][1].digest, late) == CHAIN_RUN
    assert not choice.stakes_at(late).keys() - {PEER}
    before = choice.tokens_at(late)[PEER]
    store.add(*rounds[lost - 1])
    assert choice.best([early, late]) == late
    for each in rounds[20:30]:
        store.add(*each)
    assert choice.best([rounds[1][1].digest, late, newest]) == newest
    assert choice.fork_of(rounds[1][1].digest, late) == rounds[1][1].digest
    assert choice.stakes_at(late)[PEER] > before, "the rounds before the record count again"
    assert choice.signers_since(early, late) == {PEER}
