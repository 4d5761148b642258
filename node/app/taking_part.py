"""The parts of a node that need the run's data index, and their tasks: the node takes part.

`assembly` builds them when the index is here, and runs them until the participant has left.
"""

from __future__ import annotations

import structlog
import trio

from gossamer.node.app.core import Core, FirstParts
from gossamer.node.app.data_parts import build_audit_data, build_samples
from gossamer.node.app.http.http import Controls, build_app, serve_http
from gossamer.node.app.reporting.credit_view import CreditView, keep_names
from gossamer.node.app.reporting.gauges import Gauges
from gossamer.node.app.reporting.notices import Notices
from gossamer.node.app.reporting.reporting import Reporter, say_hello
from gossamer.node.app.runtime import NodeInputs
from gossamer.node.app.trainer_events import TrainerEvents
from gossamer.node.base.durations import parse_serve_after
from gossamer.node.network.transport import Stream
from gossamer.node.peers.blocks.first_copies import FirstCopies
from gossamer.node.peers.blocks.replication import keep_copies
from gossamer.node.rounds.opening import NodeContext
from gossamer.node.rounds.participant import Participant
from gossamer.node.rounds.ring_chunks import serve_ring
from gossamer.node.runs.founding.cutting import CorpusCutter
from gossamer.node.runs.results.credit import read_credits
from gossamer.node.storage.daemon_files import DaemonFiles
from gossamer.node.storage.owner_files import LossFile, MemberName, MemberNames, NamesFile
from gossamer.node.training.feed import Feed
from gossamer.protocol.accounting.run_data import RunData
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.wire.ring_messages import RING_PROTOCOL
from gossamer.protocol.wire.statements import Announce

log = structlog.get_logger("node")


