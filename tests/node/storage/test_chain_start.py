"""The start of the kept chain: what goes, what stays, and what a crash at any point leaves."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from gossamer.node.storage.chain import chain_start
from gossamer.node.storage.chain.chain_start import ChainStart, read_start, start_after
from gossamer.node.storage.chain.chain_store import ChainStore
from gossamer.node.storage.chain.known_rounds import KnownRounds
from gossamer.protocol.ids import Digest, digest_of
from gossamer.protocol.policy.heads.chain_summary import NO_SUMMARY, extended
from gossamer.protocol.policy.heads.head_choice import HeadChoice
from gossamer.protocol.standing import STANDING_ROUNDS
from gossamer.protocol.state.chain import Commit, Header
from tests.node.storage.test_chain_store import PEER
from tests.support.long_chains import CHAIN_RUN, open_chain, rounds_after, write_chain

START_ROUND = 256
NUM_ROUNDS = 300


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture(scope="module")
def rounds() -> list[tuple[Commit, Header]]:
    return list(rounds_after([PEER], NUM_ROUNDS, CHAIN_RUN))


@pytest.fixture(scope="module")
def whole(rounds: list[tuple[Commit, Header]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all rounds."""
    directory = tmp_path_factory.mktemp("whole") / "chain"
    write_chain(directory, rounds)
    return directory


@pytest.fixture
def directory(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "chain"))


def start_of(rounds: list[tuple[Commit, Header]], number: int = START_ROUND) -> ChainStart:
    headers = [header for _, header in rounds]
    before = headers[number - STANDING_ROUNDS - 1]
    summary = extended(NO_SUMMARY, headers[:number])
    head = headers[number - 1].digest
    return start_after(number, head, before.digest, before.tokens_total, summary)


def kept_rounds(directory: Path) -> list[int]:
    return sorted(int(p.name.split("-")[0]) for p in directory.iterdir() if "-" in p.name)


def assert_begins_at_start(store: ChainStore, rounds: list[tuple[Commit, Header]]) -> None:
    head = rounds[-1][1].digest
    assert store.start == start_of(rounds)
    assert store.tips() == [head]
    assert store.heads_by_weight() == [head]
    path = store.path_between(store.root, head)
    assert path == [header.digest for _, header in rounds[START_ROUND - STANDING_ROUNDS :]]
    assert store.path_between(CHAIN_RUN, head) is None
    assert store.rounds_beside(head) == store.bytes_beside(head) == 0
    assert store.ancestors(head, 1000)[-1] == store.root
    assert rounds[START_ROUND - STANDING_ROUNDS - 2][1].digest not in store


def begin_at_start(directory: Path, rounds: list[tuple[Commit, Header]]) -> None:
    """Lets the rounds before the start go, on disk too."""
    store, start = open_chain(directory), start_of(rounds)
    store.write_start(start)
    store.begin_at(start)
    store.remove_leftover()


def test_old_rounds_go_and_the_rest_is_as_before(
    directory: Path, rounds: list[tuple[Commit, Header]]
) -> None:
    store = open_chain(directory)
    start = start_of(rounds)
    store.write_start(start)
    store.begin_at(start)
    assert_begins_at_start(store, rounds)
    assert store.remove_leftover() == START_ROUND - STANDING_ROUNDS
    first = START_ROUND - STANDING_ROUNDS + 1
    assert kept_rounds(directory) == list(range(first, NUM_ROUNDS + 1))
    assert_begins_at_start(open_chain(directory), rounds)
    head = rounds[-1][1].digest
    assert len(store.records_after(head, first - 1)) > 0
    assert store.records_after(head, first - 2) == [], "those before are gone"
    for commit, header in rounds_after([PEER], 3, head, round_number=NUM_ROUNDS, run_id=CHAIN_RUN):
        assert store.may_follow(Digest(header.parent))
        head = store.add(commit, header)
    assert store.is_whole(head)


def test_the_choice_of_a_head_forgets_forks_before_the_start(
    directory: Path, rounds: list[tuple[Commit, Header]]
) -> None:
    """The head on which a node stands stays known, also if it is no round of the chain kept."""
    store, parent = open_chain(directory), rounds[9][1].digest
    branch = rounds_after([PEER], 3, parent, round_number=10, run_id=CHAIN_RUN)
    mine = [store.add(commit, header) for commit, header in branch][-1]
    newest, choice = rounds[-1][1].digest, HeadChoice(KnownRounds(store), PEER)
    assert choice.fork_of(mine, newest) == parent
    store.begin_at(start_of(rounds), [mine])
    assert choice.fork_of(mine, newest) == CHAIN_RUN
    assert choice.fork_of(mine, rounds[-2][1].digest) == CHAIN_RUN


def test_no_branch_parts_before_the_start(
    directory: Path, rounds: list[tuple[Commit, Header]]
) -> None:
    """Of those rounds a node knows no stakes any more, and the founder's of the beginning are no
    measure: a chain that really was the run's, and is out of date, would win with them."""
    store = open_chain(directory)
    branches = []
    for number in (0, 200, START_ROUND - 1, START_ROUND + 5):
        parent = CHAIN_RUN if number == 0 else rounds[number - 1][1].digest
        commit, header = next(
            iter(rounds_after([PEER], 1, parent, round_number=number, run_id=digest_of(b"other")))
        )
        branches.append(store.add(commit, header))
    store.begin_at(start_of(rounds))
    assert [branch in store for branch in branches] == [False, False, False, True]
    assert not store.may_follow(CHAIN_RUN)
    assert not store.may_follow(store.root)
    assert not store.may_follow(rounds[START_ROUND - 2][1].digest)
    assert store.may_follow(rounds[START_ROUND - 1][1].digest)
    assert not store.is_whole(CHAIN_RUN)


