"""Builds a node from its parts and runs them in one nursery.

    transport --- gossip, membership (swarm) --- participant (the loop) --- trainer process
        |                                            |
        +--- blocks, chain, ring, run protocols      +--- committed state, work, data feed

If the trainer does not stay up, the node follows the run, serves blocks and says `failed`.

The participant can be built only when the run's data index is here, and other parts run before
that. So a part that reports to the participant is given it at the start of its work: see
`Swarm.start`, `ChainSync.replayed` and `Trainer.run`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import structlog
import trio

from gossamer.node.app.core import Core, FirstParts
from gossamer.node.app.data_parts import build_feed
from gossamer.node.app.owner.owner_limits import OwnerLimits
from gossamer.node.app.owner.pause_watch import PauseWatch, pause_rules
from gossamer.node.app.owner.state_place import StatePlace
from gossamer.node.app.reporting.reporting import Reporter
from gossamer.node.app.runtime import NodeInputs
from gossamer.node.app.taking_part import TakingPart
from gossamer.node.base.pausing import Hold, LeavingError
from gossamer.node.peers.blocks.first_copies import FirstCopies
from gossamer.node.peers.members.run_exchange import serve_manifest
from gossamer.node.rounds.participant import Participant
from gossamer.node.runs.founding.own_text import OwnText
from gossamer.node.storage.incarnation import Incarnation
from gossamer.node.training.feed import Feed
from gossamer.protocol.accounting.run_data import RunData
from gossamer.protocol.manifest import SignedManifest

log = structlog.get_logger("node")


class Node:
    """One life of a node in one run. `run` builds its parts and runs them."""

    def __init__(self, inputs: NodeInputs, signed: SignedManifest, limits: OwnerLimits) -> None:
        """
        Args:
            inputs: the settings' `bootstrap` holds every address to try besides those of known
                peers. The state directory is locked by the caller.
            signed: the run's manifest, which other peers get.
            limits: the owner's limits, which the transport has, too.

        Raises:
            NotAdmittedError: the run does not admit this node.
        """
        self.inputs = inputs
        self.first = first = FirstParts(inputs, limits)
        self._leaving = trio.Event()
        runtime = inputs.runtime
        self._pause_watch = PauseWatch(
            pause_rules(inputs.settings, runtime.zone),
            runtime.use,
            runtime.unix_seconds,
            runtime.read_in_thread,
        )
        self._pause_watch.place_problem = StatePlace(inputs.state_dir, inputs.store).problem
        first.limit_parts.join(self._pause_watch, self._speed_of_rounds)
        self.participant: Participant | None = None
        """The participant of the run; None until the run's data index is here."""
        self.reporter: Reporter | None = None
        """The part that tells the node's status; None until there is a participant."""
        serve_manifest(inputs.transport, signed, first.blocks.uploads)

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

    @property
    def disk_problem(self) -> str:
        """The reason why the disk takes nothing now; empty if it takes everything."""
        return self.inputs.state_dir.health.problem or ""

    async def set_limits(self, changes: Mapping[str, str]) -> str:
        """Changes the owner's limits, also for later lives. See `OwnerLimits.change`."""
        return await self.first.limits.change(changes)

    def hold_off(self, holds: Sequence[Hold]) -> None:
        """Sets what keeps the node from training besides orders. That is known before there is a
        participant: weights of gigabytes are fetched first, and a metered line is spared them,
        too."""
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
        incarnation = await run_in_thread(
            lambda: Incarnation(state_dir, lambda: nanoseconds, runtime.random_bytes)
        )
        await hardware.measure()
        core = Core(self.inputs, self.first, incarnation)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(incarnation.run, run_in_thread)
            nursery.start_soon(hardware.run)
            nursery.start_soon(self.first.entrance.run, run_in_thread)
            nursery.start_soon(core.discovery.run)
            nursery.start_soon(core.known_peers.run)
            self.hold_off(await self._pause_watch.look())
            nursery.start_soon(self._pause_watch.run, self.hold_off)
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
            run_data = RunData.of(self.inputs.manifest, await core.run_blocks.fetch_index())
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
        if inputs.identity.peer_id == inputs.manifest.founder:
            first_copies.note_added()
        return first_copies

    async def _cancel_when_leaving(self, scope: trio.CancelScope) -> None:
        await self._leaving.wait()
        scope.cancel()
