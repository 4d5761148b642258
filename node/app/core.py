"""The parts of a node that exist before the run's data index is here, and how they are connected.

`CoreBuilder` makes them from what a life begins with. `assembly` runs them, and builds the rest.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import trio

from gossamer.node.app.limit_parts import LimitParts
from gossamer.node.app.owner_limits import OwnerLimits
from gossamer.node.app.pause_orders import PauseOrders
from gossamer.node.app.run_logs import RunLogs
from gossamer.node.app.runtime import NodeInputs
from gossamer.node.base.orders import Orders
from gossamer.node.base.rate_limit import rate_limit_of
from gossamer.node.heads.checkpoint_keeper import CheckpointKeeper
from gossamer.node.heads.extensions import ExtensionFile, Extensions
from gossamer.node.heads.rollbacks import RollbackFiles, Rollbacks
from gossamer.node.machine.hardware import Hardware
from gossamer.node.machine.speed import SpeedMeter
from gossamer.node.machine.trainer import Trainer
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
from gossamer.node.storage.chain_store import ChainStore
from gossamer.node.storage.committed import CommittedState
from gossamer.node.storage.incarnation import Incarnation
from gossamer.node.storage.known_peers import KnownPeers
from gossamer.node.storage.known_rounds import KnownRounds
from gossamer.node.storage.work import Work
from gossamer.node.telemetry.metrics import Metrics
from gossamer.node.training.more_data import AddedData, MoreDataFile
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.policy.head_choice import HeadChoice
from gossamer.protocol.policy.membership import Membership
from gossamer.protocol.policy.rollback_signers import RollbackSigners


@dataclass(frozen=True)
class FirstParts:
    """The parts of a node that exist before its life in the run begins.

    It has more than 12 fields because all the other parts are built from them.
    """

    metrics: Metrics
    speed: SpeedMeter
    hardware: Hardware
    offences: Offences
    entrance: Entrance
    blocks: BlockService
    known_peers: KnownPeers
    """Those of earlier lives."""
    pinned_head: Digest | None
    """The head that the link named by which this node joined, if it named one."""
    limits: OwnerLimits
    limit_parts: LimitParts
    orders: Orders
    pause_orders: PauseOrders
    run_logs: RunLogs


@dataclass(frozen=True)
class Core:
    """The parts that exist before the run's data index is here.

    It has more than 12 fields because the rest of the node is built from them.
    """

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

    def __init__(self, inputs: NodeInputs, first: FirstParts) -> None:
        self._inputs = inputs
        self._first = first
        self._entrance = first.entrance
        self._blocks = first.blocks

    def build(self, incarnation: Incarnation) -> Core:
        """Builds the parts of one life, and connects them to each other."""
        inputs = self._inputs
        manifest, settings, state_dir = inputs.manifest, inputs.settings, inputs.state_dir
        transport, run_in_thread = inputs.transport, inputs.runtime.run_in_thread
        randomness = random.Random(inputs.identity.peer_id)
        run_blocks = RunBlocks(manifest, inputs.store, self._blocks, transport)
        run_blocks.pin()
        trainer = inputs.runtime.make_trainer(manifest, settings, str(state_dir.optimizer_path))
        committed = self._build_committed(trainer)
        rounds = KnownRounds(committed.chain)
        choice = self._build_choice(committed, rounds)
        work = Work(
            state_dir.root / "work",
            trainer.pending,
            committed.sync_sets.whole.plan,
            manifest.stale_rounds,
            self._first.metrics,
            clock=trio.current_time,
            life=lambda: incarnation.number,
        )
        membership = Membership(inputs.identity.peer_id)
        self._keep_places(membership)
        admission = Admission(
            manifest, transport, membership, committed.chain, self._first.offences,
            self._entrance, committed.ring_rules,
        )  # fmt: skip
        swarm = self._build_swarm(membership, admission, incarnation, randomness)
        records = ChainRecords(
            transport,
            committed,
            run_in_thread=run_in_thread,
            open_commit=admission.open_commit,
            on_offence=swarm.offence,
            uploads=self._blocks.uploads,
        )
        chain_sync = ChainSync(manifest, records, self._blocks, committed, run_in_thread)
        rollbacks = self._read_rollbacks()
        keeper = self._build_checkpoints(committed, choice, rollbacks, records, swarm, admission)
        known = self._first.known_peers
        discovery = Discovery(
            transport, known, settings.bootstrap, membership, self._first.metrics, randomness,
            inputs.runtime.awake, self._entrance, swarm.gossip.other_runs.__contains__,
        )  # fmt: skip
        known_peers = KnownPeersFile(known, transport, membership, state_dir.health, run_in_thread)
        return Core(
            trainer, committed, work, swarm, chain_sync, discovery, known_peers, run_blocks,
            rounds, choice, rollbacks, self._read_extension(committed), keeper,
            AddedData(
                manifest, MoreDataFile(state_dir.root, manifest), inputs.store, self._blocks,
                transport.peers, state_dir.health,
            ),
        )  # fmt: skip

    def _build_committed(self, trainer: Trainer) -> CommittedState:
        inputs = self._inputs
        manifest, state_dir = inputs.manifest, inputs.state_dir
        chain = ChainStore(
            state_dir.chain_path, manifest.run_id, Digest(manifest.genesis_digest),
            health=state_dir.health, pinned_head=self._first.pinned_head,
        )  # fmt: skip
        return CommittedState(
            manifest,
            trainer.base,
            inputs.store,
            chain,
            state_dir,
            clock=inputs.runtime.local_seconds,
        )

    def _build_choice(self, committed: CommittedState, rounds: KnownRounds) -> HeadChoice:
        """Builds the choice among heads. By its stakes peers are members here from now on."""
        manifest, roll = self._inputs.manifest, self._entrance.roll
        choice = HeadChoice(
            rounds, PeerId(manifest.founder), None if roll is None else roll.branch_of
        )
        stakes = SettledStakes(committed.chain, choice, lambda: committed.entry.head)
        self._entrance.count_at(stakes)
        self._blocks.uploads.is_member = lambda peer: (
            manifest.admission == "allow" or peer in choice.stakes_at(committed.entry.head)
        )
        return choice

    def _keep_places(self, membership: Membership) -> None:
        """Tells the transport which peers keep their places when it is full."""
        entrance, uploads = self._entrance, self._blocks.uploads
        # `uploads` asks only about admitted peers, and takes all of a run with a list for members.
        self._inputs.transport.keep_places_of(
            membership.is_known,
            has_standing=lambda peer: entrance.admits(peer) and uploads.is_member(peer),
            is_expected=lambda peer: (
                entrance.admits(peer) and (entrance.roll is not None or uploads.is_member(peer))
            ),
        )

    def _build_swarm(
        self,
        membership: Membership,
        admission: Admission,
        incarnation: Incarnation,
        randomness: random.Random,
    ) -> Swarm:
        inputs, settings, uploads = self._inputs, self._inputs.settings, self._blocks.uploads
        swarm = Swarm(
            inputs.transport, inputs.identity, membership, admission, incarnation, randomness,
            inputs.runtime.awake,
        )  # fmt: skip
        swarm.gossip.statement_store.has_standing = lambda author: (
            author == inputs.identity.peer_id or uploads.is_member(PeerId(author))
        )
        if settings.relay != "off":
            swarm.relay(
                rate_limit_of(settings.relay_limit), introduces=settings.relay == "introduce"
            )
        return swarm

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
            self._blocks.uploads,
        )  # fmt: skip
        adoption = ChainAdoption(
            committed, records, checkpoints, admission.open_commit, choice,
            inputs.runtime.run_in_thread,
        )  # fmt: skip
        adoption.rolled_back = lambda: [each.round for each in rollbacks]
        records.adopt = adoption.adopt
        return CheckpointKeeper(
            inputs.manifest, inputs.identity, inputs.transport, committed, choice, rollbacks,
            checkpoints, swarm.offence,
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
