"""The parts of a node that exist before the run's data index is here, and how they are connected.

`CoreBuilder` makes them from what a life begins with. `assembly` runs them, and builds the rest.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import trio

from gossamer.node.app.runtime import Runtime
from gossamer.node.base.rate_limit import rate_limit_of
from gossamer.node.base.settings import Settings
from gossamer.node.heads.checkpoint_keeper import CheckpointKeeper
from gossamer.node.heads.extensions import ExtensionFile, Extensions
from gossamer.node.heads.rollbacks import RollbackFiles, Rollbacks
from gossamer.node.machine.trainer import Trainer
from gossamer.node.network.identity import Identity
from gossamer.node.network.transport import Transport
from gossamer.node.peers.admission import Admission
from gossamer.node.peers.block_exchange import BlockService
from gossamer.node.peers.chain_adoption import ChainAdoption
from gossamer.node.peers.chain_checkpoints import ChainCheckpoints
from gossamer.node.peers.chain_records import ChainRecords
from gossamer.node.peers.chain_sync import ChainSync
from gossamer.node.peers.discovery import Discovery
from gossamer.node.peers.entrance import Entrance
from gossamer.node.peers.known_peers_file import KnownPeersFile
from gossamer.node.peers.offences import Offences
from gossamer.node.peers.run_blocks import RunBlocks
from gossamer.node.peers.settled_stakes import SettledStakes
from gossamer.node.peers.swarm import Swarm
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.storage.chain_store import ChainStore
from gossamer.node.storage.committed import CommittedState
from gossamer.node.storage.incarnation import Incarnation
from gossamer.node.storage.known_peers import KnownPeers
from gossamer.node.storage.known_rounds import KnownRounds
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.storage.work import Work
from gossamer.node.telemetry.metrics import Metrics
from gossamer.node.training.more_data import AddedData, MoreDataFile
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.policy.head_choice import HeadChoice
from gossamer.protocol.policy.membership import Membership
from gossamer.protocol.policy.rollback_signers import RollbackSigners


@dataclass(frozen=True)
class NodeInputs:
    """What a node's life begins with."""

    manifest: Manifest
    settings: Settings
    state_dir: StateDir
    identity: Identity
    store: BlockStore
    transport: Transport
    runtime: Runtime


@dataclass(frozen=True)
class Core:
    """The parts that exist before the run's data index is here."""

    trainer: Trainer
    committed: CommittedState
    work: Work
    swarm: Swarm
    chain_sync: ChainSync
    discovery: Discovery
    known_peers: KnownPeersFile
    run_blocks: RunBlocks
    rounds: KnownRounds
    choice: HeadChoice
    rollbacks: Rollbacks
    extensions: Extensions
    checkpoint_keeper: CheckpointKeeper
    added_data: AddedData


