"""Builds a node from its parts and runs them in one nursery.

    transport --- gossip, membership (swarm) --- participant (the loop) --- trainer process
        |                                            |
        +--- blocks, chain, ring, run protocols      +--- committed state, work, data feed

If the trainer does not stay up, the node follows the run, serves blocks and says `failed`.

The participant can be built only when the run's data index is here, and other parts run before
that. So a part that reports to the participant is given it at the start of its work:
`Swarm.start`, `ChainSync.report_to` and `Trainer.run` each name the interface that they call.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import structlog
import trio

from gossamer.node.app.core import Core, CoreBuilder, NodeInputs
from gossamer.node.app.credit_view import CreditView
from gossamer.node.app.data_parts import build_audit_data, build_feed, build_samples
from gossamer.node.app.http import serve_http
from gossamer.node.app.limit_parts import LimitParts
from gossamer.node.app.notices import Notices
from gossamer.node.app.owner_limits import OwnerLimits
from gossamer.node.app.pause_orders import PauseOrders
from gossamer.node.app.pause_watch import PauseWatch, pause_rules
from gossamer.node.app.reporting import Reporter, say_hello
from gossamer.node.app.run_logs import RunLogs
from gossamer.node.app.runtime import Runtime
from gossamer.node.app.trainer_events import TrainerEvents
from gossamer.node.base.durations import parse_serve_after
from gossamer.node.base.orders import Orders
from gossamer.node.base.pausing import Hold
from gossamer.node.base.printable import printable
from gossamer.node.base.rate_limit import rate_limit_of
from gossamer.node.base.settings import Settings
from gossamer.node.machine.hardware import Hardware
from gossamer.node.machine.speed import SpeedMeter
from gossamer.node.machine.trainer import Trainer
from gossamer.node.network.identity import Identity
from gossamer.node.network.signed_manifests import open_signed_manifest
from gossamer.node.network.transport import Stream, Transport
from gossamer.node.peers.announcer import Standing
from gossamer.node.peers.block_exchange import BlockService
from gossamer.node.peers.entrance import Entrance
from gossamer.node.peers.first_copies import FirstCopies
from gossamer.node.peers.offences import Offences
from gossamer.node.peers.replication import keep_copies
from gossamer.node.peers.run_exchange import serve_manifest
from gossamer.node.peers.uploads import STRANGERS_UPLOAD_SHARE, Uploads
from gossamer.node.rounds.opening import NodeContext
from gossamer.node.rounds.participant import Participant
from gossamer.node.rounds.ring_service import serve_ring
from gossamer.node.runs.credit import read_credits
from gossamer.node.runs.cutting import CorpusCutter
from gossamer.node.runs.own_text import OwnText
from gossamer.node.runs.step_estimate import operations_of_token
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.storage.daemon_files import DaemonFiles
from gossamer.node.storage.incarnation import Incarnation
from gossamer.node.storage.owner_files import LossFile, MemberName
from gossamer.node.storage.roll_file import read_pinned_head
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.telemetry.gpus import Gpus
from gossamer.node.telemetry.metrics import Metrics
from gossamer.node.training.audit_data import AuditData
from gossamer.node.training.feed import Feed
from gossamer.node.training.own_feed import OwnFeed
from gossamer.protocol.accounting.run_data import RunData
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.manifest import Manifest, SignedManifest
from gossamer.protocol.wire.ring_messages import RING_PROTOCOL

log = structlog.get_logger("node")


class Node:
    """One life of a node in one run. `run` builds its parts and runs them.

    It has more than 12 attributes because all the other parts are built from them here.
    """

    def __init__(
        self,
        settings: Settings,
        state_dir: StateDir,
        identity: Identity,
        store: BlockStore,
        transport: Transport,
        signed: SignedManifest,
        runtime: Runtime,
        limits: OwnerLimits | None = None,
    ) -> None:
        """
        Args:
            limits: the owner's limits, which the transport has, too. None: as the settings say.
            settings: `bootstrap` holds every address to try besides those of known peers.
            state_dir: locked by the caller.
            signed: the run's manifest, with a signature that is checked here again.

        Raises:
            RemoteProtocolError: the manifest is not valid or not signed by its founder.
            NotAdmittedError: the run does not admit this node.
        """
        self._runtime = runtime
        self._settings = settings
        self._state_dir = state_dir
        self._identity = identity
        self._store = store
        self._transport = transport
        self.manifest: Manifest = open_signed_manifest(signed)
        self.run_id = self.manifest.run_id
        self._inputs = NodeInputs(
            self.manifest, settings, state_dir, identity, store, transport, runtime
        )
        if limits is None:
            limits = OwnerLimits(settings, state_dir, runtime.read_in_thread, {})
        self._limits = limits
        gpus = Gpus()
        self.metrics = Metrics(gpus)
        self.metrics.set_run(f"{printable(self.manifest.name)} {self.run_id.hex()[:8]}")
        operations = operations_of_token(self.manifest.model, twice=False)
        self.metrics.operations_per_token.set(operations)
        self._speed = SpeedMeter(self.metrics, operations)
        self._hardware = Hardware(settings.device, gpus, self._speed, runtime.run_in_thread)
        self._run_logs = RunLogs(self._inputs, self._speed)
        self._leaving = trio.Event()
        self._orders = Orders()
        self._pause_orders = PauseOrders(state_dir, runtime.run_in_thread, runtime.unix_seconds)
        self._pause_watch = PauseWatch(
            pause_rules(settings, runtime.zone),
            runtime.use,
            runtime.unix_seconds,
            runtime.read_in_thread,
        )
        self.known_peers = state_dir.known_peers()
        self.pinned_head = read_pinned_head(state_dir.root)
        """The head that the link named by which this node joined, if it named one."""
        self.participant: Participant | None = None
        """The participant of the run; None until the run's data index is here."""
        self.reporter: Reporter | None = None
        """What tells its status; None until there is a participant."""
        self._offences = Offences(transport, self.metrics)
        self.entrance = Entrance(
            self.manifest, identity, transport, state_dir, self._offences, runtime.unix_seconds
        )
        self._limit_parts = LimitParts(limits, self.manifest, gpus, store, runtime)
        self._limit_parts.join(
            self._pause_watch, lambda: self._hardware.capacity().tokens_per_second
        )
        up = limits.rates.up
        uploads = Uploads(
            rate_limit_of(
                settings.serve_limit, lambda: STRANGERS_UPLOAD_SHARE * up.bytes_per_second
            )
        )
        self._blocks = BlockService(transport, store, self._offences.note, uploads=uploads)
        serve_manifest(transport, signed)

    # Orders

    def pause(self, seconds: float | None = None, *, after_round: bool = False) -> None:
        """Stops training and frees the device, also in later lives.

        Args:
            seconds: when the pause ends by itself; None: when the owner resumes.
            after_round: whether the present round is finished first.
        """
        self._pause_orders.pause(seconds, after_round=after_round)

    def resume(self) -> None:
        """Ends the owner's pause, or goes on after a failure of the trainer."""
        self._pause_orders.resume()

    async def order_kept(self) -> str:
        """See `PauseOrders.kept`."""
        return await self._pause_orders.kept()

    async def set_limits(self, changes: Mapping[str, str]) -> str:
        """Changes the owner's limits, also for later lives. See `OwnerLimits.change`."""
        return await self._limits.change(changes)

    def hold_off(self, holds: Sequence[Hold]) -> None:
        """See `Holdable`. The watch runs before there is a participant: weights of gigabytes are
        fetched first, and a metered line is spared them, too."""
        if self.participant is None:
            self._orders.others = tuple(holds)
        else:
            self.participant.hold_off(holds)

    def leave(self) -> None:
        """Makes `run` return after an orderly end, also before the participant exists."""
        self._leaving.set()
        if self.participant is not None:
            self.participant.leave()

    def finish(self) -> None:
        """Makes `run` return when the present round ends; at once if there is none."""
        if self.participant is None:
            self.leave()
        else:
            self.participant.finish()

    # Life

    async def run(self, own_text: OwnText | None = None) -> None:
        """Runs until the participant has left.

        Args:
            own_text: the text of this node, in a run where every peer trains on its own; None: what
                it had.

        Raises:
            CorpusError, FolderError, DiskError, PreparingError, StateDirError: there is no such
                text, or it cannot be used.
        """
        run_in_thread = self._runtime.run_in_thread
        nanoseconds = int(1e9 * self._runtime.unix_seconds())
        incarnation = await run_in_thread(lambda: Incarnation(self._state_dir, lambda: nanoseconds))
        await self._hardware.measure()
        core = CoreBuilder(
            self._inputs, self.metrics, self._offences, self.entrance, self._blocks,
            self.known_peers, self.pinned_head,
        ).build(incarnation)  # fmt: skip
        async with trio.open_nursery() as nursery:
            nursery.start_soon(incarnation.run, run_in_thread)
            nursery.start_soon(self._hardware.run)
            nursery.start_soon(self.entrance.run, run_in_thread)
            nursery.start_soon(core.discovery.run)
            nursery.start_soon(core.known_peers.run)
            self.hold_off(await self._pause_watch.look())
            nursery.start_soon(self._pause_watch.run, self)
            found = await self._get_data(core, own_text)
            if found is None:
                log.info("left before this node had the data to train on")
            else:
                run_data, feed, first_copies = found
                nursery.start_soon(first_copies.run)
                await self._take_part(core, run_data, feed, first_copies, nursery)
                if isinstance(feed, OwnFeed):
                    await feed.save()
                await core.known_peers.save()
            nursery.cancel_scope.cancel()

    async def _get_data(
        self, core: Core, own_text: OwnText | None
    ) -> tuple[RunData, Feed, FirstCopies] | None:
        """Returns the run's data, what feeds the trainer, and what holds copies that nobody else
        has; None if the node was asked to leave before they were here."""
        found: tuple[RunData, Feed, FirstCopies] | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_when_leaving, nursery.cancel_scope)
            run_data = RunData.of(self.manifest, await core.run_blocks.fetch_index())
            core.added_data.load(run_data)
            first_copies = self._build_first_copies(core, run_data)
            # The index is small, and without it a metered node cannot show that it is paused.
            orders = self._orders
            self._blocks.spares_line = core.swarm.spares_line = lambda: orders.spares_line
            await core.run_blocks.fetch_frozen()
            feed = await build_feed(self._inputs, core, self._blocks, run_data, own_text)
            found = run_data, feed, first_copies
            nursery.cancel_scope.cancel()
        return found

    def _build_first_copies(self, core: Core, run_data: RunData) -> FirstCopies:
        is_member, swarm = self._blocks.uploads.is_member, core.swarm
        first_copies = FirstCopies(
            run_data, self._store, self._blocks.is_at, lambda: [*filter(is_member, swarm.living())]
        )
        if self._identity.peer_id == self.manifest.founder:
            first_copies.note_added()
        return first_copies

    async def _cancel_when_leaving(self, scope: trio.CancelScope) -> None:
        await self._leaving.wait()
        scope.cancel()

    async def _take_part(
        self,
        core: Core,
        run_data: RunData,
        feed: Feed,
        first_copies: FirstCopies,
        nursery: trio.Nursery,
    ) -> None:
        """Runs everything that needs the data index, until the participant has left."""
        swarm, trainer = core.swarm, core.trainer
        self._orders.user_pause = self._pause_orders.read()
        audit_data = build_audit_data(self._inputs, core, self._blocks, run_data)
        self.participant = participant = self._build_participant(core, feed, audit_data)
        if self._leaving.is_set():
            participant.leave()
        core.chain_sync.report_to(participant)
        self._transport.handle(RING_PROTOCOL, self._serve_ring)
        swarm.start(participant.rounds, self._standing)
        cutter = CorpusCutter(
            self.manifest, self._identity, self._state_dir, self._store, run_data,
            core.added_data, first_copies, self._runtime.run_in_thread,
            lambda: participant.is_held,
        )  # fmt: skip
        self.reporter = reporter = Reporter(
            participant, self._store, self._blocks, self._hardware.capacity, self._state_dir,
            self._runtime.zone, self._limits, self._limit_parts.disk,
            MemberName(self._settings.name, self._settings.team),
            run_data, lambda: cutter.status, lambda: self.entrance.problem,
        )  # fmt: skip
        if self._runtime.serves_http:
            await self._start_http(nursery, reporter)
        say_hello(self.manifest, self._transport.addresses())
        nursery.start_soon(self._pause_orders.run, participant)
        nursery.start_soon(swarm.run)
        nursery.start_soon(
            core.rollbacks.run, swarm.gossip, participant, self._runtime.run_in_thread
        )
        nursery.start_soon(
            core.extensions.run, swarm.gossip, participant.notify, self._runtime.run_in_thread
        )
        nursery.start_soon(
            core.added_data.run, swarm.gossip, self._data_has_grown, self._runtime.run_in_thread
        )
        nursery.start_soon(cutter.run)
        nursery.start_soon(core.checkpoint_keeper.run, self._runtime.run_in_thread)
        nursery.start_soon(reporter.run)
        notices = Notices(
            self._settings.notices, participant, self._state_dir, lambda: self.entrance.problem
        )
        nursery.start_soon(notices.run)
        self._run_logs.follow(participant)
        nursery.start_soon(self._run_logs.run)
        self._limit_parts.start(nursery, trainer, self.metrics)
        nursery.start_soon(feed.run, trainer.queue)
        nursery.start_soon(core.run_blocks.fetch_heldout)
        me = self._identity.peer_id
        has_standing = self._blocks.uploads.is_member
        nursery.start_soon(
            keep_copies, run_data, self._store, self._blocks, swarm, me, has_standing
        )
        await self._participate(participant, trainer)

    def _build_participant(
        self, core: Core, feed: Feed, audit_data: AuditData | None
    ) -> Participant:
        context = NodeContext(
            self.manifest, self._identity, self._transport, core.committed, core.chain_sync,
            core.trainer, feed, core.swarm, core.rounds, core.choice, core.rollbacks,
            core.extensions, core.added_data, core.work, self.metrics,
            self._runtime.run_in_thread, self._speed, self._state_dir.health, self._runtime.awake,
            LossFile(self._state_dir.losses_path, self.run_id),
            build_samples(self._inputs, core.trainer), core.run_blocks.heldout_paths,
            self.pinned_head, audit_data, self._limits.rates,
        )  # fmt: skip
        known = self._state_dir.known_peers().newest_first()
        return Participant(
            context,
            has_bootstrap=bool(self._settings.bootstrap or known),
            wait_for_peers=self._settings.wait_for_peers,
            serve_seconds=parse_serve_after(self._settings.serve_after),
            orders=self._orders,
        )

    def _data_has_grown(self) -> None:
        self._node.context.feed.data_has_grown()
        self._node.notify()

    @property
    def _node(self) -> Participant:
        assert self.participant is not None
        return self.participant

    async def _participate(self, participant: Participant, trainer: Trainer) -> None:
        events = TrainerEvents(
            participant, self._hardware, self.metrics, self._settings.log_steps, self._run_logs
        )
        if participant.is_held:
            if participant.holds[0].reason == "user":
                log.warning("paused, as before the restart; `gossamer resume` goes on")
            await trainer.suspend()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trainer.run, events)
            await participant.run()
            await trainer.suspend()
            nursery.cancel_scope.cancel()

    async def _start_http(self, nursery: trio.Nursery, reporter: Reporter) -> None:
        # The node is connected by now: its peers do not wait for a busy disk.
        run_in_thread, files = self._runtime.run_in_thread, DaemonFiles(self._state_dir)
        token = await run_in_thread(files.new_token)
        api = await nursery.start(
            functools.partial(
                serve_http,
                self._settings.api,
                reporter.status,
                self.metrics.registry,
                controls=self,
                token=token,
                hosts=self._settings.api_hosts,
                credit=CreditView(
                    lambda: read_credits(self._state_dir), lambda: reporter.names.kept
                ),
                samples=lambda: self._node.context.samples.kept,
            )
        )
        await run_in_thread(lambda: files.write_api(api))
        log.info(f"status page at http://{api}/", fields={"event": "status page", "address": api})

    def _standing(self) -> Standing:
        context, progress = self._node.context, self._node.progress
        entry = context.committed.entry
        return Standing(
            progress.phase,
            entry.round,
            entry.head,
            entry.tokens_total,
            context.committed.checkpoint_round,
            context.feed.claims,
            self._hardware.capacity(),
            self._settings.name,
            self._settings.team,
        )

    async def _serve_ring(self, stream: Stream) -> None:
        try:
            await serve_ring(stream, self._node.rounds.greeted)
        except RemoteProtocolError as error:
            self._node.context.swarm.offence(stream.peer_id, error)
            self._node.rounds.disconnected(stream.peer_id)
            await stream.reset()
