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

from collections.abc import Mapping, Sequence

import structlog
import trio

from gossamer.node.app.core import Core, CoreBuilder, FirstParts
from gossamer.node.app.data_parts import build_feed
from gossamer.node.app.limit_parts import LimitParts
from gossamer.node.app.owner_limits import OwnerLimits
from gossamer.node.app.pause_orders import PauseOrders
from gossamer.node.app.pause_watch import PauseWatch, pause_rules
from gossamer.node.app.reporting import Reporter
from gossamer.node.app.run_logs import RunLogs
from gossamer.node.app.runtime import NodeInputs, Runtime
from gossamer.node.app.taking_part import TakingPart
from gossamer.node.base.orders import Orders
from gossamer.node.base.pausing import Hold, LeavingError
from gossamer.node.base.printable import printable
from gossamer.node.base.rate_limit import rate_limit_of
from gossamer.node.base.settings import Settings
from gossamer.node.machine.hardware import Hardware
from gossamer.node.machine.speed import SpeedMeter
from gossamer.node.network.identity import Identity
from gossamer.node.network.signed_manifests import open_signed_manifest
from gossamer.node.network.transport import Transport
from gossamer.node.peers.block_exchange import BlockService
from gossamer.node.peers.entrance import Entrance
from gossamer.node.peers.first_copies import FirstCopies
from gossamer.node.peers.offences import Offences
from gossamer.node.peers.run_exchange import serve_manifest
from gossamer.node.peers.uploads import STRANGERS_UPLOAD_SHARE, Uploads
from gossamer.node.rounds.participant import Participant
from gossamer.node.runs.own_text import OwnText
from gossamer.node.runs.step_estimate import operations_of_token
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.storage.incarnation import Incarnation
from gossamer.node.storage.roll_file import read_pinned_head
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.telemetry.gpus import Gpus
from gossamer.node.telemetry.metrics import Metrics
from gossamer.node.training.feed import Feed
from gossamer.node.training.own_feed import OwnFeed
from gossamer.protocol.accounting.run_data import RunData
from gossamer.protocol.manifest import Manifest, SignedManifest

log = structlog.get_logger("node")