class CoreBuilder:
    """Builds the parts of one life."""

    def __init__(
        self,
        inputs: NodeInputs,
        metrics: Metrics,
        offences: Offences,
        entrance: Entrance,
        blocks: BlockService,
        known_peers: KnownPeers,
        pinned_head: Digest | None,
    ) -> None:
        """
        Args:
            known_peers: those of earlier lives.
            pinned_head: the head that the link named by which this node joined, if it named one.
        """
        self._inputs = inputs
        self._metrics = metrics
        self._offences = offences
        self._entrance = entrance
        self._blocks = blocks
        self._known_peers = known_peers
        self._pinned_head = pinned_head

    def build(self, incarnation: Incarnation) -> Core:
        """Builds the parts of one life, and connects them to each other."""
        inputs = self._inputs
        manifest, settings, state_dir = inputs.manifest, inputs.settings, inputs.state_dir
        transport, run_in_thread = inputs.transport, inputs.runtime.run_in_thread
        randomness = random.Random(inputs.identity.peer_id)
        run_blocks = RunBlocks(manifest, inputs.store, self._blocks, transport)
        run_blocks.pin()
        trainer = inputs.runtime.make_trainer(manifest, settings, str(state_dir.optimizer_path))
        genesis_state = Digest(manifest.genesis_digest)
        chain = ChainStore(
            state_dir.chain_path, manifest.run_id, genesis_state, health=state_dir.health
        )
        committed = CommittedState(
            manifest,
            trainer.base,
            inputs.store,
            chain,
            state_dir,
            clock=inputs.runtime.local_seconds,
        )
        rounds = KnownRounds(chain)
        roll = self._entrance.roll
        choice = HeadChoice(
            rounds, PeerId(manifest.founder), None if roll is None else roll.branch_of
        )
        self._entrance.count_at(SettledStakes(chain, choice, lambda: committed.entry.head))
        self._blocks.uploads.is_member = lambda peer: (
            manifest.admission == "allow" or peer in choice.stakes_at(committed.entry.head)
        )
        work = Work(
            state_dir.root / "work",
            trainer.pending,
            committed.sync_sets.whole.plan,
            manifest.stale_rounds,
            self._metrics,
            clock=trio.current_time,
            life=lambda: incarnation.number,
        )
        membership = Membership(inputs.identity.peer_id)
        # `uploads` asks only about admitted peers, and takes all of a run with a list for members.
        transport.keep_places_of(
            membership.is_known,
            has_standing=lambda peer: (
                self._entrance.admits(peer) and self._blocks.uploads.is_member(peer)
            ),
            is_expected=lambda peer: (
                self._entrance.admits(peer)
                and (roll is not None or self._blocks.uploads.is_member(peer))
            ),
        )
        admission = Admission(
            manifest,
            transport,
            membership,
            chain,
            self._offences,
            self._entrance,
            committed.ring_rules,
        )
        swarm = Swarm(
            transport, inputs.identity, membership, admission, incarnation, randomness,
            inputs.runtime.awake,
        )  # fmt: skip
        swarm.gossip.statement_store.has_standing = lambda author: (
            author == inputs.identity.peer_id or self._blocks.uploads.is_member(PeerId(author))
        )
        if settings.relay != "off":
            swarm.relay(
                rate_limit_of(settings.relay_limit), introduces=settings.relay == "introduce"
            )
        records = ChainRecords(
            transport,
            committed,
            run_in_thread=run_in_thread,
            open_commit=admission.open_commit,
            on_offence=swarm.offence,
        )
        chain_sync = ChainSync(manifest, records, self._blocks, committed, run_in_thread)
        rollbacks = self._read_rollbacks()
        keeper = self._build_checkpoints(committed, choice, rollbacks, records, swarm, admission)
        known = self._known_peers
        discovery = Discovery(
            transport, known, settings.bootstrap, membership, self._metrics, randomness,
            inputs.runtime.awake, self._entrance, swarm.gossip.other_runs.__contains__,
        )  # fmt: skip
        known_peers = KnownPeersFile(
            known,
            transport,
            membership,
            state_dir.health,
            run_in_thread,
        )
        return Core(
            trainer, committed, work, swarm, chain_sync, discovery, known_peers, run_blocks,
            rounds, choice, rollbacks, self._read_extension(committed), keeper,
            AddedData(
                manifest, MoreDataFile(state_dir.root, manifest), inputs.store, self._blocks,
                transport.peers, state_dir.health,
            ),
        )  # fmt: skip

    def _build_checkpoints(
        self,
        committed: CommittedState,
        choice: HeadChoice,
        rollbacks: Rollbacks,
        records: ChainRecords,
        swarm: Swarm,
        admission: Admission,
    ) -> CheckpointKeeper:
        """Builds what serves, follows and makes signed checkpoints of the chain."""
        inputs, roll = self._inputs, self._entrance.roll
        checkpoints = ChainCheckpoints(
            inputs.manifest, inputs.transport, inputs.state_dir.chain_path, inputs.state_dir.health,
            None if roll is None else roll.branch_of, self._entrance.require_known, swarm.offence,
        )  # fmt: skip
        adoption = ChainAdoption(
            committed, records, checkpoints, admission.open_commit, choice,
            inputs.runtime.run_in_thread,
        )  # fmt: skip
        adoption.rolled_back = lambda: [each.round for each in rollbacks]
        records.adopt = adoption.adopt
        return CheckpointKeeper(
            inputs.manifest, inputs.identity, inputs.transport, committed, choice, rollbacks,
            checkpoints, swarm.offence, self._pinned_head,
        )  # fmt: skip

    def _read_rollbacks(self) -> Rollbacks:
        manifest, state_dir = self._inputs.manifest, self._inputs.state_dir
        signers = RollbackSigners.of(manifest)
        files = RollbackFiles(state_dir.root, manifest.run_id, signers)
        rollbacks = Rollbacks(files, state_dir.health)
        rollbacks.load()
        return rollbacks

    def _read_extension(self, committed: CommittedState) -> Extensions:
        state_dir = self._inputs.state_dir
        file = ExtensionFile(state_dir.root, self._inputs.manifest)
        extensions = Extensions(file, committed.end, state_dir.health)
        extensions.load()
        return extensions
