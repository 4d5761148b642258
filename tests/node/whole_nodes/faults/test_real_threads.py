"""Whole nodes whose work is done in real threads, each as late as a seed says.

The other tests of whole nodes run on virtual time, where thread work is done inline: they are the
same every time, and show no race. Here two threads, or a thread and the event loop, are really at
work at once: before and after each piece of work a thread sleeps for a while, the outer step sleeps
between its chunks, and small blocks are stored and served by threads as large ones are. The clock
is a real one that runs `RATE` times as fast, so that the waits of the protocol are over sooner.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio
import trio.testing

from gossamer.node.peers.blocks import fetching
from gossamer.node.rounds import ring_chunks
from gossamer.node.storage.state import next_state
from gossamer.node.storage.state.committed import CommittedState, Replayed
from gossamer.node.storage.state.next_state import NextState
from gossamer.node.storage.state.state_blocks import CannotRebuildError, StateVectors
from gossamer.protocol.ids import Digest
from gossamer.protocol.state.digest import FloatVector, StateIndex
from gossamer.protocol.state.outer_step import nesterov
from tests.support.node_world import World, assert_account_is_true, settled, start

T = TypeVar("T")
COMPUTE = NextState.compute

RATE = 4.0
"""Seconds of the nodes in one second here. Their shortest wait for each other, 10 s for a link that
is silent, is still far longer than a busy machine keeps a process waiting."""

WORK_SECONDS_MAX = 0.01
"""Real seconds that a thread sleeps at most before its work, and after it."""

CHUNK_SECONDS_MAX = 0.004
"""Real seconds that an outer step sleeps at most before a chunk: a model is a few of them."""

LEFT_SECONDS = 4.0
"""Real seconds that a thread is at most at work for a round that was left. It is overtaken after
`heads.OVERTAKEN_SECONDS`, a third of this."""

LOOK_SECONDS = 0.02
"""Time between two looks of a test at the nodes: they need the time to work."""


class SlowThreads:
    """Runs work in real threads. Its delays are drawn from a seed; what comes of them is not."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._counting = threading.Lock()
        self.num_at_once = 0
        self.num_at_once_max = 0
        """Threads that were at work at the same time."""

    async def __call__(self, function: Callable[[], T], /) -> T:
        before, after = (self._random.uniform(0.0, WORK_SECONDS_MAX) for _ in range(2))

        def work() -> T:
            self._count(1)
            try:
                time.sleep(before)
                result = function()
                time.sleep(after)
                return result
            finally:
                self._count(-1)

        return await trio.to_thread.run_sync(work)

    def _count(self, change: int) -> None:
        with self._counting:
            self.num_at_once += change
            self.num_at_once_max = max(self.num_at_once_max, self.num_at_once)


class _OfThread(threading.local):
    """The outer step that a thread computes."""

    chunk = 0
    num_chunks = 0
    role = ""


class OuterSteps:
    """Outer steps that sleep before each chunk. One of them can be made to last for long."""

    def __init__(self) -> None:
        self._random = random.Random(0)
        self._of_thread = _OfThread()
        self.lasting: FloatVector | None = None
        """Parameters of the state whose next outer step lasts until a replay after the first one
        has all but its last chunk, or for `LEFT_SECONDS`."""
        self.is_left = threading.Event()
        self._go_on, self._has_ended = threading.Event(), threading.Event()
        self._num_after = 0

    def compute(
        self,
        state: NextState,
        present: StateVectors,
        number: int,
        averages: list[bytes],
        *rest: Any,
    ) -> StateIndex:
        mine = self._of_thread
        mine.chunk, mine.num_chunks, mine.role = 0, len(averages), ""
        if present.parameters is self.lasting:
            if not self.is_left.is_set():
                self.is_left.set()
                mine.role = "left"
            elif not self._has_ended.is_set():
                self._num_after += 1
                mine.role = "after" if self._num_after > 1 else ""
        try:
            return COMPUTE(state, present, number, averages, *rest)
        finally:
            if mine.role == "left":
                self._has_ended.set()
            mine.role = ""  # the step in place, after the commit, lasts as usual

    def nesterov(self, *arguments: Any) -> None:
        mine = self._of_thread
        mine.chunk += 1
        if mine.role == "left" and mine.chunk == 2:
            self._go_on.wait(LEFT_SECONDS)
        elif mine.role == "after" and mine.chunk == mine.num_chunks:
            self._go_on.set()
            self._has_ended.wait(LEFT_SECONDS)
        elif mine.role != "left":
            time.sleep(self._random.uniform(0.0, CHUNK_SECONDS_MAX))
        nesterov(*arguments)


