"""The wall clock jumps by a day, or a year: nothing here may depend on it.

One process has one wall clock, so where nodes differ in it they get a clock of their own. Real
daemons under a faked clock are in tests/e2e/faults/test_faults_node.py.
"""

from __future__ import annotations

import itertools
import random
import shutil
import time
from pathlib import Path

import pytest
import trio
import trio.testing
from libp2p.peer.id import ID

from gossamer.node.app import assembly
from gossamer.node.base.disk_health import DiskError
from gossamer.node.network.identity import Identity
from gossamer.node.network.over_libp2p.gossip.router import GuardedGossipSub
from gossamer.node.network.over_libp2p.host import open_libp2p_transport
from gossamer.node.storage.incarnation import Incarnation
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.limits import INCARNATION_MAX
from tests.support.node_world import World, simulate

DAY_SECONDS = 86_400
DAY = DAY_SECONDS * 10**9
YEAR = 365 * DAY
NOW = 1_800_000_000 * 10**9


@pytest.fixture
def state_dir(tmp_path: Path) -> StateDir:
    return StateDir(tmp_path)


def life(state_dir: StateDir, now: int) -> int:
    return Incarnation(state_dir, lambda: now, bytes).number


def test_every_life_has_a_higher_number_whatever_the_clock_says(state_dir: StateDir) -> None:
    assert life(state_dir, NOW) == NOW
    numbers = [life(state_dir, now) for now in (NOW, NOW - DAY, 0, -DAY, NOW + DAY, NOW, 2**80)]
    assert numbers == sorted(set(numbers))
    assert numbers[0] > NOW
    assert numbers[4] == NOW + DAY
    assert numbers[-1] < INCARNATION_MAX
    # A directory that comes from a machine whose clock was wrong goes on from there.
    assert life(state_dir, NOW) == numbers[-1] + 1


@pytest.mark.parametrize("content", ["", "soon", "-5", str(2**63), str(2**200)])
def test_a_damaged_number_is_no_number(state_dir: StateDir, content: str) -> None:
    (state_dir.root / "incarnation").write_text(content)
    assert life(state_dir, NOW) == NOW


def test_a_number_that_others_know_to_be_higher(
    state_dir: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = Incarnation(state_dir, lambda: NOW, bytes)
    assert not mine.raise_above(NOW - 1)
    assert mine.raise_above(NOW)
    assert mine.raise_above(NOW + YEAR)
    assert mine.number == NOW + YEAR + 1
    assert not mine.raise_above(INCARNATION_MAX), "there is nothing above it"
    assert mine.number == NOW + YEAR + 1
    mine.save()
    assert life(state_dir, NOW) == NOW + YEAR + 2

    def refuse(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", refuse)
    assert mine.raise_above(NOW + 2 * YEAR), "this life counts, on disk or not"
    mine.save()
    assert state_dir.health.problem is not None
    with pytest.raises(DiskError):
        Incarnation(state_dir, lambda: NOW)


def test_two_lives_with_one_file_and_one_clock_have_different_numbers(tmp_path: Path) -> None:
    folders = [StateDir(tmp_path / name) for name in "ab"]
    for folder in folders:
        folder.create()
        (folder.root / "incarnation").write_text(str(NOW))
    lives = [Incarnation(folder, lambda: 0) for folder in folders]
    assert lives[0].number != lives[1].number
    assert all(NOW < each.number <= NOW + 2**32 for each in lives)
    # Also where peers tell both of the same life, and neither number came to the disk.
    assert all(each.raise_above(NOW + YEAR) for each in lives)
    assert lives[0].number != lives[1].number
    (folders[0].root / "incarnation").write_text(str(INCARNATION_MAX - 1))
    last = Incarnation(folders[0], lambda: 0)
    assert last.number == INCARNATION_MAX, "no peer takes a higher one"


def test_rounds_go_on_while_the_clock_jumps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, seed=30)
    real, offset_seconds = time.time, 0.0
    monkeypatch.setattr(time, "time", lambda: real() + offset_seconds)
    monkeypatch.setattr(time, "time_ns", lambda: int((real() + offset_seconds) * 1e9))

    async def story(nursery: trio.Nursery) -> None:
        nonlocal offset_seconds
        await nursery.start(world.run, "a")
        await nursery.start(world.run, "b", ["a"])
        await nursery.start(world.run, "c", ["a"])
        await world.reach(6, *"abc")
        chain = world.participant("a").context.committed.chain
        await world.until(lambda: len(chain.header(world.path("a")[-1]).members) == 3)
        for jump_seconds in (DAY_SECONDS, -DAY_SECONDS, 0.0):
            offset_seconds = jump_seconds
            before, started = world.round("a"), trio.current_time()
            await world.reach(before + 4, *"abc")
            assert trio.current_time() - started < 10
            rings = [len(chain.header(head).members) for head in world.path("a")[before:]]
            assert min(rings) == 3
        world.assert_one_chain(*"abc")

    simulate(world, story)


@pytest.mark.parametrize("keeps_its_file", [True, False])
def test_a_node_that_comes_back_with_its_clock_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeps_its_file: bool
) -> None:
    world = World(tmp_path, seed=31)
    clocks = itertools.chain([NOW, NOW + YEAR], itertools.repeat(NOW - DAY))
    monkeypatch.setattr(
        assembly,
        "Incarnation",
        lambda state_dir, _clock, *more: Incarnation(state_dir, lambda: next(clocks), *more),
    )

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await nursery.start(world.run, "b", ["a"])
        peer = world.identity("b").peer_id
        await world.reach(6, "a", "b")
        known = world.participant("a").context.swarm.membership.known()[peer]
        assert known.incarnation == NOW + YEAR
        world.crash("b")
        await world.reach(world.round("a") + 2, "a")
        if not keeps_its_file:
            (tmp_path / "b" / "incarnation").unlink()
        await nursery.start(world.run, "b", ["a"])
        started = trio.current_time()
        swarm = world.participant("a").context.swarm
        await world.until(lambda: peer in swarm.living())
        assert trio.current_time() - started < 5
        assert swarm.living()[peer].incarnation > NOW + YEAR
        chain = world.participant("a").context.committed.chain
        await world.until(lambda: len(chain.header(world.path("a")[-1]).members) == 2)
        world.assert_one_chain("a", "b")
        world.crash("b")
        assert life(StateDir(tmp_path / "b"), 0) > NOW + YEAR + 1

    simulate(world, story)


