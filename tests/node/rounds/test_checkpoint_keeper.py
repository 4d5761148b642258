"""When a node signs a checkpoint of its chain and lets headers go, and when it does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gossamer.node.heads.checkpoint_keeper import CheckpointKeeper
from gossamer.node.heads.missing_record import first_checkpoint_behind
from gossamer.node.network.identity import Identity
from gossamer.node.storage.chain.chain_store import ChainStore
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.policy.heads.chain_checkpoint import KEPT_ROUNDS
from gossamer.protocol.policy.heads.chain_summary import CHECKPOINT_PERIOD
from gossamer.protocol.policy.heads.head_choice import HeadChoice
from gossamer.protocol.standing import STANDING_ROUNDS
from gossamer.protocol.wire.statements import Rollback
from tests.support.committed_rounds import IDENTITY
from tests.support.long_chains import TOKENS, rounds_after
from tests.support.memory_transport import MemoryNetwork, run_simulated
from tests.support.pruned_runs import Peer, inline

NUM_ROUNDS = KEPT_ROUNDS + 2 * CHECKPOINT_PERIOD
OTHER = Identity.from_seed(b"o" * 32)


class LoadedPeer(Peer):
    """A node that stands on a chain of the founder alone."""

    keeper: CheckpointKeeper

    def stand(self) -> None:
        rounds = rounds_after([IDENTITY.peer_id], NUM_ROUNDS, self.chain.genesis)
        for commit, header in rounds:
            self.committed.head = self.chain.add(commit, header)
        self.committed.is_loaded = True  # type: ignore[attr-defined]
        self.committed.checkpoints = ()  # type: ignore[attr-defined]

    def first_round(self) -> int:
        return 0 if self.chain.start is None else self.chain.start.round


def look(
    folder: Path, identity: Identity, rollbacks: list[Rollback], pinned_round: int = 0
) -> LoadedPeer:
    """The node after a look of its keeper, without any other peer."""
    peers: list[LoadedPeer] = []

    async def main() -> None:
        network = MemoryNetwork(seed=1)
        async with network.transport(identity) as transport:
            peer = LoadedPeer(folder, transport)
            peer.stand()
            pin: Digest | None = None
            if pinned_round:
                num_after = NUM_ROUNDS - pinned_round
                pin = peer.chain.ancestors(peer.committed.head, num_after)[-1]
                peer.chain.pinned_head = pin
            keeper = CheckpointKeeper(
                peer.manifest, identity, transport, peer.committed, peer.choice, rollbacks,  # type: ignore[arg-type]
                peer.checkpoints, peer._note,
            )  # fmt: skip
            await keeper.look(inline)  # type: ignore[arg-type]
            peer.keeper = keeper
            if pin is not None:
                assert pin not in peer.chain
                assert pin in peer.chain.passed
            peers.append(peer)

    run_simulated(main)
    return peers[0]


def test_the_founder_alone_signs_and_lets_old_headers_go(tmp_path: Path) -> None:
    peer = look(tmp_path, IDENTITY, [])
    assert peer.checkpoints.last_round == NUM_ROUNDS - CHECKPOINT_PERIOD
    assert peer.first_round() == NUM_ROUNDS - KEPT_ROUNDS
    start = peer.chain.start
    assert start is not None
    assert start.decoded_summary().rows[0].rounds == start.round


def test_another_peer_alone_proves_nothing_and_keeps_all_headers(tmp_path: Path) -> None:
    peer = look(tmp_path, OTHER, [])
    assert peer.checkpoints.pending is not None
    assert peer.checkpoints.last is None
    assert peer.first_round() == 0


def test_the_way_to_a_summary_is_walked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was walked again for the part up to the signed checkpoint and for the part after it."""
    peer = look(tmp_path, IDENTITY, [])
    last, chain = peer.checkpoints.last, peer.chain
    assert last is not None
    assert peer.first_round() < last.round
    walked: list[Digest] = []
    walk = ChainStore.path_between

    def counted(chain: ChainStore, ancestor: Digest, head: Digest) -> list[Digest] | None:
        walked.append(head)
        return walk(chain, ancestor, head)

    monkeypatch.setattr(ChainStore, "path_between", counted)
    later = chain.ancestors(peer.committed.head, NUM_ROUNDS - last.round - 100)[-1]
    summary = peer.keeper._summary_at(later)
    assert walked == [later]
    assert summary is not None
    assert summary.rows[0].rounds == summary.round == last.round + 100
    assert peer.keeper._summary_at(later) == summary  # from the one that is known


