"""When a node signs a checkpoint of its chain and lets headers go, and when it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from gossamer.node.heads.checkpoint_keeper import CheckpointKeeper
from gossamer.node.network.identity import Identity
from gossamer.protocol.ids import Digest
from gossamer.protocol.policy.chain_checkpoint import KEPT_ROUNDS
from gossamer.protocol.policy.chain_summary import CHECKPOINT_PERIOD
from gossamer.protocol.wire.statements import Rollback
from tests.support.committed_rounds import IDENTITY
from tests.support.long_chains import rounds_after
from tests.support.memory_transport import MemoryNetwork, run_simulated
from tests.support.pruned_runs import Peer, inline

NUM_ROUNDS = KEPT_ROUNDS + 2 * CHECKPOINT_PERIOD
OTHER = Identity.from_seed(b"o" * 32)


class LoadedPeer(Peer):
    """A node that stands on a chain of the founder alone."""

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
            keeper = CheckpointKeeper(
                peer.manifest, identity, transport, peer.committed, peer.choice, rollbacks,  # type: ignore[arg-type]
                peer.checkpoints, peer._note, pin,
            )  # fmt: skip
            await keeper.look(inline)  # type: ignore[arg-type]
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
