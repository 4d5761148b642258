"""A node put together: all its parts, and the nursery that they run in.

    transport --- gossip, membership (swarm) --- participant (the loop) --- trainer process
        |                                            |
        +--- blocks, chain, ring, run protocols      +--- committed state, work, data feed

A trainer that does not stay up leaves a node that follows, serves blocks and says `failed`.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import structlog
import trio

from gossamer.node.app.http import Controls, serve_http
from gossamer.node.app.reporting import Reporter
from gossamer.node.base.awake_clock import AwakeClock, Stall
from gossamer.node.base.disk_health import DiskError
from gossamer.node.base.settings import Settings
from gossamer.node.base.threads import RunInThread
from gossamer.node.machine.capacity import measure_capacity, with_trainer_device
from gossamer.node.machine.speed import SpeedMeter
from gossamer.node.machine.trainer_client import Trainer, TrainerClient
from gossamer.node.network.identity import Identity
from gossamer.node.network.transport import Stream, StreamClosed, Transport
from gossamer.node.peers.block_exchange import BlockService, FetchError
from gossamer.node.peers.chain_sync import ChainSync
from gossamer.node.peers.discovery import Discovery
from gossamer.node.peers.offences import Offences
from gossamer.node.peers.replication import keep_copies
from gossamer.node.peers.run_exchange import (
    JoinError,
    open_signed_manifest,
    serve_manifest,
)
from gossamer.node.peers.swarm import Standing, Swarm
from gossamer.node.rounds.context import NodeContext
from gossamer.node.rounds.data_feed import DataFeed
from gossamer.node.rounds.participant import Participant
from gossamer.node.rounds.ring_link import RING_PROTOCOL, serve_ring
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.storage.chain_store import ChainStore
from gossamer.node.storage.committed import CommittedState
from gossamer.node.storage.incarnation import Incarnation
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.storage.work import Work
from gossamer.node.telemetry.gpus import Gpus
from gossamer.node.telemetry.metrics import Metrics
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import Digest
from gossamer.protocol.manifest import Manifest, SignedManifest
from gossamer.protocol.shard_index import ShardIndex, decode_index
from gossamer.protocol.wire.statements import Capacity
from gossamer.trainer.ipc import messages

HELDOUT_SHARDS_MAX = 4
"""Held-out shards that every node fetches to evaluate on: some 256 thousand tokens."""

RETRY_SECONDS = 2.0

log = structlog.get_logger("node")


class Node:
    """All parts of a running node."""

    def __init__(
        self,
        settings: Settings,
        state_dir: StateDir,
        identity: Identity,
        store: BlockStore,
        transport: Transport,
        signed: SignedManifest,
        bootstrap: tuple[str, ...],
        *,
        make_trainer: Callable[..., Trainer] = TrainerClient,
        run_in_thread: RunInThread = trio.to_thread.run_sync,
        serves_http: bool = True,
    ) -> None:
        """The last three are for tests in virtual time: no process, no thread, no socket."""
        self._make_trainer = make_trainer
        self._run_in_thread = run_in_thread
        self._serves_http = serves_http
        self._settings = settings
        self._state_dir = state_dir
        self._identity = identity
        self._store = store
        self._transport = transport
        self._bootstrap = bootstrap
        self.manifest: Manifest = open_signed_manifest(signed)
        self.run_id = self.manifest.run_id
        self._randomness = random.Random(identity.peer_id)
        self._gpus = Gpus()
        self.metrics = Metrics(self._gpus)
        self._capacity = measure_capacity(settings.device, self._gpus.read())
        self._speed = SpeedMeter(self.metrics)
        self._leaving = trio.Event()
        self.participant: Participant | None = None
        self._offences = Offences(transport, self.metrics)
        self._blocks = BlockService(transport, store, self._offences.note)
        serve_manifest(transport, signed)

    def leave(self) -> None:
        """Leave in order."""
        self._leaving.set()
        if self.participant is not None:
            self.participant.leave()

    async def run(self) -> None:
        """Runs until the participant has left."""
        manifest, settings = self.manifest, self._settings
        self._store.pin("manifest", self._manifest_blocks())
        trainer = self._make_trainer(
            manifest,
            settings,
            str(self._state_dir.optimizer_path),
            on_step=self._on_step,
            on_shared=lambda shared: self._node.shared(shared),
            on_need=lambda tokens: self._node.context.feed.need_more(tokens),
            on_restart=self.metrics.restarts.add,
            on_configured=self._on_configured,
        )
        chain = ChainStore(
            self._state_dir.chain_path,
            self.run_id,
            Digest(manifest.genesis_digest),
            health=self._state_dir.health,
        )
        committed = CommittedState(manifest, trainer.base, self._store, chain, self._state_dir)
        work = Work(
            self._state_dir.root / "work",
            trainer.pending,
            committed.sync_sets.whole.plan,
            manifest.stale_rounds,
            self.metrics,
            clock=trio.current_time,
        )
        stalls = AwakeClock(lambda stall: self._stalled(stall, discovery))
        swarm = Swarm(
            self._transport,
            self._identity,
            manifest,
            Incarnation(self._state_dir),
            standing=lambda: self._standing(),
            knows_head=lambda head: head in chain,
            on_statement=lambda signed, statement: self._node.heard(signed, statement),
            on_commit=lambda commit, header: self._node.heard_commit(commit, header),
            on_disconnect=lambda peer: self._node.disconnected(peer),
            on_members=lambda: self._node.members_changed(),
            offences=self._offences,
            randomness=self._randomness,
            awake_seconds=stalls.awake_seconds,
        )
        sync = ChainSync(
            manifest,
            self._transport,
            self._blocks,
            committed,
            run_in_thread=self._run_in_thread,
            open_commit=swarm.open_commit,
            on_offence=swarm.offence,
            on_replayed=lambda replayed: self._node.replayed(replayed),
        )
        discovery = Discovery(
            self._transport,
            self._state_dir.known_peers(),
            self._bootstrap,
            swarm.membership.known,
            self.metrics,
            self._randomness,
            self._state_dir.health,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(stalls.run)
            nursery.start_soon(discovery.run)
            if not await self._get_manifest_blocks():
                log.info("left before the run's data index was here")
                nursery.cancel_scope.cancel()
                return
            index = self._shard_index()
            feed = DataFeed(
                self._identity.peer_id,
                index,
                self._store,
                self._blocks,
                sources=swarm.sources,
                others_claims=swarm.claims,
                ledger=lambda: committed.ledger,
                on_claims=swarm.announce,
            )
            context = NodeContext(
                manifest,
                self._identity,
                self._transport,
                committed,
                sync,
                trainer,
                feed,
                swarm,
                work,
                self.metrics,
                self._run_in_thread,
                self._speed,
                self._state_dir.health,
                heldout_paths=lambda: self._heldout_paths(index),
            )
            has_bootstrap = bool(self._bootstrap or self._state_dir.known_peers().newest_first())
            self.participant = participant = Participant(
                context, has_bootstrap=has_bootstrap, wait_for_peers=settings.wait_for_peers
            )
            if self._leaving.is_set():
                participant.leave()
            self._transport.handle(RING_PROTOCOL, self._serve_ring)
            swarm.gossip.start()
            reporter = Reporter(
                participant, self._store, self._blocks, self._my_capacity, self._state_dir.health
            )
            if self._serves_http:
                await self._start_http(nursery, reporter)
            self._say_hello()
            nursery.start_soon(swarm.run)
            nursery.start_soon(reporter.run)
            nursery.start_soon(feed.run, trainer.queue)
            nursery.start_soon(self._fetch_heldout, index)
            nursery.start_soon(
                keep_copies, index, self._store, self._blocks, swarm, self._identity.peer_id
            )
            await self._participate(participant, trainer)
            discovery.save()
            nursery.cancel_scope.cancel()

    def _stalled(self, stall: Stall, discovery: Discovery) -> None:
        log.warning("this process did not run for a while", seconds=round(stall.lost_seconds, 1))
        self.metrics.stalled_seconds.inc(stall.lost_seconds)
        discovery.hurry()

    @property
    def _node(self) -> Participant:
        assert self.participant is not None
        return self.participant

    async def _participate(self, participant: Participant, trainer: Trainer) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trainer.run)
            await participant.run()
            await trainer.suspend()
            nursery.cancel_scope.cancel()

    async def _start_http(self, nursery: trio.Nursery, reporter: Reporter) -> None:
        assert self.participant is not None
        controls = Controls(self.participant.pause, self.participant.resume, self.leave)
        api = await nursery.start(
            lambda task_status: serve_http(
                self._settings.api,
                reporter.status,
                self.metrics.registry,
                controls,
                hosts=self._settings.api_hosts,
                task_status=task_status,
            )
        )
        self._state_dir.write_api(api)
        log.info(f"status page at http://{api}/")

    def _say_hello(self) -> None:
        manifest = self.manifest
        log.info(
            f"run {manifest.name}: {manifest.model.num_parameters:,} parameters, "
            f"{manifest.data.num_tokens:,} tokens",
            run=self.run_id.hex()[:16],
        )
        for address in self._transport.addresses():
            log.info(f"others join with: gossamer join {address}")

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
            self._my_capacity(),
        )

    def _my_capacity(self) -> Capacity:
        return self._speed.put_into(self._capacity)

    def _on_configured(self, configured: messages.Configured) -> None:
        self._capacity = with_trainer_device(
            self._capacity, configured.device, configured.device_name, self._gpus.read()
        )
        log.info(f"training on {configured.device_name}", precision=configured.precision)
        self._node.context.feed.requeue()

    def _on_step(self, step: messages.Step) -> None:
        self._speed.step(step)
        node = self._node
        node.stepped(step)
        every = self._settings.log_steps
        if every and node.progress.inner_step % every == 0:
            log.debug("step", round=step.round, step=step.step, loss=round(step.loss, 3))

    async def _serve_ring(self, stream: Stream) -> None:
        try:
            await serve_ring(stream, self._node.greeted)
        except StreamClosed:
            await stream.reset()
        except RemoteProtocolError as error:
            self._node.context.swarm.offence(stream.peer_id, error)
            self._node.disconnected(stream.peer_id)
            await stream.reset()

    def _manifest_blocks(self) -> list[Digest]:
        """The data index and, where there is one, the tokenizer."""
        data = self.manifest.data
        return [Digest(d) for d in (data.index_digest, data.tokenizer_digest) if d]

    async def _get_manifest_blocks(self) -> bool:
        """False if the node was asked to leave before they were here."""
        has_them = False
        async with trio.open_nursery() as nursery:

            async def stop_when_leaving() -> None:
                await self._leaving.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(stop_when_leaving)
            await self._fetch(self._manifest_blocks(), "the run's data index")
            has_them = True
            nursery.cancel_scope.cancel()
        return has_them

    def _shard_index(self) -> ShardIndex:
        index = decode_index(self._store.get(Digest(self.manifest.data.index_digest)))
        if len(index.shards) != self.manifest.data.num_shards:
            raise JoinError("the run's data index does not fit its manifest: it cannot be trained")
        return index

    async def _fetch(self, digests: list[Digest], what: str) -> None:
        """Gets blocks from whoever is connected, however long it takes."""
        say = log.warning
        while True:
            try:
                await self._blocks.fetch_checked(digests, self._transport.peers)
                return
            except (FetchError, DiskError) as error:
                say(f"{what} cannot be had yet", error=str(error))
                say = log.debug
                await trio.sleep(RETRY_SECONDS)

    def _heldout_digests(self, index: ShardIndex) -> list[Digest]:
        return [Digest(shard.digest) for shard in index.heldout[:HELDOUT_SHARDS_MAX]]

    def _heldout_paths(self, index: ShardIndex) -> list[str]:
        digests = self._heldout_digests(index)
        if self._store.missing(digests):
            return []
        return [str(self._store.path(digest)) for digest in digests]

    async def _fetch_heldout(self, index: ShardIndex) -> None:
        digests = self._heldout_digests(index)
        self._store.pin("heldout", digests)
        await self._fetch(digests, "held-out text")
