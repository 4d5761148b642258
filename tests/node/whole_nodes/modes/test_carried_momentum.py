"""The momentum of shared steps over restarts, in whole nodes and virtual time: it is kept where
nothing of it was taken since. Gradients are noise; momentum, parts and files are the trainer's."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import trio

from gossamer.node.rounds import settlement, turn
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.storage.state.shared_parameters import sign_payloads
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.codecs.contributions import split
from gossamer.protocol.ids import Digest
from gossamer.protocol.state.chain import decode_update_index
from gossamer.protocol.state.shared_step import step_codec
from gossamer.trainer.distro.shared_trainer import SharedTrainer
from gossamer.trainer.ipc import messages
from gossamer.trainer.ipc.messages import TrainerConfig
from tests.support.local_rounds import begin
from tests.support.node_world import (
    NumbersTrainer,
    World,
    assert_account_is_true,
    headers_of,
    settled,
    simulate,
    tokens_of,
)

STALE_ROUNDS = 5
"""Stale rounds of the manifest in these worlds."""


class Origin:
    """The origin of a momentum: its beginning at zero, and the parts that left it since."""

    def __init__(self, birth: object, taken: frozenset[bytes] = frozenset()) -> None:
        self.birth, self.taken = birth, taken


class SharingTrainer(NumbersTrainer):
    """Its momentum, what it sends of it and its file are the real trainer's."""

    births: dict[bytes, object]
    """The birth of the momentum behind each part, of all nodes and lives."""
    files: dict[bytes, Origin]
    """Origins of momentum files, by their content."""

    def __init__(self, *arguments: Any, **others: Any) -> None:
        super().__init__(*arguments, **others)
        self.path = Path(arguments[2])
        self.lives = 0
        self.begun_with: list[np.ndarray] = []
        """The momentum at the beginning of each round."""
        self.kept: list[bool] = []
        """The answers to the question whether a loaded momentum is kept."""
        self.offered: list[bytes] = []
        self.is_up = False
        self.resume()

    def resume(self) -> None:
        """Starts a worker, which finds the files that are on disk. It is called at the beginning
        too."""
        if self.is_up:
            return
        outer = self._manifest.outer
        config = TrainerConfig(
            model=self._manifest.model,
            inner=self._manifest.inner,
            seed=7,
            token_bytes=2,
            device="cpu",
            optimizer_path=str(self.path),
        )
        steps = messages.SharedSteps(
            top_k=outer.top_k, chunks=outer.chunks_of_step, lookahead=outer.lookahead
        )
        self._codec = step_codec(config.model, outer.top_k, outer.chunks_of_step)
        self.worker = SharedTrainer(config, self.base, np.zeros_like(self.base), steps=steps)
        self.loaded_momentum, self.is_up = self.worker.loaded_momentum, True
        self.lives += 1
        self._draw = torch.Generator().manual_seed(random.randrange(2**32))
        self.origin = Origin(object())
        if self.loaded_momentum is not None:
            self.origin = self.files[self.path.read_bytes()]

    async def suspend(self) -> None:
        await super().suspend()
        self.is_up = False

    @property
    def momentum(self) -> np.ndarray:
        return self.worker._momentum.values.numpy().copy()

    async def train(self, task: messages.Begin) -> messages.Finished:
        begin(self.worker, task.round, 0, 10**6, 1e9)
        self.begun_with.append(self.momentum)
        if not self.momentum.any():
            self.origin = Origin(object())
        finished = await super().train(task)
        self.worker.finish()
        return finished

    async def _share(self, round_number: int, deadline: float) -> None:
        shapes = [parameter.shape for parameter in self.worker._parameters]
        self.worker._momentum.add(torch.randn(shape, generator=self._draw) for shape in shapes)
        offer = self.worker.offer()
        assert offer is not None
        # The last chunk is the largest: its bytes are no other offer's.
        part = self._codec.cut(offer.update)[-1]
        self.offered.append(part)
        self.births[part] = self.origin.birth
        self._shared = trio.Event()
        self._listener.shared(messages.Shared(round=round_number, update=offer.update))
        with trio.move_on_at(deadline):
            while not (self._shared.is_set() or self._stop):
                with trio.move_on_after(self.step_seconds):
                    await self._shared.wait()

    async def share(self, *, taken: bool) -> None:
        self.worker.share(taken=taken)
        if taken:
            self.origin = Origin(self.origin.birth, self.origin.taken | {self.offered[-1]})
        await super().share(taken=taken)

    async def keep_momentum(self, *, keep: bool) -> None:
        self.kept.append(keep)
        self.worker.keep_momentum(keep=keep)

    async def save(self, place: messages.Place) -> None:
        if self.is_up:
            assert self.worker.save(place) == ""
            self.files[self.path.read_bytes()] = self.origin


