"""Which records of other branches a node keeps, by who signed the first round beside its own."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gossamer.node.heads import side_records
from gossamer.node.heads.side_records import RecordLimits, SideRecords
from gossamer.node.storage.chain.chain_store import ChainStore
from gossamer.node.storage.chain.known_rounds import KnownRounds
from gossamer.protocol import limits
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.policy.heads.head_choice import HeadChoice
from gossamer.protocol.state.chain import Commit, Header, Member
from gossamer.protocol.wire.statements import Signed
from tests.support.builders import peer

RUN_ID = Digest(bytes(32))
FRIEND, STRANGER, BRINGER, FOUNDER = peer(1), peer(2), peer(3), peer(4)
ROSTER = Signed(FRIEND, b"roster", bytes(64))
"""What nothing here opens."""
OWN_ROUNDS = 8
MANY = 100


class Node:
    """A node with a chain that it and a friend have signed."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(side_records, "NEWCOMER_ROUNDS", 4)
        monkeypatch.setattr(side_records, "STRANGERS", RecordLimits(4_000, 10_000))
        monkeypatch.setattr(side_records, "KNOWN", RecordLimits(40_000, 100_000))
        self.store = ChainStore(directory, RUN_ID, Digest(bytes(32)))
        self.own = [RUN_ID]
        self.room_wanted = 0
        self.committed = SimpleNamespace(chain=self.store, head=RUN_ID, entry=None)
        for _ in range(OWN_ROUNDS):
            commit, header = self.made(self.own[-1], FRIEND)
            self.own.append(self.store.add(commit, header))
        self.move_to(self.own[-1])
        choice = HeadChoice(KnownRounds(self.store), FOUNDER)
        nobody = SimpleNamespace()
        self.records = SideRecords(
            cast(Any, self.committed), choice.stakes_at, cast(Any, nobody), cast(Any, nobody)
        )
        self.records.make_room = self._make_room  # type: ignore[method-assign]

    def _make_room(self) -> None:
        self.room_wanted += 1

    def move_to(self, head: Digest) -> None:
        self.committed.head = head
        self.committed.entry = self.store.entry(head)

    def made(self, parent: Digest, signer: PeerId, tokens: int = 7) -> tuple[Commit, Header]:
        before = self.store.entry(parent)
        header = Header(
            version=limits.PROTOCOL_VERSION,
            run_id=RUN_ID,
            round=before.round + 1,
            parent=parent,
            ring_id=bytes(32),
            members=(Member(signer, tokens, 1.0),),
            tokens_total=before.tokens_total + tokens,
            update_digest=bytes(32),
            state_digest=bytes(32),
            ledger_digest=bytes(32),
            spans=(),
        )
        return Commit(to_msgpack(header), ROSTER, (Signed(signer, b"vote", bytes(64)),)), header

    def bring(
        self, fork: Digest, signers: list[PeerId], bringer: PeerId = BRINGER, tokens: int = 8
    ) -> list[Digest]:
        """A peer brings a branch; returns the heads that were kept."""
        kept, parent = [], fork
        for signer in signers:
            commit, header = self.made(parent, signer, tokens)
            if not self.records.admits(bringer, commit, header):
                break
            parent = self.store.add(commit, header)
            kept.append(parent)
        return kept


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path / "chain", monkeypatch)


def test_a_branch_of_strangers_is_kept_up_to_a_bound_by_bringer_and_in_all(node: Node) -> None:
    of_one = node.bring(node.own[-1], [STRANGER] * MANY)
    assert 2 <= len(of_one) < 20
    assert node.room_wanted == 0
    # Another peer goes on with that branch, and all together come to an end.
    num_kept = len(of_one)
    parent = of_one[-1]
    for number in range(10, 20):
        more = node.bring(parent, [STRANGER] * MANY, bringer=peer(number))
        num_kept += len(more)
        parent = more[-1] if more else parent
    assert 2 * len(of_one) <= num_kept <= 3 * len(of_one)
    assert node.room_wanted > 0


