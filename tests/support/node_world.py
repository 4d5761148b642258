"""A world of whole nodes: transport in memory, virtual time, and a trainer of numbers."""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
import numpy as np
import trio
import zstandard
from msgspec.structs import replace

from gossamer.node.app.assembly import Node
from gossamer.node.app.joining import join_run
from gossamer.node.app.owner.owner_limits import OwnerLimits
from gossamer.node.app.runtime import NodeInputs, Runtime
from gossamer.node.base.roles import Join
from gossamer.node.base.settings.settings import Settings
from gossamer.node.base.threads import RunInThread
from gossamer.node.machine.machine_use import MachineUse
from gossamer.node.machine.trainer import TrainerListener
from gossamer.node.network.identity import Identity
from gossamer.node.network.signed_manifests import open_signed_manifest
from gossamer.node.rounds.participant import Participant
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.storage.state.shared_parameters import sign_payloads
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.codecs.sign_codec import SignUpdate
from gossamer.protocol.codecs.step_codec import StepCodec
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.ids import Digest, digest_of
from gossamer.protocol.lora import LoraConfig
from gossamer.protocol.manifest import (
    Codec,
    Manifest,
    OuterConfig,
    SignedManifest,
    TokenSchedule,
    Trust,
    decode_manifest,
    encode_manifest,
    signing_bytes,
)
from gossamer.protocol.manifest_checks import require_valid
from gossamer.protocol.model_config import ModelConfig
from gossamer.protocol.shard_index import ShardIndex, ShardInfo
from gossamer.protocol.state.chain import Header
from gossamer.protocol.state.digest import genesis_digest_of
from gossamer.protocol.state.frozen_weights import blocks_of
from gossamer.protocol.state.run_end import SchedulePlace
from gossamer.protocol.state.sync_sets import SyncSets
from gossamer.protocol.sync_modes import SyncMode
from gossamer.trainer.ipc import messages
from gossamer.trainer.ipc.measures import StepTimes
from tests.support import builders, jumping_clock
from tests.support.averages_once import averages_computed_once
from tests.support.balance import committed_of, is_balanced
from tests.support.memory_transport import MemoryNetwork, run_simulated
from tests.support.signatures_once import signatures_checked_once

if TYPE_CHECKING:
    from trio_typing import TaskStatus

T = TypeVar("T")
STEP_SECONDS = 0.1
FIRST_UNIX_SECONDS = 1_700_000_000
"""The clock of all nodes when virtual time begins."""
SHARD_TOKENS = 512
CHUNK_ELEMENTS = 1024
WORLDS_VARIABLE = "WORLDS_OF_TESTS"
"""Variable with a number that changes the seeds of all worlds: 1, which is the default, leaves
those that the tests name. With another number the same story has other identities, another order in
rings, and other draws of all nodes."""
SEEDS_APART = 1000
"""More than the largest seed that a test names, so no two tests get the same world."""

MODEL = ModelConfig(
    num_layers=1,
    width=16,
    num_heads=2,
    num_kv_heads=1,
    hidden_width=16,
    vocabulary=256,
    context=16,
    tied_embeddings=True,
)


def model_of(fragments: int) -> ModelConfig:
    """A small model with a layer for each fragment."""
    return replace(MODEL, num_layers=fragments)


