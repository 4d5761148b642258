"""Swarms of real daemons for `parity.py`: found, join, train to a round, read back every state."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gossamer.node.base.settings.settings import DEFAULT_CACHE_BYTES
from gossamer.node.demo.local_swarm import LocalSwarm
from gossamer.node.network.signed_manifests import open_signed_manifest
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.storage.chain.chain_store import ChainStore
from gossamer.node.storage.state.committed import CommittedState
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.ids import Digest
from gossamer.protocol.state.chain import Header
from gossamer.protocol.state.digest import FloatVector

ROUND_TIMEOUT_SECONDS = 120.0
"""Time without a commit after which a swarm is stuck, also on a busy machine."""


@dataclass(frozen=True)
class Run:
    """A finished run on the disk of one of its peers."""

    state_dir: StateDir
    seconds: float
    """Time from the first committed round to the last."""

    def states(self, last_round: int) -> Iterator[tuple[Header | None, FloatVector]]:
        """(header, parameters) of genesis (no header) and every round up to `last_round`.

        Replayed from the averaged chunks on disk, as a newcomer would. The vector is reused.
        """
        signed = self.state_dir.read_manifest()
        assert signed is not None
        manifest = open_signed_manifest(signed)
        store = BlockStore(self.state_dir.blocks_path, DEFAULT_CACHE_BYTES, read_only=True)
        genesis_state = Digest(manifest.genesis_digest)
        chain = ChainStore(
            self.state_dir.chain_path, manifest.run_id, genesis_state, read_only=True
        )
        parameters = np.zeros(manifest.model.num_parameters, np.float32)
        committed = CommittedState(
            manifest, parameters, store, chain, self.state_dir, read_only=True
        )
        committed.load_checkpoint(chain.genesis)
        yield None, parameters
        path = chain.path_between(chain.genesis, chain.heads_by_weight()[0])
        assert path is not None
        assert len(path) >= last_round
        for head in path[:last_round]:
            yield committed.replay(head).header, parameters


def train_swarm(root: Path, manifest: Path, num_peers: int, last_round: int) -> Run:
    """Founds a run, joins it with the other peers, and ends all when round `last_round` is there.

    Raises:
        SwarmError: a daemon died or the swarm got stuck; with the end of its log.
    """
    # The manifest's checkpoint_rounds is so large that the averages of all rounds stay on disk.
    options = (
        *("--threads", "1", "--device", "cpu"),
        *("--wait-for-peers", str(num_peers - 1)),
    )
    with LocalSwarm(root, options) as swarm:
        founder = swarm.found("--manifest", str(manifest))
        address = founder.address(120.0)
        for _ in range(num_peers - 1):
            swarm.join(address)
        begun = 0.0
        for number in range(1, last_round + 1):
            founder.wait_for(
                lambda status, number=number: status.round >= number,  # type: ignore[misc]
                ROUND_TIMEOUT_SECONDS,
                f"round {number}",
            )
            begun = begun or time.monotonic()
        seconds = time.monotonic() - begun
        for node in swarm.nodes:
            node.leave()
    return Run(StateDir(founder.root), seconds)