class Node:
    """One life of a node in one run. `run` builds its parts and runs them.

    Its constructor has eight parameters: these are the things that a daemon opens before it.
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
        self.manifest: Manifest = open_signed_manifest(signed)
        self.run_id = self.manifest.run_id
        self.inputs = NodeInputs(
            self.manifest, settings, state_dir, identity, store, transport, runtime
        )
        if limits is None:
            limits = OwnerLimits(settings, state_dir, runtime.read_in_thread, {})
        gpus = Gpus()
        self.metrics = metrics = Metrics(gpus)
        metrics.set_run(f"{printable(self.manifest.name)} {self.run_id.hex()[:8]}")
        operations = operations_of_token(self.manifest.model, twice=False)
        metrics.operations_per_token.set(operations)
        speed = SpeedMeter(metrics, operations)
        offences = Offences(transport, metrics)
        self.entrance = Entrance(
            self.manifest, identity, transport, state_dir, offences, runtime.unix_seconds
        )
        self.known_peers = state_dir.known_peers()
        self.first = first = FirstParts(
            metrics=metrics,
            speed=speed,
            hardware=Hardware(settings.device, gpus, speed, runtime.run_in_thread),
            offences=offences,
            entrance=self.entrance,
            blocks=BlockService(
                transport, store, offences.note, uploads=_uploads(settings, limits)
            ),
            known_peers=self.known_peers,
            pinned_head=read_pinned_head(state_dir.root),
            limits=limits,
            limit_parts=LimitParts(limits, self.manifest, gpus, store, runtime),
            orders=Orders(),
            pause_orders=PauseOrders(state_dir, runtime.run_in_thread, runtime.unix_seconds),
            run_logs=RunLogs(self.inputs, speed),
        )
        self._leaving = trio.Event()
        self._pause_watch = PauseWatch(
            pause_rules(settings, runtime.zone),
            runtime.use,
            runtime.unix_seconds,
            runtime.read_in_thread,
        )
        first.limit_parts.join(self._pause_watch, self._speed_of_rounds)
        self.participant: Participant | None = None
        """The participant of the run; None until the run's data index is here."""
        self.reporter: Reporter | None = None
        """The part that tells the node's status; None until there is a participant."""
        serve_manifest(transport, signed, first.blocks.uploads)

    def _speed_of_rounds(self) -> float:
        """Returns the tokens per second that this node trains; 0 where that is not known, and where
        the run has no further round."""
        if self.participant is not None and self.participant.is_finished:
            return 0.0
        return self.first.hardware.capacity().tokens_per_second

    # Orders

    def pause(self, seconds: float | None = None, *, after_round: bool = False) -> None:
        """Stops training and frees the device, also in later lives.

        Args:
            seconds: when the pause ends by itself; None: when the owner resumes.
            after_round: whether the present round is finished first.

        Raises:
            LeavingError: the order comes too late.
        """
        self._require_staying()
        self.first.pause_orders.pause(seconds, after_round=after_round)

    def resume(self) -> None:
        """Ends the owner's pause, or goes on after a failure of the trainer. LeavingError."""
        self._require_staying()
        self.first.pause_orders.resume()

    def _require_staying(self) -> None:
        if self._leaving.is_set() or self.first.orders.leave:
            raise LeavingError

    async def order_kept(self) -> str:
        """See `PauseOrders.kept`."""
        return await self.first.pause_orders.kept()

    async def set_limits(self, changes: Mapping[str, str]) -> str:
        """Changes the owner's limits, also for later lives. See `OwnerLimits.change`."""
        return await self.first.limits.change(changes)

    def hold_off(self, holds: Sequence[Hold]) -> None:
        """See `Holdable`. The watch runs before there is a participant: weights of gigabytes are
        fetched first, and a metered line is spared them, too."""
        if self.participant is None:
            self.first.orders.others = tuple(holds)
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
        runtime, state_dir = self.inputs.runtime, self.inputs.state_dir
        run_in_thread, hardware = runtime.run_in_thread, self.first.hardware
        nanoseconds = int(1e9 * runtime.unix_seconds())
        incarnation = await run_in_thread(lambda: Incarnation(state_dir, lambda: nanoseconds))
        await hardware.measure()
        core = CoreBuilder(self.inputs, self.first).build(incarnation)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(incarnation.run, run_in_thread)
            nursery.start_soon(hardware.run)
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
                self.first.orders.user_pause = self.first.pause_orders.read()
                part = TakingPart(self.inputs, self.first, core, run_data, feed, first_copies)
                self.participant, self.reporter = part.participant, part.reporter
                if self._leaving.is_set():
                    part.participant.leave()
                await part.run(nursery, self)
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
        blocks, orders = self.first.blocks, self.first.orders
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_when_leaving, nursery.cancel_scope)
            run_data = RunData.of(self.manifest, await core.run_blocks.fetch_index())
            core.added_data.load(run_data)
            first_copies = self._build_first_copies(core, run_data)
            # The index is small, and without it a metered node cannot show that it is paused.
            blocks.spares_line = core.swarm.spares_line = lambda: orders.spares_line
            await core.run_blocks.fetch_frozen()
            feed = await build_feed(self.inputs, core, blocks, run_data, own_text)
            found = run_data, feed, first_copies
            nursery.cancel_scope.cancel()
        return found

    def _build_first_copies(self, core: Core, run_data: RunData) -> FirstCopies:
        inputs, blocks, swarm = self.inputs, self.first.blocks, core.swarm
        is_member = blocks.uploads.is_member
        first_copies = FirstCopies(
            run_data, inputs.store, blocks.is_at, lambda: [*filter(is_member, swarm.living())]
        )
        if inputs.identity.peer_id == self.manifest.founder:
            first_copies.note_added()
        return first_copies

    async def _cancel_when_leaving(self, scope: trio.CancelScope) -> None:
        await self._leaving.wait()
        scope.cancel()


def _uploads(settings: Settings, limits: OwnerLimits) -> Uploads:
    """Returns the budget of blocks for peers outside of this node's rounds."""
    up = limits.rates.up
    return Uploads(
        rate_limit_of(settings.serve_limit, lambda: STRANGERS_UPLOAD_SHARE * up.bytes_per_second)
    )
