"""The parts of a node that exist before the run's data index is here, and how they are connected.

`assembly` runs them, and builds the rest.
"""

from __future__ import annotations

import random

import trio

from gossamer.node.app.owner.limit_parts import LimitParts
from gossamer.node.app.owner.owner_limits import OwnerLimits
from gossamer.node.app.owner.pause_orders import PauseOrders
from gossamer.node.app.reporting.run_logs import RunLogs
from gossamer.node.app.runtime import NodeInputs
from gossamer.node.base.orders import Orders
from gossamer.node.base.rate_limit import rate_limit_of
from gossamer.node.base.terminal.printable import printable
from gossamer.node.heads.checkpoint_keeper import CheckpointKeeper
from gossamer.node.heads.extensions import ExtensionFile, Extensions
from gossamer.node.heads.rollbacks import RollbackFiles, Rollbacks
from gossamer.node.machine.hardware import Hardware
from gossamer.node.machine.speed import SpeedMeter
from gossamer.node.peers.admission import Admission
from gossamer.node.peers.blocks.block_exchange import BlockService
from gossamer.node.peers.blocks.run_blocks import RunBlocks
from gossamer.node.peers.blocks.uploads import STRANGERS_UPLOAD_SHARE, Uploads
from gossamer.node.peers.chain.chain_adoption import ChainAdoption
from gossamer.node.peers.chain.chain_checkpoints import ChainCheckpoints
from gossamer.node.peers.chain.chain_records import ChainRecords
from gossamer.node.peers.chain.chain_sync import ChainSync
from gossamer.node.peers.discovery import Discovery
from gossamer.node.peers.known_peers_file import KnownPeersFile
from gossamer.node.peers.members.entrance import Entrance
from gossamer.node.peers.members.settled_stakes import SettledStakes
from gossamer.node.peers.offences import Offences
from gossamer.node.peers.swarm import Swarm
from gossamer.node.runs.planning.step_estimate import operations_of_token
from gossamer.node.storage.admission_files import read_pinned_head
from gossamer.node.storage.chain.chain_store import ChainStore
from gossamer.node.storage.chain.known_rounds import KnownRounds
from gossamer.node.storage.incarnation import Incarnation
from gossamer.node.storage.state.committed import CommittedState
from gossamer.node.storage.work.own_work import Work
from gossamer.node.telemetry.gpus import Gpus
from gossamer.node.telemetry.metrics import Metrics
from gossamer.node.training.more_data import AddedData, MoreDataFile
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.policy.heads.head_choice import HeadChoice
from gossamer.protocol.policy.heads.rollback_signers import RollbackSigners
from gossamer.protocol.policy.membership import Membership
from gossamer.protocol.policy.plausible_work import WorkBounds


class FirstParts:
    """The parts of a node that exist before its life in the run begins.

    It has more than 12 attributes because all the other parts are built from them.
    """

    def __init__(self, inputs: NodeInputs, limits: OwnerLimits) -> None:
        """Raises NotAdmittedError: the run does not admit this node."""
        manifest, settings, state_dir = inputs.manifest, inputs.settings, inputs.state_dir
        transport, runtime = inputs.transport, inputs.runtime
        operations = operations_of_token(manifest.model, twice=False)
        gpus = Gpus()
        self.metrics = Metrics(gpus)
        self.metrics.set_run(f"{printable(manifest.name)} {manifest.run_id.hex()[:8]}")
        self.metrics.operations_per_token.set(operations)
        self.speed = SpeedMeter(self.metrics, operations)
        self.hardware = Hardware(settings.device, gpus, self.speed, runtime.run_in_thread)
        self.offences = Offences(transport, self.metrics)
        self.entrance = Entrance(
            manifest, inputs.identity, transport, state_dir, self.offences, runtime.unix_seconds
        )
        up = limits.rates.up
        # For blocks that peers outside of this node's rounds ask for.
        upload = rate_limit_of(
            settings.serve_limit, lambda: STRANGERS_UPLOAD_SHARE * up.bytes_per_second
        )
        self.blocks = BlockService(
            transport, inputs.store, self.offences.note, uploads=Uploads(upload)
        )
        self.known_peers = state_dir.known_peers()
        """Those of earlier lives."""
        self.pinned_head = read_pinned_head(state_dir.root)
        """The head that the link named by which this node joined, if it named one."""
        self.limits = limits
        self.limit_parts = LimitParts(limits, manifest, gpus, inputs.store, runtime)
        self.orders = Orders()
        self.pause_orders = PauseOrders(state_dir, runtime.run_in_thread, runtime.unix_seconds)
        self.run_logs = RunLogs(inputs, self.speed)