def initial_weights(seed: int, num_parameters: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(num_parameters).astype(np.float32)


def num_tokens_in(path: str) -> int:
    return len(zstandard.ZstdDecompressor().decompress(Path(path).read_bytes())) // 2


def target_of(optimizer_path: Path, num_parameters: int) -> np.ndarray:
    """The target of a node, by its name: the same in each folder in which a world may lie."""
    name = optimizer_path.parent.parent.name
    return initial_weights(digest_of(name.encode())[0], num_parameters)


class NumbersTrainer:
    """Trains towards a target of its own, a step every `STEP_SECONDS` of virtual time."""

    step_seconds = STEP_SECONDS
    rate = 0.1
    """Part of the way to the target that a step goes."""
    is_up = True
    save_seconds = 0.0
    lives = 1
    loaded_momentum: messages.Place | None = None
    failure: str | None = None

    def __init__(
        self,
        manifest: Manifest,
        settings: Settings,
        optimizer_path: str,
    ) -> None:
        self._manifest = manifest
        self._shares = manifest.sync == "distro"
        self._shared = trio.Event()
        self._sync_set = SyncSets(manifest.model, manifest.outer, manifest.sync).whole
        self.base = np.zeros(manifest.model.num_parameters, dtype=np.float32)
        self.pending = np.zeros(self._sync_set.plan.num_elements, np.float32)
        self._queue: list[list[int]] = []
        self._queued = trio.Event()
        self._stop = False
        self._waited_seconds = 0.0
        """Time spent waiting for data since the newest step."""
        self._local: np.ndarray | None = None
        self._audited: np.ndarray | None = None
        self._origin = self._work = np.zeros_like(self.base)
        self._is_training = False
        self.places: list[SchedulePlace | None] = []
        """Place in the schedule of each training."""
        self.limits: list[messages.Limits] = []
        """The owner's limits that this trainer was told, the newest last."""
        self._target = target_of(Path(optimizer_path), self.base.size)

    async def run(self, listener: TrainerListener) -> None:
        self._listener = listener
        await trio.sleep_forever()

    async def genesis(self) -> bool:
        self.base[:] = initial_weights(self._manifest.seed, self.base.size)
        return True

    async def train(self, begin: messages.Begin) -> messages.Finished:
        self.places.append(begin.place)
        is_local = begin.start == "local" and self._local is not None
        if self._local is None or not is_local:
            self._local = self.base.copy()
        self._origin = self._local.copy()
        self._is_training = True
        if is_local:
            await self.rebase(begin.new)
        spans: list[tuple[int, int, int]] = []
        tokens = done = 0
        self._stop = False
        wanted = self._manifest.inner.sequences_per_step * MODEL.context
        deadline = trio.current_time() + begin.seconds_max
        while done < begin.steps_max and not self._stop and trio.current_time() < deadline:
            waits_since = trio.current_time()
            while not self._queue and not self._stop and trio.current_time() < deadline:
                self._listener.needs_data(0)
                with trio.move_on_after(STEP_SECONDS):
                    await self._queued.wait()
                    self._queued = trio.Event()
            self._waited_seconds += trio.current_time() - waits_since
            if not self._queue:
                break
            await jumping_clock.sleep(self.step_seconds)
            left = wanted
            while left and self._queue:
                head = self._queue[0]
                taken = min(left, head[2] - head[1])
                spans.append((head[0], head[1], head[1] + taken))
                head[1] += taken
                left -= taken
                if head[1] == head[2]:
                    self._queue.pop(0)
            if not self._shares:
                self._local += np.float32(self.rate) * (self._target - self._local)
            tokens += wanted - left
            loss = float(np.square(self._local, dtype=np.float64).mean())
            self._listener.stepped(
                messages.Step(
                    round=begin.round,
                    step=begin.first_step + done,
                    loss=loss,
                    tokens=wanted - left,
                    seconds=self.step_seconds,
                    gradient_norm=1.0,
                    learning_rate=0.1,
                    skipped=False,
                    waited_seconds=self._waited_seconds,
                    text_bytes=2 * (wanted - left),
                    times=StepTimes(forward=0.03, backward=0.05, optimizer=0.01),
                )
            )
            self._waited_seconds = 0.0
            done += 1
            if self._shares:
                await self._share(begin.round, deadline)
        self._work = self._origin - self._local
        self._is_training = False
        return messages.Finished(
            round=begin.round,
            steps=done,
            tokens=tokens,
            spans=tuple(spans),
            loss=1.0 if tokens else math.nan,
            text_bytes=2 * tokens,
        )

    async def _share(self, round_number: int, deadline: float) -> None:
        """Offers the signs of where it would go, without a transform, and waits for word of it."""
        codec, places = _codec_and_places(self._manifest.outer)
        wanted = self._target - self.base
        self._shared = trio.Event()
        update = codec.encode(SignUpdate(places, wanted[places] < 0))
        self._listener.shared(messages.Shared(round=round_number, update=update))
        with trio.move_on_at(deadline):
            while not (self._shared.is_set() or self._stop):
                with trio.move_on_after(STEP_SECONDS):
                    await self._shared.wait()

    async def share(self, *, taken: bool) -> None:
        self._shared.set()

    async def collect(self) -> bool:
        work, self._work = self._work, np.zeros_like(self.base)
        return self._sync_set.add_work(work, self.pending)

    async def rebase(self, ranges: messages.Ranges) -> None:
        assert self._local is not None
        for part in (slice(start, stop) for start, stop in ranges):
            if self._is_training:
                self._local[part] += self.base[part] - self._origin[part]
                self._origin[part] = self.base[part]
            else:
                self._local[part] = self.base[part] - self._work[part]

    async def base_is_read(self) -> None:
        pass

    async def stop(self) -> None:
        self._stop = True

    async def queue(self, shard: int, path: str, start: int, stop: int) -> None:
        assert num_tokens_in(path) == SHARD_TOKENS
        self._queue.append([shard, start, stop])
        self._queued.set()

    async def forget(self) -> None:
        self._queue.clear()

    async def evaluate(
        self, paths: Sequence[str], tokens_max: int, seconds_max: float
    ) -> messages.Evaluated | None:
        loss = float(np.square(self.base, dtype=np.float64).mean())
        return messages.Evaluated(loss=loss, tokens=1, text_bytes=2)

    async def sample(self, task: messages.Sample) -> messages.Sampled | None:
        return messages.Sampled(texts=tuple(f"{prompt}!" for prompt in task.prompts))

    @property
    def audited(self) -> np.ndarray:
        if self._audited is None:
            self._audited = np.zeros_like(self.base)
        return self._audited

    async def audit(self, sequences: Sequence[tuple[str, int]]) -> tuple[float, ...] | None:
        await trio.lowlevel.checkpoint()
        loss = float(np.square(self.audited - self._target, dtype=np.float64).mean())
        return (loss,) * len(sequences)

    def give_back_audited(self) -> None:
        self._audited = None

    async def limit(self, limits: messages.Limits) -> None:
        self.limits.append(limits)

    async def suspend(self) -> None:
        self._queue.clear()

    def resume(self) -> None:
        pass

    async def keep_momentum(self, *, keep: bool) -> None:
        pass

    async def save(self, place: messages.Place) -> None:
        pass

    async def is_saved(self) -> None:
        pass


@functools.cache
def _codec_and_places(outer: OuterConfig) -> tuple[StepCodec, np.ndarray]:
    """The codec of shared steps, and the places that all nodes send."""
    codec = sign_payloads(MODEL, outer).coder
    return codec, np.array(every_place(codec), np.int64)


def every_place(codec: StepCodec) -> list[int]:
    """The first k coefficients of each tile."""
    places: list[int] = []
    first = 0
    for coder in codec.coders:
        for num_tiles, coefficients in coder.shapes:
            for _ in range(num_tiles):
                places += range(first, first + min(coder.k, coefficients))
                first += coefficients
    return places


class SlowTrainer(NumbersTrainer):
    step_seconds = 10 * STEP_SECONDS


class FastTrainer(NumbersTrainer):
    step_seconds = STEP_SECONDS / 10


NOT_USED = MachineUse(
    lambda: None, lambda _names: (), lambda: None, lambda: True, is_metered=lambda: None
)
"""Nobody uses the machines, whatever the one that runs the test does."""

SUMS_TOP_K = 4096
"""Values of each 4,096 of which the sparse parts of two members are longer than `int4`, also when
they are packed."""


def unix_seconds() -> float:
    """The clock of all nodes."""
    return FIRST_UNIX_SECONDS + trio.current_time()


async def _consent(_manifest: Manifest) -> None:
    """The owner of a node joins whatever run it is."""


async def in_no_thread(function: Callable[[], T], /) -> T:
    """A thread would not be seen by the virtual clock."""
    await trio.lowlevel.checkpoint()
    return function()


def found(
    identity: Identity,
    *,
    codec: str = "fp32",
    top_k: int = 64,
    step_chunks: int = 1,
    num_shards: int = 64,
    overlap: bool = False,
    inner_steps: int = 4,
    fragments: int = 1,
    displacement: float = 0.0,
    checkpoint_rounds: int = 3,
    gather_seconds: float = 3.0,
    allowed: tuple[str, ...] = (),
    is_by_invitation: bool = False,
    trust: Trust = "members",
    last_round: int | None = None,
    schedule: TokenSchedule | None = None,
    accusers: int = 1,
    keepers: tuple[str, ...] = (),
    probation: int = 0,
    lora: LoraConfig | None = None,
    data_grow: bool = False,
    chunk_elements: int = CHUNK_ELEMENTS,
) -> tuple[SignedManifest, list[bytes]]:
    """A manifest signed by its founder, and the run's blocks."""
    sync: SyncMode = msgspec.convert(codec if codec in ("sparse", "distro") else "diloco", SyncMode)
    blocks: list[bytes] = []
    shards: list[ShardInfo] = []
    for number in range(num_shards + 1):
        tokens = np.full(SHARD_TOKENS, number % 250, dtype="<u2").tobytes()
        data = zstandard.ZstdCompressor().compress(tokens)
        blocks.append(data)
        shards.append(ShardInfo(digest_of(data), SHARD_TOKENS, len(data)))
    index = to_msgpack(ShardIndex(shards=tuple(shards[:-1]), heldout=tuple(shards[-1:])))
    blocks.append(index)
    example = builders.manifest()
    model = model_of(fragments)
    frozen: bytes | msgspec.UnsetType = msgspec.UNSET
    if lora is not None:
        frozen_blocks = list(blocks_of(initial_weights(2, model.num_parameters), lora))
        blocks += [*frozen_blocks, to_msgpack(tuple(map(digest_of, frozen_blocks)))]
        model, frozen = replace(model, lora=lora), digest_of(blocks[-1])
    manifest = replace(
        example,
        name="numbers",
        founder=identity.peer_id,
        created_unix_seconds=0,
        sync=sync,
        model=model,
        inner=replace(
            example.inner,
            learning_rate=0.1,
            warmup_steps=0,
            weight_decay=0.0,
            sequences_per_step=2,
        ),
        outer=replace(
            example.outer,
            inner_steps=inner_steps,
            momentum=0.5,
            warmup_rounds=0 if sync == "distro" else 1,
            warmup_inner_steps=2,
            codec=msgspec.convert("fp32" if codec == sync else codec, Codec),
            chunk_elements=chunk_elements,
            top_k=4 if sync == "distro" else top_k,
            step_chunks=step_chunks if step_chunks > 1 else msgspec.UNSET,
            overlap=overlap,
            fragments=fragments,
            displacement=displacement,
            widening=True,
            sparse_sums=True,
            packing=True,
        ),
        rounds=replace(
            example.rounds,
            round_seconds=30.0,
            gather_seconds=gather_seconds,
            attempt_seconds=1.0,
            stale_rounds=5,
            checkpoint_rounds=checkpoint_rounds,
            accusers=accusers,
            keepers=keepers or msgspec.UNSET,
            probation=probation or msgspec.UNSET,
        ),
        data=replace(
            example.data,
            index_digest=digest_of(index),
            num_shards=num_shards,
            num_tokens=num_shards * SHARD_TOKENS,
            heldout_tokens=SHARD_TOKENS,
            frozen_digest=frozen,
            grows=data_grow or msgspec.UNSET,
        ),
        genesis_digest=genesis_digest_of(
            initial_weights(example.seed, model.num_parameters), chunk_elements
        ),
        admission="invite" if is_by_invitation else "allow" if allowed else "open",
        allowed=allowed,
        trust=trust,
    )
    if last_round is not None:
        steps = manifest.outer.first_inner_step_of(last_round + 1)
        manifest = replace(manifest, inner=replace(manifest.inner, total_steps=steps, ends=True))
    if schedule is not None:
        manifest = replace(manifest, inner=replace(manifest.inner, schedule=schedule, ends=True))
    require_valid(manifest)
    signature = identity.sign(signing_bytes(manifest.run_id))
    return SignedManifest(manifest=encode_manifest(manifest), signature=signature), blocks


@functools.cache
def _identity(text: str) -> Identity:
    """Made once: conditions that are looked at a thousand times a second ask for it."""
    return Identity.from_seed(digest_of(text.encode()))


@dataclass
class World:
    """Nodes of one run in one network in memory."""

    root: Path
    seed: int
    codec: str = "fp32"
    """`sparse` and `distro` stand for those modes."""
    top_k: int = 64
    """With `sparse`: values of each 4,096. With `SUMS_TOP_K` two members' parts are a sum."""
    step_chunks: int = 1
    """With `distro`: chunks of a shared step."""
    chunk_elements: int = CHUNK_ELEMENTS
    wait_for_peers: int = 0
    num_shards: int = 64
    overlap: bool = False
    inner_steps: int = 4
    fragments: int = 1
    displacement: float = 0.0
    checkpoint_rounds: int = 3
    gather_seconds: float = 3.0
    latency_seconds: float = 0.01
    """Latency of every link, one way."""
    allowed: Sequence[str] = ()
    """Names of the nodes that the run admits; empty: all."""
    is_by_invitation: bool = False
    """Whether the run admits whom a member invites; those in `allowed` are roots beside a."""
    trust: Trust = "members"
    accusers: int = 1
    keepers: Sequence[str] = ()
    """Names of the nodes that may take rounds back together."""
    probation: int = 0
    """Rounds until a node has its whole influence; 0: every node has it at once."""
    lora: LoraConfig | None = None
    """Adapters, which the run trains in the place of the model."""
    data_grow: bool = False
    """Whether the founder adds data."""
    last_round: int | None = None
    """The round after which the run is finished; None for a run that does not end."""
    schedule: TokenSchedule | None = None
    """The schedule of a run that counts tokens, and ends by them."""
    serve_after: str = "forever"
    """For how long a node serves the final state of such a run."""
    run_in_thread: RunInThread = in_no_thread
    """Runs blocking calls; virtual time allows no threads."""
    local_seconds: Callable[[], float] = field(init=False)
    """The clock that says how old checkpoints are. Threads have no virtual time."""
    look_seconds: float = 0.005
    """Time between two looks of `until`, which may have to catch one phase."""
    settings: Mapping[str, str | int | tuple[str, ...]] = field(default_factory=dict)
    """Settings of all nodes that differ from the defaults."""
    use: MachineUse = NOT_USED
    """What the owners do with their machines."""
    clock_ahead_seconds: float = 0.0
    """How far the clock of all machines was set forward."""
    random_bytes: Callable[[int], bytes] = bytes
    """Draws the chance in the numbers of lives. Without any, a seed stands for one story."""
    serves_http: bool = False
    """Whether nodes serve their pages; virtual time has no sockets."""
    nodes: dict[str, Node] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.seed += SEEDS_APART * (int(os.environ.get(WORLDS_VARIABLE, "1")) - 1)
        self.local_seconds = (
            trio.current_time if self.run_in_thread is in_no_thread else time.monotonic
        )
        self.network = MemoryNetwork(self.seed, self.latency_seconds)
        self.signed, self._blocks = found(
            self.identity("a"),
            codec=self.codec,
            top_k=self.top_k,
            step_chunks=self.step_chunks,
            num_shards=self.num_shards,
            overlap=self.overlap,
            inner_steps=self.inner_steps,
            fragments=self.fragments,
            displacement=self.displacement,
            checkpoint_rounds=self.checkpoint_rounds,
            gather_seconds=self.gather_seconds,
            allowed=tuple(self.identity(name).peer_id for name in self.allowed),
            is_by_invitation=self.is_by_invitation,
            trust=self.trust,
            last_round=self.last_round,
            schedule=self.schedule,
            accusers=self.accusers,
            keepers=tuple(self.identity(name).peer_id for name in self.keepers),
            probation=self.probation,
            lora=self.lora,
            data_grow=self.data_grow,
            chunk_elements=self.chunk_elements,
        )
        digests = [digest_of(block).hex() for block in self._blocks]
        self._shard_files = [f"{digest[:2]}/{digest}" for digest in digests]
        self._blocks_paths: dict[str, str] = {}
        self._scopes: dict[str, trio.CancelScope] = {}
        self.tasks: dict[str, trio.lowlevel.Task] = {}
        """The task of each node's newest life: it and its children do all that the node does."""

    def identity(self, name: str) -> Identity:
        return _identity(f"{name} {self.seed}")

    async def run(
        self,
        name: str,
        seeds: Sequence[str] = (),
        trainer: type[NumbersTrainer] = NumbersTrainer,
        invitation: bytes | None = None,
        head: Digest | None = None,
        task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """One life of a node; `seeds` are names of nodes that run already. With an invitation it
        joins like a person's node, by a link that may name a head."""
        identity = self.identity(name)
        state_dir = StateDir(self.root / name)
        with trio.CancelScope() as scope, state_dir.locked():
            self._scopes[name] = scope
            self.tasks[name] = trio.lowlevel.current_task()
            store = BlockStore(state_dir.blocks_path, 2**30)
            if name == "a":
                for block in self._blocks:
                    store.put(block)
            async with AsyncExitStack() as stack:
                transport = await stack.enter_async_context(self.network.transport(identity))
                bootstrap = tuple(
                    address
                    for seed in seeds
                    for address in self.network.addresses_of(self.identity(seed).peer_id)
                )
                nursery = await stack.enter_async_context(trio.open_nursery())
                runtime = Runtime(
                    trainer,
                    self.run_in_thread,
                    serves_http=self.serves_http,
                    unix_seconds=lambda: unix_seconds() + self.clock_ahead_seconds,
                    local_seconds=self.local_seconds,
                    use=self.use,
                    read_in_thread=self.run_in_thread,
                    random_bytes=self.random_bytes,
                    zone=UTC,
                )
                if invitation is not None:
                    run_id = decode_manifest(self.signed.manifest).run_id.hex()
                    role = Join(
                        addresses=bootstrap,
                        run_id=run_id,
                        head=head.hex() if head is not None else None,
                        invitation=invitation,
                    )
                    await join_run(
                        transport, role, bootstrap, state_dir, _consent, self.run_in_thread
                    )
                await nursery.start(runtime.awake.run)
                settings = Settings(
                    state_dir=state_dir.root,
                    wait_for_peers=self.wait_for_peers,
                    serve_after=self.serve_after,
                    bootstrap=bootstrap,
                )
                settings = replace(settings, **self.settings)
                manifest = open_signed_manifest(self.signed)
                inputs = NodeInputs(
                    manifest, settings, state_dir, identity, store, transport, runtime
                )
                limits = OwnerLimits(settings, state_dir, runtime.read_in_thread)
                node = Node(inputs, self.signed, limits)
                self.nodes[name] = node
                task_status.started()
                await node.run()
                nursery.cancel_scope.cancel()

    def crash(self, name: str) -> None:
        """Stops a node as SIGKILL does: nothing more is done, and the connections break."""
        self.network.kill(self.identity(name).peer_id)
        self._scopes[name].cancel()

    def participant(self, name: str) -> Participant:
        participant = self.nodes[name].participant
        assert participant is not None
        return participant

    def participant_or_none(self, name: str) -> Participant | None:
        """None while a node has not got so far."""
        return self.nodes[name].participant if name in self.nodes else None

    def round(self, name: str) -> int:
        node = self.nodes[name].participant
        return node.context.committed.entry.round if node is not None else 0

    async def reach(self, round_number: int, *names: str, seconds: float = 120.0) -> None:
        def is_there() -> bool:
            return all(self.round(name) >= round_number for name in names)

        # A round takes far longer than this.
        await self.until(is_there, seconds, max(self.look_seconds, 0.01))

    async def until(
        self, condition: Callable[[], bool], seconds: float = 60.0, look_seconds: float = 0.0
    ) -> None:
        """Looks every `look_seconds`; 0 stands for those of the world."""
        with trio.fail_after(seconds):
            await jumping_clock.until(condition, look_seconds or self.look_seconds)

    def all_shards_are_with(self, *names: str) -> bool:
        """Returns whether each shard is on one of their disks."""
        # Asked at every look of `until`: `Path` would take longer than the disk.
        roots = [self._blocks_path(name) for name in names]
        return all(
            any(os.path.exists(f"{root}/{file}") for root in roots) for file in self._shard_files
        )

    def _blocks_path(self, name: str) -> str:
        if name not in self._blocks_paths:
            self._blocks_paths[name] = os.fspath(StateDir(self.root / name).blocks_path)
        return self._blocks_paths[name]

    def path(self, name: str) -> list[Digest]:
        committed = self.participant(name).context.committed
        path = committed.chain.path_between(committed.chain.genesis, committed.head)
        assert path is not None
        return path

    def is_one_chain(self, *names: str) -> bool:
        """Returns whether no node has a head that another node lacks for another reason than being
        behind."""
        paths = [self.path(name) for name in names]
        shortest = min(len(path) for path in paths)
        return len({tuple(path[:shortest]) for path in paths}) == 1

    async def come_together(self, *names: str, seconds: float) -> None:
        """Waits until all are on one chain, then checks their states.

        Two members may organise a ring each while one of them does not know all others yet. The
        choice of head ends the fork that follows when their commit records have met.
        """
        await self.until(lambda: self.is_one_chain(*names), seconds)
        self.assert_one_chain(*names)

    def assert_one_chain(self, *names: str) -> None:
        """All are on one chain, and those at the same round have the same state."""
        assert self.is_one_chain(*names)
        states: dict[Digest, bytes] = {}
        for name in names:
            committed = self.participant(name).context.committed
            assert committed.index is not None
            assert committed.index.digest == committed.entry.state_digest
            content = committed.parameters.tobytes() + committed.momentum.tobytes()
            assert states.setdefault(committed.head, content) == content


async def start(world: World, nursery: trio.Nursery, names: str) -> None:
    """The first one, and the others by its address."""
    first, others = names[0], names[1:]
    await nursery.start(world.run, first)
    for name in others:
        await nursery.start(world.run, name, [first])


def headers_of(world: World, name: str) -> list[Header]:
    """Headers of a node's own chain, oldest first."""
    chain = world.participant(name).context.committed.chain
    return [chain.header(head) for head in world.path(name)]


def newest_header(world: World, name: str) -> Header:
    """The header of a node's own head: a look of `until` reads no others."""
    committed = world.participant(name).context.committed
    return committed.chain.header(committed.head)


def credited(world: World, name: str) -> int:
    """Tokens that the headers of this node's own chain credit to it."""
    return sum(tokens_of(world, header, name) for header in headers_of(world, name))


def tokens_of(world: World, header: Header, name: str) -> int:
    """Tokens that one header credits to a node."""
    me = world.identity(name).peer_id
    return sum(member.tokens for member in header.members if member.peer_id == me)


def assert_account_is_true(world: World, name: str) -> None:
    """It balances, and committed is what the chain says."""
    work = world.participant(name).context.work
    assert is_balanced(work.account)
    assert work.head == world.path(name)[-1]
    assert committed_of(work.account) == credited(world, name)
    status = work.status
    fates = (status.committed_on_time, status.committed_late, status.dropped, status.lost)
    assert status.trained == sum(fates) + status.carried
    assert min(*fates, status.carried) >= 0


async def settled(world: World, *names: str) -> None:
    """Waits until the accounts of all nodes are at their heads, as between two rounds."""

    def is_settled(name: str) -> bool:
        return world.participant(name).context.work.head == world.path(name)[-1]

    await world.until(lambda: all(is_settled(name) for name in names))


def simulate(world: World, story: Callable[[trio.Nursery], object]) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await story(nursery)  # type: ignore[misc]
            nursery.cancel_scope.cancel()

    with signatures_checked_once(), averages_computed_once():
        run_simulated(main, world.seed)


def assert_every_token_counted_once(headers: Sequence[Header]) -> None:
    """Every shard was consumed without a gap or an overlap, and all tokens are accounted."""
    counted: dict[int, int] = {}
    for header in headers:
        assert sum(span.stop - span.start for span in header.spans) == header.tokens
        for span in header.spans:
            assert span.start == counted.get(span.partition, 0), "gap or overlap in a shard"
            counted[span.partition] = span.stop
    assert sum(counted.values()) == headers[-1].tokens_total