class Blocks:
    """All blocks that any node ever stored: a node itself evicts old ones."""

    contents: dict[bytes, bytes]


@pytest.fixture(autouse=True)
def _all_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    put = BlockStore.put

    def keep(store: BlockStore, data: bytes, **others: Any) -> Digest:
        digest = put(store, data, **others)
        Blocks.contents[digest] = bytes(data)
        return digest

    monkeypatch.setattr(Blocks, "contents", {}, raising=False)
    monkeypatch.setattr(BlockStore, "put", keep)


@pytest.fixture(autouse=True)
def _as_in_long_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of these worlds are shorter than 30 s: here it is saved at each commit."""
    monkeypatch.setattr(settlement, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(SharingTrainer, "births", {}, raising=False)
    monkeypatch.setattr(SharingTrainer, "files", {}, raising=False)


def world_of(root: Path, seed: int, **others: Any) -> World:
    random.seed(seed)
    return World(root, seed=seed, codec="distro", **others)


def trainer_of(world: World, name: str) -> SharingTrainer:
    trainer = world.participant(name).context.trainer
    assert isinstance(trainer, SharingTrainer)
    return trainer


async def start(world: World, nursery: trio.Nursery, names: str) -> None:
    """Starts nodes, until they have made some rounds and hold all data."""
    first, others = names[0], names[1:]
    await nursery.start(world.run, first, (), SharingTrainer)
    for name in others:
        await nursery.start(world.run, name, [first], SharingTrainer)
    await world.reach(5, *names)
    await world.until(lambda: world.all_shards_are_with(*others))


async def come_back(world: World, nursery: trio.Nursery, name: str) -> SharingTrainer:
    """A new life of a node, up to its first round."""
    del world.nodes[name]
    await nursery.start(world.run, name, ["a"] if name != "a" else ["b"], SharingTrainer)
    await world.until(lambda: world.participant_or_none(name) is not None)
    trainer = trainer_of(world, name)
    await world.until(lambda: bool(trainer.begun_with))
    return trainer


async def leave(world: World, name: str) -> None:
    """Leaves in order; returns when the node's directory is free."""
    world.nodes[name].leave()
    lock = StateDir(world.root / name).lock_path
    await world.until(lambda: not lock.read_bytes())


def parts_in_chain(world: World, name: str) -> set[bytes]:
    """All of a node's own that its chain has, of a step in several chunks that in the last."""
    manifest, found = world.nodes[name].inputs.manifest, set[bytes]()
    coder = sign_payloads(manifest.model, manifest.outer).coder
    me, chunks = world.identity(name).peer_id, manifest.outer.chunks_of_step
    for header in headers_of(world, name):
        mine = [i for i, member in enumerate(header.members) if member.peer_id == me]
        index = Blocks.contents[header.update_digest]
        of_all = decode_update_index(
            index, manifest.outer.inner_steps * chunks, len(header.members), may_lack=True
        )
        for average in of_all.averages[chunks - 1 :: chunks]:
            records = split(Blocks.contents[average.digest], None, coder.chunk_bytes_max)
            found |= {bytes(r.block) for r in records if r.position in mine and len(r.block)}
    return found


def assert_nothing_counts_twice(world: World, name: str) -> None:
    """Asserts that the parts of a node's present momentum that the chain has are not in the
    momentum any more."""
    trainer = trainer_of(world, name)
    origin, births = trainer.origin, trainer.births
    mine = {part for part in parts_in_chain(world, name) if births[part] is origin.birth}
    assert mine, "nothing of it was ever sent"
    assert mine <= origin.taken