class Core:
    """The parts of one life that exist before the run's data index is here.

    It has more than 12 attributes because the rest of the node is built from them.
    """

    def __init__(self, inputs: NodeInputs, first: FirstParts, incarnation: Incarnation) -> None:
        """Builds the parts, and connects them to each other."""
        self._inputs, self._first = inputs, first
        manifest, settings, state_dir = inputs.manifest, inputs.settings, inputs.state_dir
        transport, run_in_thread = inputs.transport, inputs.runtime.run_in_thread
        randomness = random.Random(inputs.identity.peer_id)
        self.run_blocks = RunBlocks(manifest, inputs.store, first.blocks, transport)
        self.run_blocks.pin()
        self.trainer = inputs.runtime.make_trainer(
            manifest, settings, str(state_dir.optimizer_path)
        )
        self.committed = self._build_committed()
        self.rounds = KnownRounds(self.committed.chain)
        self.choice = self._build_choice()
        self.work = Work(
            state_dir.root / "work",
            self.trainer.pending,
            self.committed.sync_sets.whole.plan,
            manifest.stale_rounds,
            first.metrics,
            tokens_max=WorkBounds(manifest).tokens_max,
            clock=trio.current_time,
            life=lambda: incarnation.number,
        )
        membership = Membership(inputs.identity.peer_id)
        self._keep_places(membership)
        admission = Admission(
            manifest, transport, membership, self.committed.chain, first.offences,
            first.entrance, self.committed.ring_rules,
        )  # fmt: skip
        self.swarm = self._build_swarm(membership, admission, incarnation, randomness)
        records = ChainRecords(
            transport,
            self.committed,
            run_in_thread=run_in_thread,
            open_commit=admission.open_commit,
            on_offence=self.swarm.offence,
            uploads=first.blocks.uploads,
        )
        self.chain_sync = ChainSync(manifest, records, first.blocks, self.committed, run_in_thread)
        self.rollbacks = self._read_rollbacks()
        self.extensions = self._read_extensions()
        self.checkpoint_keeper = self._build_checkpoints(records)
        self.discovery = Discovery(
            transport, first.known_peers, settings.bootstrap, membership, first.metrics,
            randomness, inputs.runtime.awake, first.entrance,
            self.swarm.gossip.other_runs.__contains__,
        )  # fmt: skip
        self.known_peers = KnownPeersFile(
            first.known_peers, transport, membership, state_dir.health, run_in_thread
        )
        self.added_data = AddedData(
            manifest, MoreDataFile(state_dir.root, manifest), inputs.store, first.blocks,
            transport.peers, state_dir.health,
        )  # fmt: skip

    def _build_committed(self) -> CommittedState:
        inputs = self._inputs
        manifest, state_dir = inputs.manifest, inputs.state_dir
        chain = ChainStore(
            state_dir.chain_path, manifest.run_id, Digest(manifest.genesis_digest),
            health=state_dir.health, pinned_head=self._first.pinned_head,
            check_place=state_dir.require_ours,
        )  # fmt: skip
        return CommittedState(
            manifest,
            self.trainer.base,
            inputs.store,
            chain,
            state_dir,
            clock=inputs.runtime.local_seconds,
        )

    def _build_choice(self) -> HeadChoice:
        """Builds the choice among heads. By its stakes peers are members here from now on."""
        manifest, committed = self._inputs.manifest, self.committed
        entrance, blocks = self._first.entrance, self._first.blocks
        choice = HeadChoice(
            self.rounds,
            PeerId(manifest.founder),
            None if entrance.roll is None else entrance.roll.branch_of,
        )
        entrance.count_at(SettledStakes(committed.chain, choice, lambda: committed.entry.head))
        blocks.uploads.is_member = lambda peer: (
            manifest.admission == "allow" or peer in choice.stakes_at(committed.entry.head)
        )
        return choice

    def _keep_places(self, membership: Membership) -> None:
        """Tells the transport which peers keep their places when it is full."""
        entrance, uploads = self._first.entrance, self._first.blocks.uploads
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
        inputs, settings, uploads = self._inputs, self._inputs.settings, self._first.blocks.uploads
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

    def _build_checkpoints(self, records: ChainRecords) -> CheckpointKeeper:
        """Builds what serves, follows and makes signed checkpoints of the chain."""
        inputs, entrance, rollbacks = self._inputs, self._first.entrance, self.rollbacks
        checkpoints = ChainCheckpoints(
            inputs.manifest, inputs.transport, inputs.state_dir.chain_path, inputs.state_dir.health,
            self.choice.branch_of, entrance.require_known, self.swarm.offence,
            self._first.blocks.uploads,
        )  # fmt: skip
        adoption = ChainAdoption(
            self.committed, records, checkpoints, self.choice, inputs.runtime.run_in_thread
        )
        adoption.rolled_back = lambda: [each.round for each in rollbacks]
        records.adopt = adoption.adopt
        return CheckpointKeeper(
            inputs.manifest, inputs.identity, inputs.transport, self.committed, self.choice,
            rollbacks, checkpoints, self.swarm.offence,
        )  # fmt: skip

    def _read_rollbacks(self) -> Rollbacks:
        manifest, state_dir = self._inputs.manifest, self._inputs.state_dir
        signers = RollbackSigners.of(manifest)
        files = RollbackFiles(state_dir.root, manifest.run_id, signers)
        rollbacks = Rollbacks(files, state_dir.health)
        rollbacks.load()
        return rollbacks

    def _read_extensions(self) -> Extensions:
        state_dir = self._inputs.state_dir
        file = ExtensionFile(state_dir.root, self._inputs.manifest)
        extensions = Extensions(file, self.committed.end, state_dir.health)
        extensions.load()
        return extensions