@pytest.fixture(autouse=True)
def outer_steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[OuterSteps]:
    steps = OuterSteps()
    monkeypatch.setattr(next_state, "nesterov", steps.nesterov)
    monkeypatch.setattr(NextState, "compute", lambda *arguments: steps.compute(*arguments))
    for module in (fetching, ring_chunks):
        monkeypatch.setattr(module, "INLINE_BYTES_MAX", 0)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield steps
    sys.setswitchinterval(interval)


def world_with_threads(root: Path, seed: int, **settings: object) -> World:
    return World(
        root,
        seed,
        run_in_thread=SlowThreads(seed),
        look_seconds=LOOK_SECONDS,
        **settings,  # type: ignore[arg-type]
    )


def live(world: World, story: Callable[[trio.Nursery], object]) -> None:
    """Tells the story in real time. Threads have to have been at work at once."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await story(nursery)  # type: ignore[misc]
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(rate=RATE))
    threads = world.run_in_thread
    assert isinstance(threads, SlowThreads)
    assert threads.num_at_once == 0, "a thread outlives its node"
    assert threads.num_at_once_max > 1


async def assert_at_rest(world: World, names: str) -> None:
    """All pause on one head: their states are whole and the same, and their accounts true."""
    for name in names:
        world.participant(name).pause()
    await world.until(
        lambda: all(world.participant(name).progress.phase == "paused" for name in names)
    )
    await world.until(lambda: len({world.path(name)[-1] for name in names}) == 1)
    await settled(world, *names)
    await trio.sleep(1.0)  # what is saved once more after that
    world.assert_one_chain(*names)
    for name in names:
        assert_account_is_true(world, name)


@pytest.mark.long
@pytest.mark.parametrize("codec", ["int8", "distro"])
def test_rounds_go_on_and_digests_agree(tmp_path: Path, codec: str) -> None:
    world = world_with_threads(tmp_path, 51, codec=codec, overlap=codec == "int8")

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "abc")
        await world.reach(8, *"abc")
        await assert_at_rest(world, "abc")

    live(world, story)


def test_a_peer_dies_in_mid_ring(tmp_path: Path) -> None:
    world = world_with_threads(tmp_path, 52)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "abcd")
        await world.reach(4, *"abcd")
        await world.until(lambda: world.participant("c").progress.phase == "averaging")
        before = world.round("a")
        world.crash("c")
        await world.reach(before + 3, *"abd")
        await nursery.start(world.run, "c", ["b"])
        await world.reach(before + 6, *"abcd")
        await assert_at_rest(world, "abcd")

    live(world, story)


@pytest.mark.long
def test_a_newcomer_catches_up(tmp_path: Path) -> None:
    world = world_with_threads(tmp_path, 53, fragments=2)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "ab")
        await world.reach(8, *"ab")
        await nursery.start(world.run, "c", ["a"])
        await world.reach(world.round("a") + 3, *"abc")
        await assert_at_rest(world, "abc")

    live(world, story)


@pytest.mark.long
def test_a_peer_that_is_overtaken_in_its_outer_step_replays_the_round(
    tmp_path: Path, outer_steps: OuterSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its driver is left with a thread at work, which goes on while rounds are replayed."""
    world = world_with_threads(tmp_path, 55)
    problems: list[str] = []
    replay = CommittedState.replay

    def noted(state: CommittedState, head: Digest) -> Replayed:
        try:
            return replay(state, head)
        except CannotRebuildError as error:
            problems.append(str(error))
            raise

    monkeypatch.setattr(CommittedState, "replay", noted)

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "abcd")
        await world.reach(4, *"abcd")
        outer_steps.lasting = world.participant("c").context.committed.parameters
        await world.until(outer_steps.is_left.is_set)
        before = world.round("c")
        await world.reach(before + 4, *"abcd")
        assert not problems
        await assert_at_rest(world, "abcd")

    live(world, story)


@pytest.mark.long
def test_a_split_heals(tmp_path: Path) -> None:
    """One half leaves its rounds, in the middle of a ring or not, and replays the others'."""
    world = world_with_threads(tmp_path, 54)
    pairs = [
        (world.identity(one).peer_id, world.identity(other).peer_id)
        for one in "ab"
        for other in "cd"
    ]

    async def story(nursery: trio.Nursery) -> None:
        await start(world, nursery, "abcd")
        await world.reach(3, *"abcd")
        await world.until(
            lambda: world.all_shards_are_with("a", "b") and world.all_shards_are_with("c", "d")
        )
        for pair in pairs:
            world.network.cut(*pair)
        await world.reach(max(map(world.round, "abcd")) + 3, *"abcd")
        assert not world.is_one_chain("a", "c")
        for pair in pairs:
            world.network.heal(*pair)
        await world.until(lambda: world.is_one_chain(*"abcd"))
        await world.reach(max(map(world.round, "abcd")) + 2, *"abcd")
        await assert_at_rest(world, "abcd")

    live(world, story)