async def go_on(world: World, names: str) -> None:
    """Some rounds together."""
    await world.reach(world.round("a") + 3, *names)
    await world.until(lambda: world.is_one_chain(*names))
    await settled(world, *names)
    world.assert_one_chain(*names)
    for name in names:
        assert_account_is_true(world, name)
        assert_nothing_counts_twice(world, name)


@pytest.mark.long
@pytest.mark.parametrize("rounds_missed", [0, STALE_ROUNDS - 1])
def test_a_node_that_leaves_goes_on_from_its_momentum(tmp_path: Path, rounds_missed: int) -> None:
    world = world_of(tmp_path, 1, wait_for_peers=1)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "ab")
        await leave(world, "b")
        momentum = trainer_of(world, "b").momentum
        assert momentum.any()
        await world.reach(world.round("b") + rounds_missed, "a")
        trainer = await come_back(world, nursery, "b")
        assert trainer.begun_with[0].tobytes() == momentum.tobytes()
        await go_on(world, "ab")
        times_asked = len(trainer.kept)
        await go_on(world, "ab")
        assert all(trainer.kept)
        assert len(trainer.kept) == times_asked, "it is asked for ever"

    simulate(world, story)


@pytest.mark.long
def test_a_node_that_leaves_before_its_ring_is_committed_keeps_what_that_did_not_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn, "LEAVE_SECONDS", 0.5)
    world = world_of(tmp_path, 2, wait_for_peers=2, inner_steps=40)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "abc")
        began = world.round("b")
        await world.until(lambda: len(trainer_of(world, "b").offered) % 40 == 20)
        await leave(world, "b")
        assert world.round("a") == began
        momentum = trainer_of(world, "b").momentum
        await world.reach(began + 1, "a", "c")
        assert tokens_of(world, headers_of(world, "a")[began], "b"), "the ring has no part of it"
        trainer = await come_back(world, nursery, "b")
        assert world.round("b") > began
        assert trainer.begun_with[0].tobytes() == momentum.tobytes()
        await go_on(world, "abc")
        assert all(trainer.kept)

    simulate(world, story)


@pytest.mark.long
def test_a_stale_momentum_is_dropped(tmp_path: Path) -> None:
    world = world_of(tmp_path, 3, wait_for_peers=1)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "ab")
        await leave(world, "b")
        await world.reach(world.round("b") + STALE_ROUNDS + 1, "a")
        trainer = await come_back(world, nursery, "b")
        await go_on(world, "ab")
        assert trainer.kept[-1] is False
        assert any(not momentum.any() for momentum in trainer.begun_with)

    simulate(world, story)


@pytest.mark.long
def test_a_node_that_is_killed_in_a_ring_does_not_send_again_what_that_takes(
    tmp_path: Path,
) -> None:
    """It is back before that ring is committed, and goes on from its file until then."""
    world = world_of(tmp_path, 4, wait_for_peers=2, inner_steps=60)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "abc")
        began = world.round("b")
        await world.until(lambda: len(trainer_of(world, "b").offered) % 60 == 10)
        world.crash("b")
        await trio.sleep(0.1)
        trainer = await come_back(world, nursery, "b")
        assert world.round("a") == began
        assert trainer.begun_with[0].any()
        await world.reach(began + 2, *"abc")
        assert tokens_of(world, headers_of(world, "a")[began], "b") > 0
        await go_on(world, "abc")
        assert trainer.kept[0]
        assert trainer.kept[-1] is False
        dropped = next(i for i, momentum in enumerate(trainer.begun_with) if not momentum.any())
        assert all(momentum.any() for momentum in trainer.begun_with[dropped + 1 :])

    simulate(world, story)


