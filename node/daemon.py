"""The daemon: puts the parts of a node together, runs them in one nursery, and ends them in order.

    transport --- gossip, membership (swarm) --- participant (the loop) --- trainer process
        |                                            |
        +--- blocks, chain, ring, run protocols      +--- committed state, work, data feed

SIGINT or SIGTERM asks the participant to leave in order; a second one ends everything at once. A
trainer that does not stay up leaves a node that still serves blocks and says `failed`.
"""

from __future__ import annotations

import ctypes
import random
import signal
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import structlog
import trio

from gossamer.node.blocks import BlockStore
from gossamer.node.capacity import Gpus, measure_capacity, with_trainer_device
from gossamer.node.chain_store import ChainStore
from gossamer.node.chain_sync import ChainSync
from gossamer.node.committed import CommittedState
from gossamer.node.config import Found, Join, Role, Settings
from gossamer.node.data_feed import DataFeed
from gossamer.node.discovery import Discovery
from gossamer.node.exchange import BlockService, FetchError
from gossamer.node.http import Controls, serve_http
from gossamer.node.identity import Identity
from gossamer.node.libp2p_transport import open_libp2p_transport
from gossamer.node.metrics import Metrics
from gossamer.node.participant import Participant
from gossamer.node.replication import keep_copies
from gossamer.node.reporting import Reporter
from gossamer.node.ring_link import RING_PROTOCOL, serve_ring
from gossamer.node.round_driver import RunInThread
from gossamer.node.run_exchange import (
    JoinError,
    open_signed_manifest,
    request_manifest,
    serve_manifest,
)
from gossamer.node.speed import SpeedMeter
from gossamer.node.starting import found_here
from gossamer.node.state_dir import DiskFullError, StateDir, StateDirError, write_atomically
from gossamer.node.swarm import Standing, Swarm
from gossamer.node.training import ProcessTrainer, Trainer, TrainerFailedError
from gossamer.node.transport import Stream, StreamClosed, Transport
from gossamer.node.work import Work
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.manifest import Manifest, ShardIndex, SignedManifest, decode_index
from gossamer.protocol.messages import Capacity
from gossamer.trainer import messages

if TYPE_CHECKING:
    from trio_typing import TaskStatus

HELDOUT_SHARDS_MAX = 4
"""Held-out shards that every node fetches to evaluate on: some 256 thousand tokens."""

RETRY_SECONDS = 2.0

_M_ARENA_MAX = -8  # <malloc.h>
_MALLOC_ARENAS = 2

log = structlog.get_logger("node")


def run(settings: Settings, role: Role) -> int:
    """Runs a node until it is told to leave. The exit status: 0 after an orderly leave.

    Raises:
        StateDirError, ListenError, JoinError, ManifestError, CorpusError, OSError: the node cannot
            run; the text says why and what to do.
    """
    state_dir = StateDir(settings.state_dir)
    limit_malloc_arenas()
    with state_dir.locked():
        try:
            return trio.run(_Daemon(settings, role, state_dir).main)
        except BaseExceptionGroup as group:
            raise _single(group) from None


def limit_malloc_arenas() -> None:
    """Tells glibc to keep few heaps.

    By default every worker thread gets a heap of its own, and what one large step leaves behind in
    each of them stays resident: a third more memory than is in use, measured with 5 M parameters.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl and macOS have none
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, _MALLOC_ARENAS)


def _single(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one exception inside nested groups, for people; the group itself if there are more."""
    inner: BaseException = group
    while isinstance(inner, BaseExceptionGroup) and len(inner.exceptions) == 1:
        inner = inner.exceptions[0]
    return inner