@pytest.mark.parametrize(("rollback_round", "expected"), [(300, 256), (600, 512), (100, 0)])
def test_after_a_rollback_nothing_later_is_signed_and_no_later_header_goes(
    tmp_path: Path, rollback_round: int, expected: int
) -> None:
    peer = look(tmp_path, IDENTITY, [Rollback(bytes(32), bytes(32), rollback_round)])
    assert peer.checkpoints.last_round == expected
    assert peer.first_round() == min(expected, NUM_ROUNDS - KEPT_ROUNDS)


@pytest.mark.parametrize("pinned_round", [16, 100])
def test_the_head_of_the_link_is_remembered_when_its_header_goes(
    tmp_path: Path, pinned_round: int
) -> None:
    """Also one that no summary names, as links of earlier versions do."""
    look(tmp_path, IDENTITY, [], pinned_round)


def damaged_look(
    folder: Path,
    rounds: list[int],
    identity: Identity = IDENTITY,
    *,
    num_looks: int = 1,
    rollbacks: Sequence[Rollback] = (),
    run_in_thread: Any = inline,
) -> LoadedPeer:
    """The node after looks of its keeper, when the disk has lost the records of some rounds."""
    peers: list[LoadedPeer] = []

    async def main() -> None:
        network = MemoryNetwork(seed=1)
        async with network.transport(identity) as transport:
            whole = LoadedPeer(folder, transport)
            whole.stand()
            for number in rounds:
                (record,) = whole.directory.glob(f"{number:010d}-*")
                record.unlink()
            peer = LoadedPeer(folder, transport)
            peer.committed.head = whole.committed.head
            peer.committed.is_loaded = True  # type: ignore[attr-defined]
            peer.committed.checkpoints = ()  # type: ignore[attr-defined]
            keeper = CheckpointKeeper(
                peer.manifest, identity, transport, peer.committed, peer.choice, rollbacks,  # type: ignore[arg-type]
                peer.checkpoints, peer._note,
            )  # fmt: skip
            for _ in range(num_looks):
                await keeper.look(run_in_thread)
            peers.append(peer)

    run_simulated(main)
    return peers[0]


@pytest.mark.parametrize("rounds", [[300], [1], [300, 301, 302], [40, 300, 900], [256, 512]])
def test_the_founder_alone_signs_behind_a_record_that_its_disk_lost(
    tmp_path: Path, rounds: list[int]
) -> None:
    """Nobody could join otherwise, however long the run goes on."""
    peer = damaged_look(tmp_path, rounds)
    signed = NUM_ROUNDS - CHECKPOINT_PERIOD
    last = peer.checkpoints.last
    assert last is not None
    assert last.round == signed
    assert peer.first_round() == signed
    assert peer.chain.is_whole(peer.committed.head)
    start = peer.chain.start
    assert start is not None
    summary = start.decoded_summary()
    assert summary.rows[0].rounds == signed - len(rounds)
    assert summary.rows[0].tokens + summary.others == last.tokens_total == signed * TOKENS
    kept = sorted(int(path.name.split("-")[0]) for path in peer.directory.glob("0*"))
    assert kept == list(range(signed - STANDING_ROUNDS + 1, NUM_ROUNDS + 1))
    again = ChainStore(peer.directory, peer.chain.genesis, peer.chain.genesis)
    assert again.start == start
    assert again.is_whole(peer.committed.head)