def test_a_branch_that_a_friend_began_is_long_whoever_goes_on(node: Node) -> None:
    """The others after a split, of whom some have left since; or while this machine slept."""
    for number, fork in enumerate((node.own[-1], node.own[4])):
        signers = [FRIEND, *[STRANGER] * (MANY // 2)]
        kept = node.bring(fork, signers, bringer=peer(20 + number), tokens=9)
        assert len(kept) == 1 + MANY // 2


def test_a_friend_of_a_later_round_does_not_help_a_strangers_branch(node: Node) -> None:
    kept = node.bring(node.own[2], [STRANGER, *[FRIEND] * MANY])
    assert 2 <= len(kept) < 20


def test_a_stranger_that_signs_its_own_branch_gains_no_standing_there(node: Node) -> None:
    first = node.bring(node.own[-1], [STRANGER] * MANY)
    assert node.bring(first[-1], [STRANGER] * MANY) == []
    assert node.bring(first[0], [STRANGER] * MANY, tokens=10) == []


def test_a_newcomer_learns_the_whole_chain(node: Node) -> None:
    node.move_to(node.own[2])
    assert len(node.bring(node.own[2], [STRANGER] * MANY, tokens=11)) == MANY


def test_room_comes_back_when_records_are_forgotten_or_become_the_own_chain(node: Node) -> None:
    first = node.bring(node.own[-1], [STRANGER] * MANY)
    assert node.bring(node.own[-1], [STRANGER] * MANY, tokens=12) == []
    node.move_to(first[0])
    node.store.forget_all_but([first[0]])
    assert len(node.bring(first[0], [STRANGER] * MANY, tokens=12)) == len(first)


@pytest.mark.parametrize("has_gap", [False, True])
def test_room_comes_back_behind_a_record_that_the_disk_lost(node: Node, has_gap: bool) -> None:
    if has_gap:
        (record,) = node.store._directory.glob("0000000003-*")
        record.unlink()
        node.store = ChainStore(node.store._directory, RUN_ID, Digest(bytes(32)))
        node.committed.chain = node.store
    assert (node.store.gap_before(node.own[-1]) is not None) == has_gap
    first = node.bring(node.own[-1], [STRANGER] * MANY)
    node.move_to(first[-1])
    assert len(node.bring(first[-1], [STRANGER] * MANY)) == len(first)


def test_bytes_beside_a_head_are_those_of_other_branches(node: Node) -> None:
    assert node.store.bytes_beside(node.own[-1]) == 0
    kept = node.bring(node.own[3], [FRIEND] * 5)
    expected = sum(node.store.entry(head).num_bytes for head in kept)
    assert node.store.bytes_beside(node.own[-1]) == expected > 0
    reread = ChainStore(node.store._directory, RUN_ID, Digest(bytes(32)))
    assert reread.bytes_beside(node.own[-1]) == expected


def test_votes_that_come_later_count_as_bytes_of_who_brings_them(node: Node) -> None:
    """A record may grow by far more than it had at first. It comes again and costs nothing."""
    commit, header = node.made(node.own[-1], STRANGER)
    assert node.records.admits(BRINGER, commit, header)
    head = node.store.add(commit, header)
    vote = b"vote" * 100
    votes = (*commit.votes, *(Signed(peer(30 + number), vote, bytes(64)) for number in range(MANY)))
    num_taken = 0
    for number in range(2, MANY):
        more = Commit(commit.header, commit.roster, votes[:number])
        if not node.records.admits(BRINGER, more, header):
            break
        node.store.add(more, header)
        num_taken += 1
        assert node.records.admits(peer(20), more, header)
    assert 2 <= num_taken < 20
    assert len(node.store.record(head)) < 4_000
    assert node.bring(node.own[-1], [STRANGER] * MANY, bringer=peer(20))