def test_all_are_killed_and_go_on_from_the_momentum_of_their_last_commit(tmp_path: Path) -> None:
    world = world_of(tmp_path, 5, wait_for_peers=1)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "ab")
        await world.until(lambda: len(trainer_of(world, "a").offered) % 4 == 2)
        for name in "ab":
            world.crash(name)
        saved = {name: trainer_of(world, name).path.read_bytes() for name in "ab"}
        await trio.sleep(1.0)
        del world.nodes["a"], world.nodes["b"]
        await nursery.start(world.run, "a", (), SharingTrainer)
        await nursery.start(world.run, "b", ["a"], SharingTrainer)
        await world.until(lambda: all(world.participant_or_none(name) for name in "ab"))
        for name in "ab":
            trainer = trainer_of(world, name)
            await world.until(lambda trainer=trainer: bool(trainer.begun_with))  # type: ignore[misc]
            assert trainer.begun_with[0].any()
            assert trainer.begun_with[0].tobytes() == saved[name][-4 * trainer.base.size :]
        await go_on(world, "ab")
        assert all(trainer_of(world, "b").kept)

    simulate(world, story)


def test_a_pause_keeps_it(tmp_path: Path) -> None:
    world = world_of(tmp_path, 6, wait_for_peers=1)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "ab")
        trainer, b = trainer_of(world, "b"), world.participant("b")
        b.pause()
        await world.until(lambda: b.progress.phase == "paused")
        momentum, rounds = trainer.momentum, len(trainer.begun_with)
        await world.reach(world.round("a") + 2, "a")
        b.resume()
        await world.until(lambda: len(trainer.begun_with) > rounds)
        assert trainer.lives == 2
        assert trainer.begun_with[rounds].tobytes() == momentum.tobytes()
        await go_on(world, "ab")

    simulate(world, story)


def test_on_another_head_it_is_dropped(tmp_path: Path) -> None:
    world = world_of(tmp_path, 7, wait_for_peers=2)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "abc")
        peers = {name: world.identity(name).peer_id for name in "abc"}
        for name in "ac":
            world.network.cut(peers["b"], peers[name])
        began = world.round("b")
        await world.reach(began + 2, *"abc")
        world.crash("b")
        head = world.path("b")[-1]
        for name in "ac":
            world.network.heal(peers["b"], peers[name])
        await world.reach(world.round("b") + 2, "a", "c")
        trainer = await come_back(world, nursery, "b")
        assert trainer.loaded_momentum is not None
        await world.until(lambda: world.is_one_chain(*"abc") and world.round("b") > began + 2)
        await go_on(world, "abc")
        assert head not in world.path("b")
        assert trainer.kept[-1] is False
        assert any(not momentum.any() for momentum in trainer.begun_with)

    simulate(world, story)


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_a_damaged_file_costs_the_momentum_and_nothing_else(tmp_path: Path, damage: str) -> None:
    world = world_of(tmp_path, 8, wait_for_peers=1)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "ab")
        await leave(world, "b")
        path = trainer_of(world, "b").path
        content = bytearray(path.read_bytes())
        content[-7] ^= 1
        path.write_bytes({"cut": content[:-9], "flipped": content, "empty": bytearray()}[damage])
        trainer = await come_back(world, nursery, "b")
        assert str(path) in trainer.worker.optimizer_problem
        assert not trainer.begun_with[0].any()
        await go_on(world, "ab")
        assert trainer.kept == []

    simulate(world, story)


@pytest.mark.long
@pytest.mark.parametrize("step_chunks", [1, 2])
@pytest.mark.parametrize("seed", range(20, 22))
def test_nothing_counts_twice_under_churn(tmp_path: Path, seed: int, step_chunks: int) -> None:
    world = world_of(tmp_path, seed, inner_steps=10, step_chunks=step_chunks)
    draw = random.Random(seed)
    num_kept = 0

    async def story(nursery: trio.Nursery) -> None:
        nonlocal num_kept
        await start(world, nursery, "abc")
        for _ in range(8):
            name = draw.choice("bc")
            await trio.sleep(draw.uniform(0.0, 2.0))
            if draw.random() < 0.5:
                world.crash(name)
                await trio.sleep(draw.uniform(0.0, 2.0))
            else:
                await leave(world, name)
            trainer = await come_back(world, nursery, name)
            num_kept += bool(trainer.begun_with[0].any())
            await world.until(lambda: world.is_one_chain(*"abc"))
            await world.reach(world.round("a") + 1, *"abc")
        await go_on(world, "abc")

    simulate(world, story)
    assert num_kept > 1