def test_lives_from_one_back_up_have_different_numbers_while_the_clock_is_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No peer is there that could tell a life of the one before. Both sign their work, and two
    signatures under one number are a proof against their author."""
    world = World(tmp_path, seed=32, random_bytes=random.Random(32).randbytes)
    clocks = itertools.chain([NOW, NOW], itertools.repeat(NOW - DAY))
    monkeypatch.setattr(
        assembly,
        "Incarnation",
        lambda state_dir, _clock, *more: Incarnation(state_dir, lambda: next(clocks), *more),
    )

    async def end() -> None:
        world.crash("b")
        await world.until(lambda: not StateDir(tmp_path / "b").is_in_use())

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, "a")
        await nursery.start(world.run, "b", ["a"])
        await world.until(lambda: world.all_shards_are_with("b"))
        await world.reach(world.round("a") + 2, "a", "b")
        lives = [world.participant("b").context.swarm.incarnation]
        await end()
        shutil.copytree(tmp_path / "b", tmp_path / "back-up")
        ends = (world.identity("a").peer_id, world.identity("b").peer_id)
        world.network.cut(*ends)
        for _ in range(2):
            began = world.round("b")
            await nursery.start(world.run, "b")
            await world.reach(began + 2, "b")
            lives.append(world.participant("b").context.swarm.incarnation)
            await end()
            shutil.rmtree(tmp_path / "b")
            shutil.copytree(tmp_path / "back-up", tmp_path / "b")
        assert len({*lives}) == 3
        world.network.heal(*ends)
        await nursery.start(world.run, "b", ["a"])
        chain = world.participant("a").context.committed.chain
        await world.until(lambda: len(chain.header(world.path("a")[-1]).members) == 2)
        assert world.participant("a").context.swarm.num_banned == 0

    simulate(world, story)


def test_gossip_waits_as_long_when_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        router = GuardedGossipSub([], 1, 1, 1)
        peer = ID(b"peer")
        router._add_back_off(peer, "topic", False)
        router._add_back_off(peer, "other topic", False, 10**9)  # what it says is no more than ours
        monkeypatch.setattr(time, "time", lambda real=time.time: real() - DAY_SECONDS)
        assert router._check_back_off(peer, "topic")
        await trio.sleep(router.prune_back_off + 1)
        assert not router._check_back_off(peer, "topic")
        assert not router._check_back_off(peer, "other topic")
        assert not router._check_back_off(ID(b"another"), "topic")

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_gossip_is_heard_after_a_restart_with_the_clock_set_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listen = ("/ip4/127.0.0.1/tcp/0",)

    async def say(identity: Identity, hub: str, text: bytes, heard: list[bytes]) -> None:
        async with open_libp2p_transport(identity, ()) as peer:
            peer.subscribe("news", lambda _author, _data: False)
            await peer.connect(hub)
            while text not in heard:
                await peer.publish("news", text)
                await trio.sleep(0.1)

    async def main() -> None:
        heard: list[bytes] = []
        identity = Identity.generate()
        with trio.fail_after(60):
            async with open_libp2p_transport(Identity.generate(), listen) as hub:
                hub.subscribe("news", lambda _author, data: heard.append(data))
                await say(identity, hub.addresses()[0], b"today", heard)
                real, real_ns = time.time, time.time_ns
                monkeypatch.setattr(time, "time", lambda: real() - DAY_SECONDS)
                monkeypatch.setattr(time, "time_ns", lambda: real_ns() - DAY)
                await say(identity, hub.addresses()[0], b"yesterday", heard)

    trio.run(main)