def test_no_thread_asks_who_has_stake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop chooses among heads meanwhile, and remembers what it found for that."""
    num_threads, asked_in_threads = 0, 0
    count = HeadChoice.stakes_at

    async def in_thread(function: Callable[[], Any]) -> Any:
        nonlocal num_threads
        num_threads += 1
        try:
            return function()
        finally:
            num_threads -= 1

    def counted(choice: HeadChoice, head: Digest) -> Mapping[PeerId, int]:
        nonlocal asked_in_threads
        asked_in_threads += num_threads
        return count(choice, head)

    monkeypatch.setattr(HeadChoice, "stakes_at", counted)
    peer = damaged_look(tmp_path, [300], run_in_thread=in_thread)
    assert peer.checkpoints.last is not None
    assert not asked_in_threads


@pytest.mark.parametrize(("rollback_round", "expected"), [(400, 0), (511, 0), (512, 512)])
def test_behind_a_lost_record_none_is_signed_after_a_rollback_to_an_earlier_round(
    tmp_path: Path, rollback_round: int, expected: int
) -> None:
    """`gossamer rollback` warns of it: newcomers would not know whether the chain obeys."""
    assert first_checkpoint_behind(300) == 512
    taken_back = Rollback(bytes(32), bytes(32), rollback_round)
    peer = damaged_look(tmp_path, [300], rollbacks=[taken_back])
    assert peer.checkpoints.last_round == expected
    assert (peer.chain.gap_before(peer.committed.head) is None) == (expected > 0)


def test_a_record_among_those_that_say_who_has_stake_is_waited_for(tmp_path: Path) -> None:
    """Its round is too near to the only checkpoint that is due."""
    due = NUM_ROUNDS - CHECKPOINT_PERIOD
    peer = damaged_look(tmp_path, [due - STANDING_ROUNDS // 2], num_looks=2)
    assert peer.checkpoints.last is None
    assert peer.checkpoints.pending is None
    assert peer.chain.header(peer.committed.head).round == NUM_ROUNDS
    assert len(list(peer.directory.glob("0*"))) == NUM_ROUNDS - 1


def test_a_node_signs_nothing_of_its_own_where_others_have_stake(tmp_path: Path) -> None:
    """They have the record, and sign what it says."""
    peer = damaged_look(tmp_path, [300], OTHER, num_looks=2)
    assert peer.checkpoints.pending is None
    assert peer.first_round() == 0
    assert len(list(peer.directory.glob("0*"))) == NUM_ROUNDS - 1


@pytest.mark.parametrize("more", [0, 1])
def test_the_next_checkpoint_goes_on_from_the_signed_one_also_where_the_record_is_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    """Otherwise members that have the record, and those that came later, would sign different
    summaries from then on. A signed one that gives a member more than the chain is not used."""
    lacking = damaged_look(tmp_path / "lacking", [300])

    async def main() -> None:
        network = MemoryNetwork(seed=1)
        async with network.transport(IDENTITY) as transport:
            whole = LoadedPeer(tmp_path / "whole", transport)
            whole.stand()
            summary = lacking.checkpoints.last_summary
            assert summary is not None
            assert summary.others == TOKENS
            whole.checkpoints.take_path(lacking.checkpoints._path, summary)
            rounds = rounds_after(
                [IDENTITY.peer_id], CHECKPOINT_PERIOD, whole.committed.head,
                round_number=NUM_ROUNDS, tokens_total=whole.committed.entry.tokens_total,
                run_id=whole.chain.genesis,
            )  # fmt: skip
            for commit, header in rounds:
                whole.committed.head = whole.chain.add(commit, header)
            keeper = CheckpointKeeper(
                whole.manifest, IDENTITY, transport, whole.committed, whole.choice, [],  # type: ignore[arg-type]
                whole.checkpoints, whole._note,
            )  # fmt: skip
            rows = (replace(summary.rows[0], tokens=summary.rows[0].tokens + more * 2 * TOKENS),)
            claimed = to_msgpack(replace(summary, rows=rows))
            monkeypatch.setattr(whole.checkpoints, "_summary", claimed)
            await keeper.look(inline)  # type: ignore[arg-type]
            assert whole.checkpoints.last_round == NUM_ROUNDS
            next_summary = whole.checkpoints.last_summary
            assert next_summary is not None
            assert next_summary.others == (0 if more else TOKENS)
            assert next_summary.rows[0].rounds == NUM_ROUNDS - (0 if more else 1)

    run_simulated(main)
