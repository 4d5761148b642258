"""The heads that votes may name, and the stake there, on chains as the disk has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gossamer.node.peers.members.settled_stakes import SettledStakes
from gossamer.node.storage.chain.chain_store import ChainStore
from gossamer.node.storage.chain.known_rounds import KnownRounds
from gossamer.protocol.ids import Digest
from gossamer.protocol.policy.heads.head_choice import UNDO_ROUNDS_MAX, HeadChoice
from gossamer.protocol.policy.members import expulsion_count
from gossamer.protocol.standing import STANDING_ROUNDS
from gossamer.protocol.state.chain import Commit, Header
from gossamer.protocol.wire.expulsion_messages import VOTE_PERIOD
from tests.node.storage.test_chain_start import START_ROUND, start_of
from tests.support.builders import peer
from tests.support.long_chains import CHAIN_RUN, open_chain, rounds_after, write_chain

MEMBERS = [peer(number) for number in range(3)]
NUM_ROUNDS = START_ROUND + 60


@pytest.fixture(scope="module")
def rounds() -> list[tuple[Commit, Header]]:
    return list(rounds_after(MEMBERS, NUM_ROUNDS, CHAIN_RUN))


def choice_of(store: ChainStore) -> HeadChoice:
    return HeadChoice(KnownRounds(store), MEMBERS[0])


def test_settled_heads_of_the_own_chain_may_be_named(
    tmp_path: Path, rounds: list[tuple[Commit, Header]]
) -> None:
    store = write_chain(tmp_path / "chain", rounds)
    heads = [CHAIN_RUN, *(header.digest for _, header in rounds)]
    own = CHAIN_RUN

    def own_head() -> Digest:
        return own

    stakes = SettledStakes(store, choice_of(store), own_head)
    for number in (0, 5, VOTE_PERIOD + UNDO_ROUNDS_MAX - 1):
        own = heads[number]
        assert stakes.settled_round == 0
        assert stakes.head_at(VOTE_PERIOD) is None
    own = heads[VOTE_PERIOD + UNDO_ROUNDS_MAX]
    assert stakes.settled_round == VOTE_PERIOD
    assert stakes.head_at(VOTE_PERIOD) == heads[VOTE_PERIOD]
    own = heads[NUM_ROUNDS]
    newest = (NUM_ROUNDS - UNDO_ROUNDS_MAX) // VOTE_PERIOD * VOTE_PERIOD
    assert stakes.settled_round == newest
    named = {number for number in range(NUM_ROUNDS + 1) if stakes.head_at(number) is not None}
    assert named == {*range(VOTE_PERIOD, newest + 1, VOTE_PERIOD)}
    assert all(stakes.head_at(number) == heads[number] for number in named)
    assert stakes.stakes_at(heads[newest]) == choice_of(store).stakes_at(heads[newest])


def test_heads_are_named_as_long_as_votes_count(
    tmp_path: Path, rounds: list[tuple[Commit, Header]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gossamer.node.peers.members.settled_stakes.VOTE_ROUNDS", 64)
    assert expulsion_count.VOTE_ROUNDS > 64
    store = write_chain(tmp_path / "chain", rounds)
    stakes = SettledStakes(store, choice_of(store), lambda: rounds[-1][1].digest)
    newest = NUM_ROUNDS - UNDO_ROUNDS_MAX
    named = {number for number in range(NUM_ROUNDS + 1) if stakes.head_at(number) is not None}
    assert named == {n for n in range(newest - 64, newest + 1) if n % VOTE_PERIOD == 0}


def test_before_the_start_of_a_kept_chain_nobody_can_count(
    tmp_path: Path, rounds: list[tuple[Commit, Header]]
) -> None:
    """The rounds before it say who has stake at the start, and not who had stake at themselves."""
    whole = write_chain(tmp_path / "whole", rounds)
    store = write_chain(tmp_path / "chain", rounds)
    start = start_of(rounds)
    store.write_start(start)
    store.begin_at(start)
    store.remove_leftover()
    own = rounds[-1][1].digest
    stakes = SettledStakes(store, choice_of(store), lambda: own)
    all_stakes = SettledStakes(whole, choice_of(whole), lambda: own)
    named = {number for number in range(NUM_ROUNDS + 1) if stakes.head_at(number) is not None}
    assert min(named) == START_ROUND
    assert stakes.settled_round == all_stakes.settled_round == max(named)
    for number in named:
        head = stakes.head_at(number)
        assert head is not None
        assert head == all_stakes.head_at(number)
        assert stakes.stakes_at(head) == all_stakes.stakes_at(head)


def test_a_chain_that_begins_anew_forgets_heads_before_its_start(
    tmp_path: Path, rounds: list[tuple[Commit, Header]]
) -> None:
    """A start comes at any time, and not with a new head. To ask for the stake at a head that is
    not known any more would end the node."""
    store = write_chain(tmp_path / "chain", rounds)
    stakes = SettledStakes(store, choice_of(store), lambda: rounds[-1][1].digest)
    assert stakes.head_at(VOTE_PERIOD) is not None
    store.begin_at(start_of(rounds))
    named = [head for number in range(NUM_ROUNDS + 1) if (head := stakes.head_at(number))]
    assert all(stakes.stakes_at(head) for head in named)
    assert store.entry(named[0]).round == START_ROUND


def test_behind_a_record_that_the_disk_lost_stake_counts_when_all_rounds_that_say_so_are_here(
    tmp_path: Path, rounds: list[tuple[Commit, Header]]
) -> None:
    """Others count all of them, so this node would find votes to hold that do not."""
    lost = NUM_ROUNDS - STANDING_ROUNDS - 40
    whole = write_chain(tmp_path / "whole", rounds)
    write_chain(tmp_path / "chain", rounds)
    (record,) = (tmp_path / "chain").glob(f"{lost:010d}-*")
    record.unlink()
    store, own = open_chain(tmp_path / "chain"), rounds[-1][1].digest
    assert store.gap_before(own) == lost
    stakes = SettledStakes(store, choice_of(store), lambda: own)
    all_stakes = SettledStakes(whole, choice_of(whole), lambda: own)
    named = {number for number in range(NUM_ROUNDS + 1) if stakes.head_at(number) is not None}
    first = lost + STANDING_ROUNDS
    assert named == {n for n in range(first, stakes.settled_round + 1) if n % VOTE_PERIOD == 0}
    for number in named:
        head = stakes.head_at(number)
        assert head is not None
        assert stakes.stakes_at(head) == all_stakes.stakes_at(head)


def test_another_own_head_changes_what_may_be_named(
    tmp_path: Path, rounds: list[tuple[Commit, Header]]
) -> None:
    store = write_chain(tmp_path / "chain", rounds[:40])
    other = list(rounds_after(MEMBERS[:1], 40, CHAIN_RUN))
    for commit, header in other:
        store.add(commit, header)
    own = rounds[39][1].digest
    stakes = SettledStakes(store, choice_of(store), lambda: own)
    assert stakes.head_at(VOTE_PERIOD) == rounds[VOTE_PERIOD - 1][1].digest
    own = other[39][1].digest
    assert stakes.head_at(VOTE_PERIOD) == other[VOTE_PERIOD - 1][1].digest