class TakingPart:
    """The participant of a node, and what reports on it."""

    def __init__(
        self,
        inputs: NodeInputs,
        first: FirstParts,
        core: Core,
        run_data: RunData,
        feed: Feed,
        first_copies: FirstCopies,
    ) -> None:
        """`first_copies`: holds the copies of shards that nobody else has."""
        self._inputs = inputs
        self._first = first
        self._core = core
        self._run_data = run_data
        self._feed = feed
        self._context = self._build_context()
        self.participant = participant = self._build_participant()
        self._cutter = CorpusCutter(
            inputs.manifest, inputs.identity, inputs.state_dir, inputs.store, run_data,
            core.added_data, first_copies, inputs.runtime.run_in_thread,
            lambda: participant.is_held,
        )  # fmt: skip
        self.reporter = Reporter(
            inputs, participant, first.hardware.capacity, first.limits, first.limit_parts.disk,
            self._cutter, self._put_out,
        )  # fmt: skip
        names = NamesFile(inputs.state_dir.names_path, inputs.manifest.run_id)
        self._names = MemberNames(names, inputs.state_dir.health, inputs.runtime.run_in_thread)

    def _build_context(self) -> NodeContext:
        inputs, first, core = self._inputs, self._first, self._core
        state_dir, run_in_thread = inputs.state_dir, inputs.runtime.run_in_thread
        return NodeContext(
            inputs.manifest, inputs.identity, inputs.transport, core.committed, core.chain_sync,
            core.trainer, self._feed, core.swarm, core.rounds, core.choice, core.rollbacks,
            core.extensions, core.added_data, core.work, first.metrics, run_in_thread,
            first.speed, state_dir.health, inputs.runtime.awake,
            LossFile(state_dir.losses_path, inputs.manifest.run_id),
            build_samples(inputs, core.trainer), core.run_blocks.heldout_paths,
            first.pinned_head, build_audit_data(inputs, core, first.blocks, self._run_data),
            first.limits.rates,
        )  # fmt: skip

    def _build_participant(self) -> Participant:
        settings = self._inputs.settings
        known = self._inputs.state_dir.known_peers().newest_first()
        return Participant(
            self._context,
            has_bootstrap=bool(settings.bootstrap or known),
            wait_for_peers=settings.wait_for_peers,
            serve_seconds=parse_serve_after(settings.serve_after),
            orders=self._first.orders,
        )

    def _put_out(self) -> str | None:
        return self._first.entrance.problem

    async def run(self, nursery: trio.Nursery, controls: Controls) -> None:
        """Takes part until the participant has left.

        Args:
            nursery: gets the tasks. They end when it is cancelled.
            controls: takes the orders that come over HTTP.
        """
        inputs, core, participant = self._inputs, self._core, self.participant
        core.chain_sync.replayed = participant.replayed
        inputs.transport.handle(RING_PROTOCOL, self._serve_ring)
        core.swarm.start(participant.rounds, self._standing)
        if inputs.runtime.serves_http:
            await self._start_http(nursery, controls)
        say_hello(inputs.manifest, inputs.transport.addresses())
        nursery.start_soon(self._first.pause_orders.run, participant)
        nursery.start_soon(core.swarm.run)
        self._start_orders_to_all(nursery)
        self._start_reports(nursery)
        self._first.limit_parts.start(nursery, core.trainer, self._first.metrics)
        self._start_data(nursery)
        await self._participate()

    def _start_orders_to_all(self, nursery: trio.Nursery) -> None:
        """Starts what spreads and obeys the signed statements of founder and keepers."""
        core, participant = self._core, self.participant
        gossip, run_in_thread = core.swarm.gossip, self._inputs.runtime.run_in_thread
        nursery.start_soon(core.rollbacks.run, gossip, participant, run_in_thread)
        nursery.start_soon(core.extensions.run, gossip, participant.notify, run_in_thread)
        nursery.start_soon(core.added_data.run, gossip, self._data_has_grown, run_in_thread)
        nursery.start_soon(core.checkpoint_keeper.run, run_in_thread)

    def _start_reports(self, nursery: trio.Nursery) -> None:
        """Starts what tells people, files and other programs of this node."""
        inputs, first, settings = self._inputs, self._first, self._inputs.settings
        gauges = Gauges(
            self.participant, inputs.state_dir, inputs.store, first.blocks,
            first.limit_parts.disk, self.reporter,
        )  # fmt: skip
        nursery.start_soon(gauges.run)
        own_name = MemberName(settings.name, settings.team)
        nursery.start_soon(keep_names, self._names, self._context, own_name)
        notices = Notices(settings.notices, self.participant, inputs.state_dir, self._put_out)
        nursery.start_soon(notices.run)
        first.run_logs.follow(self.participant)
        nursery.start_soon(first.run_logs.run)

    def _start_data(self, nursery: trio.Nursery) -> None:
        """Starts what cuts, fetches and copies the data of the run."""
        core, blocks = self._core, self._first.blocks
        nursery.start_soon(self._cutter.run)
        nursery.start_soon(self._feed.run, core.trainer.queue)
        nursery.start_soon(core.run_blocks.fetch_heldout)
        nursery.start_soon(
            keep_copies, self._run_data, self._inputs.store, blocks, core.swarm, self._context.me,
            blocks.uploads.is_member,
        )  # fmt: skip

    def _data_has_grown(self) -> None:
        self._feed.data_has_grown()
        self.participant.notify()

    async def _participate(self) -> None:
        participant, trainer, first = self.participant, self._core.trainer, self._first
        log_steps = self._inputs.settings.log_steps
        events = TrainerEvents(
            participant, first.hardware, first.metrics, log_steps, first.run_logs
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

    async def _start_http(self, nursery: trio.Nursery, controls: Controls) -> None:
        # The node is connected by now: its peers do not wait for a busy disk.
        settings, state_dir = self._inputs.settings, self._inputs.state_dir
        run_in_thread, files = self._inputs.runtime.run_in_thread, DaemonFiles(state_dir)
        app = build_app(
            self.reporter.status,
            self._first.metrics.registry,
            controls,
            await run_in_thread(files.new_token),
            settings.api_hosts,
            CreditView(lambda: read_credits(state_dir), lambda: self._names.kept),
            lambda: self._context.samples.kept,
        )
        api = await nursery.start(serve_http, settings.api, app)
        await run_in_thread(lambda: files.write_api(api))
        log.info(f"status page at http://{api}/", fields={"event": "status page", "address": api})

    def _standing(self) -> Announce:
        """Returns what this node says of itself, see `Announcer.start`."""
        context, settings = self._context, self._inputs.settings
        entry = context.committed.entry
        return Announce(
            incarnation=0,
            sequence=0,
            phase=self.participant.progress.phase,
            round=entry.round,
            head=entry.head,
            tokens_total=entry.tokens_total,
            checkpoint_round=context.committed.checkpoint_round,
            claims=context.feed.claims,
            addresses=(),
            capacity=self._first.hardware.capacity(),
            name=settings.name,
            team=settings.team,
        )

    async def _serve_ring(self, stream: Stream) -> None:
        rounds = self.participant.rounds
        try:
            await serve_ring(stream, rounds.greeted)
        except RemoteProtocolError as error:
            self._context.swarm.offence(stream.peer_id, error)
            rounds.disconnected(stream.peer_id)
            await stream.reset()