class _Daemon:
    """One life of the daemon."""

    def __init__(self, settings: Settings, role: Role, state_dir: StateDir) -> None:
        self._settings = settings
        self._role = role
        self._state_dir = state_dir
        self._leave: Callable[[], None] | None = None
        self._status = 0

    async def main(self) -> int:
        async with trio.open_nursery() as nursery:
            await nursery.start(self._watch_signals, nursery.cancel_scope)
            await self._run()
            nursery.cancel_scope.cancel()
        return self._status

    async def _watch_signals(
        self,
        scope: trio.CancelScope,
        task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            num_signals = 0
            async for _ in signals:
                num_signals += 1
                if num_signals == 1 and self._leave is not None:
                    log.info("leaving; once more to leave at once")
                    self._leave()
                else:
                    self._status = 1 if num_signals > 1 else 0
                    scope.cancel()

    async def _run(self) -> None:
        settings, state_dir = self._settings, self._state_dir
        identity = Identity.load_or_create(state_dir.identity_path)
        store = BlockStore(state_dir.blocks_path, settings.cache_bytes)
        signed = _manifest_here(state_dir)
        async with open_libp2p_transport(identity, settings.listen) as transport:
            addresses = settings.bootstrap
            if isinstance(self._role, Found):
                signed = await found_here(self._role, identity, state_dir.blocks_path, settings)
                state_dir.write_manifest(signed)
            else:
                addresses = (*self._role.addresses, *addresses)
                if isinstance(self._role, Join):
                    wanted = bytes.fromhex(self._role.run_id) if self._role.run_id else None
                    signed = await request_manifest(
                        transport, addresses, None if wanted is None else Digest(wanted)
                    )
                    state_dir.write_manifest(signed)
            if signed is None:
                raise JoinError(
                    f"there is no run in {state_dir.root}: `gossamer start` founds one, "
                    "`gossamer join ADDRESS` joins one"
                )
            store = BlockStore(state_dir.blocks_path, settings.cache_bytes)
            node = Node(settings, state_dir, identity, store, transport, signed, addresses)
            self._leave = node.leave
            await node.run()


def _manifest_here(state_dir: StateDir) -> SignedManifest | None:
    """The manifest in a state directory, with its founder's signature checked.

    Raises:
        StateDirError: it is damaged.
    """
    signed = state_dir.read_manifest()
    if signed is not None:
        try:
            open_signed_manifest(signed)
        except RemoteProtocolError as error:
            raise StateDirError(
                f"{state_dir.manifest_path} is damaged ({error}). Move {state_dir.root} away and "
                "join the run again; identity.key may be copied into the new directory"
            ) from error
    return signed


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
        make_trainer: Callable[..., Trainer] = ProcessTrainer,
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
        self._blocks = BlockService(transport, store, self._block_offence)
        serve_manifest(transport, signed)

    def leave(self) -> None:
        """Leave in order."""
        self._leaving.set()
        if self.participant is not None:
            self.participant.leave()

    def _block_offence(self, _peer: PeerId, reason: str) -> None:
        self.metrics.offences.add(reason)

    async def run(self) -> None:
        """Runs until the participant has left."""
        manifest, settings = self.manifest, self._settings
        self._store.pin(
            "manifest",
            [Digest(d) for d in (manifest.data.index_digest, manifest.data.tokenizer_digest) if d],
        )
        trainer = self._make_trainer(
            manifest,
            settings,
            str(self._state_dir.optimizer_path),
            on_step=self._on_step,
            on_need=lambda tokens: feed.need_more(tokens),
            on_restart=lambda reason: self._on_restart(reason),
            on_configured=self._on_configured,
        )
        chain = ChainStore(self._state_dir.chain_path, self.run_id, Digest(manifest.genesis_digest))
        committed = CommittedState(manifest, trainer.base, self._store, chain, self._state_dir)
        work = Work(
            self._state_dir.root / "work",
            trainer.pending,
            manifest.rounds.stale_rounds,
            self.metrics,
        )
        swarm = Swarm(
            self._transport,
            self._identity,
            self.run_id,
            self._next_incarnation(),
            frozenset(manifest.allowed) if manifest.admission == "allow" else None,
            standing=lambda: self._standing(),
            knows_head=lambda head: head in chain,
            on_statement=lambda signed, statement: self._node.heard(signed, statement),
            on_commit=lambda commit, header: self._node.heard_commit(commit, header),
            on_disconnect=lambda peer: self._node.disconnected(peer),
            on_members=lambda: self._node.members_changed(),
            metrics=self.metrics,
            randomness=self._randomness,
        )
        sync = ChainSync(
            manifest,
            self._transport,
            self._blocks,
            committed,
            run_in_thread=self._run_in_thread,
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
        )
        async with AsyncExitStack() as stack:
            nursery = await stack.enter_async_context(trio.open_nursery())
            nursery.start_soon(discovery.run)
            index = await self._shard_index()
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
            self.participant = participant = Participant(
                manifest=manifest,
                identity=self._identity,
                transport=self._transport,
                committed=committed,
                chain_sync=sync,
                trainer=trainer,
                feed=feed,
                swarm=swarm,
                work=work,
                metrics=self.metrics,
                run_in_thread=self._run_in_thread,
                heldout_paths=lambda: self._heldout_paths(index),
            )
            participant.has_bootstrap = bool(self._bootstrap) or bool(
                self._state_dir.known_peers().newest_first()
            )
            if self._leaving.is_set():
                participant.leave()
            reporter = Reporter(
                participant,
                self._transport,
                self._store,
                self._blocks,
                self.metrics,
                self._my_capacity,
            )
            self._transport.handle(RING_PROTOCOL, self._serve_ring)
            swarm.gossip.start()
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

    @property
    def _node(self) -> Participant:
        assert self.participant is not None
        return self.participant

    async def _participate(self, participant: Participant, trainer: Trainer) -> None:
        """Runs participant and trainer; after a trainer that gives up, waits to be told to leave."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trainer.run)
                await participant.run()
                await trainer.suspend()
                nursery.cancel_scope.cancel()
        except* TrainerFailedError as group:
            participant.fail(str(group.exceptions[0]))
            await self._leaving.wait()

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
        node = self._node
        entry = node.committed.entry
        return Standing(
            node.phase,
            entry.round,
            entry.head,
            entry.tokens_total,
            node.committed.checkpoint_round,
            node.feed.claims,
            self._my_capacity(),
        )

    def _my_capacity(self) -> Capacity:
        return self._speed.put_into(self._capacity)

    def _on_configured(self, configured: messages.Configured) -> None:
        self._capacity = with_trainer_device(
            self._capacity, configured.device, configured.device_name, self._gpus.read()
        )
        log.info(f"training on {configured.device_name}", precision=configured.precision)

    def _on_step(self, step: messages.Step) -> None:
        self._speed.step(step)
        node = self._node
        node.stepped(step)
        every = self._settings.log_steps
        if every and node.inner_step % every == 0:
            log.debug("step", round=step.round, step=step.step, loss=round(step.loss, 3))

    def _on_restart(self, reason: str) -> None:
        self.metrics.restarts.add(reason)
        self._node.feed.requeue()

    async def _serve_ring(self, stream: Stream) -> None:
        try:
            await serve_ring(stream, self._node.greeted)
        except StreamClosed:
            await stream.reset()
        except RemoteProtocolError as error:
            self._node.swarm.offence(stream.peer_id, error)
            self._node.disconnected(stream.peer_id)
            await stream.reset()

    def _next_incarnation(self) -> int:
        """Grows with every start, also when the clock was set back meanwhile."""
        path = self._state_dir.root / "incarnation"
        try:
            last = int(path.read_text())
        except (OSError, ValueError):
            last = 0
        incarnation = max(last + 1, time.time_ns())
        write_atomically(path, str(incarnation).encode())
        return incarnation

    def _manifest_blocks(self) -> list[Digest]:
        """The data index and, where there is one, the tokenizer."""
        data = self.manifest.data
        return [Digest(d) for d in (data.index_digest, data.tokenizer_digest) if d]

    async def _shard_index(self) -> ShardIndex:
        await self._fetch(self._manifest_blocks(), "the run's data index")
        index = decode_index(self._store.get(Digest(self.manifest.data.index_digest)))
        if len(index.shards) != self.manifest.data.num_shards:
            raise JoinError("the run's data index does not fit its manifest: it cannot be trained")
        return index

    async def _fetch(self, digests: list[Digest], what: str) -> None:
        """Gets blocks from whoever is connected, however long it takes."""
        while True:
            try:
                await self._blocks.fetch_checked(digests, self._transport.peers)
                return
            except (FetchError, DiskFullError) as error:
                log.warning(f"{what} cannot be had yet", error=str(error))
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