def test_a_head_that_is_left_stays_until_the_next_start(
    directory: Path, rounds: list[tuple[Commit, Header]]
) -> None:
    store = open_chain(directory)
    parent = rounds[99][1].digest
    left = [
        store.add(commit, header)
        for commit, header in rounds_after(
            [PEER], 5, parent, round_number=100, run_id=digest_of(b"other")
        )
    ]
    start = start_of(rounds)
    store.begin_at(start, [left[-1]])
    assert store.entry(left[-1]).round == 105
    assert store.header(left[-1]).round == 105
    assert not store.is_linked(left[-1])
    assert store.has_unlinked
    newest = rounds[-1][1].digest
    assert store.only_in(newest, left[-1])[-1] == rounds[START_ROUND - STANDING_ROUNDS][1].digest
    store.begin_at(start)
    assert left[-1] not in store
    assert not store.has_unlinked


def steps_of_a_prune(directory: Path, rounds: list[tuple[Commit, Header]]) -> Iterator[None]:
    store, start = open_chain(directory), start_of(rounds)
    yield
    store.write_start(start)
    yield
    store.begin_at(start)
    yield
    while store._leftover:
        os.unlink(store._leftover.pop(len(store._leftover) // 2))
        yield


@pytest.mark.parametrize("num_steps", [0, 1, 2, 3, 60, 150, 191])
def test_a_crash_at_any_step_leaves_a_whole_chain(
    directory: Path, rounds: list[tuple[Commit, Header]], num_steps: int
) -> None:
    steps = steps_of_a_prune(directory, rounds)
    for _ in range(num_steps + 1):
        next(steps)
    again = open_chain(directory)
    if num_steps == 0:
        assert again.start is None
        assert again.path_between(CHAIN_RUN, rounds[-1][1].digest) is not None
        return
    assert_begins_at_start(again, rounds)
    again.remove_leftover()
    assert len(kept_rounds(directory)) == NUM_ROUNDS - START_ROUND + STANDING_ROUNDS


def test_a_crash_while_the_start_is_written_leaves_the_old_one(
    directory: Path, rounds: list[tuple[Commit, Header]], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_chain(directory)

    def killed(*_args: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(Killed):
            store.write_start(start_of(rounds))
    again = open_chain(directory)
    assert again.start is None
    assert again.path_between(CHAIN_RUN, rounds[-1][1].digest) is not None


def test_a_damaged_start_or_first_round_is_no_start(
    directory: Path, rounds: list[tuple[Commit, Header]]
) -> None:
    """The node then knows nothing that follows from the run, and asks its peers."""
    begin_at_start(directory, rounds)
    path = directory / chain_start.START_NAME
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert read_start(directory) is None
    assert open_chain(directory).heads_by_weight() == [CHAIN_RUN]
    path.write_bytes(data)
    assert_begins_at_start(open_chain(directory), rounds)
    (directory / sorted(p.name for p in directory.iterdir() if "-" in p.name)[3]).unlink()
    again = open_chain(directory)
    assert again.start is None
    assert again.heads_by_weight() == [CHAIN_RUN]


def test_a_damaged_record_after_the_start_takes_no_later_round_with_it(
    directory: Path, rounds: list[tuple[Commit, Header]]
) -> None:
    begin_at_start(directory, rounds)
    kept = kept_rounds(directory)
    number = START_ROUND + 3
    (damaged,) = directory.glob(f"{number:010d}-*")
    damaged.write_bytes(damaged.read_bytes()[:-1])
    again = open_chain(directory)
    head = rounds[-1][1].digest
    assert again.header(head).round == NUM_ROUNDS
    assert not again.is_linked(head)
    assert not again.may_follow(head)
    assert again.heads_by_weight() == [rounds[number - 2][1].digest]
    assert again.remove_leftover() == 0
    assert kept_rounds(directory) == kept
    # A peer brings the record.
    again.add(*rounds[number - 1])
    assert_begins_at_start(again, rounds)
    assert again.may_follow(head)
    assert_begins_at_start(open_chain(directory), rounds)


def test_a_reader_beside_a_daemon_finds_a_whole_chain(
    directory: Path, rounds: list[tuple[Commit, Header]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon removes the old rounds while the reader is among them."""
    store, load = open_chain(directory), ChainStore._load
    is_pruned = False

    def prune_before(self: ChainStore, path: Path) -> None:
        nonlocal is_pruned
        if not is_pruned:
            is_pruned = True
            store.write_start(start_of(rounds))
            store.begin_at(start_of(rounds))
            store.remove_leftover()
        load(self, path)

    monkeypatch.setattr(ChainStore, "_load", prune_before)
    reader = open_chain(directory, read_only=True)
    assert_begins_at_start(reader, rounds)
    reader.remove_leftover()
    assert len(kept_rounds(directory)) == NUM_ROUNDS - START_ROUND + STANDING_ROUNDS
