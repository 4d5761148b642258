"""What goes wrong in a swarm of whole nodes, and how everything heals in the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations
from random import Random
from typing import Any

import trio

from gossamer.protocol.ids import PeerId
from tests.support.node_world import NumbersTrainer, World, initial_weights
from tests.swarms.standstill import Standstill
from tests.swarms.swarm_story import CRASHES_MAX, Fault, SwarmStory

LOOK_SECONDS = 0.1
"""How often it is looked at what is waited for."""

FOUND_SECONDS = 120.0
"""For the first rounds, and copies of all data."""

RESTART_SECONDS = (0.2, 6.0)
"""From a death to the new life, both ends of what is drawn; of several, of all together."""

SLOW_LINE = 3_000.0
"""Bytes a second: gossip gets through, and some hundred bytes take a tenth of a second."""

SLOW_STEPS = 10.0
"""Times as long takes a step of a slow trainer."""


async def until(condition: Callable[[], bool], seconds: float) -> None:
    """Waits in virtual time. TooSlowError."""
    with trio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 - what is watched has no event to wait for
            await trio.sleep(LOOK_SECONDS)


def trainer_of(place: int, seconds: float) -> type[NumbersTrainer]:
    """Of one peer. Its target is not drawn from the path of a folder, as in worlds without seed."""

    class PacedTrainer(NumbersTrainer):
        step_seconds = seconds

        def __init__(self, *arguments: Any, **others: Any) -> None:
            super().__init__(*arguments, **others)
            self._target = initial_weights(place, self.base.size)

    return PacedTrainer


class SwarmFaults:
    """Does to a world what its story says. `run` returns when all has healed."""

    def __init__(
        self, world: World, story: SwarmStory, nursery: trio.Nursery, note: Callable[[str], None]
    ) -> None:
        self._world = world
        self._story = story
        self._nursery = nursery
        self._note = note
        self._random = Random(f"faults {story.mode} {story.seed}")
        self._standstill = Standstill.install()
        self._num_crashes = 0
        self.living: set[str] = set()
        self.frozen: set[str] = set()
        self.counts: Counter[str] = Counter()

    async def found(self) -> None:
        """All that are there from the beginning have begun, and the corpus is not with one only."""
        world, names = self._world, self._story.first_names
        for pair in combinations(self._story.private_names, 2):
            world.network.part(*self._ids(*pair))
        for name in names:
            await self._start(name)
        await until(lambda: min(map(world.round, names)) >= 2, FOUND_SECONDS)
        await until(lambda: world.all_shards_are_with(*names[1:]), FOUND_SECONDS)

    async def run(self) -> None:
        began = trio.current_time()
        self._world.network.gossip_faults.loss = self._story.gossip_loss
        async with trio.open_nursery() as nursery:
            for fault in self._story.faults:
                await trio.sleep_until(began + fault.at_seconds)
                nursery.start_soon(self._inject, fault)
        self._world.network.gossip_faults.loss = 0.0
        self._note("all has healed")

    # Processes

    async def _start(self, name: str) -> None:
        place = self._story.names.index(name)
        kind = trainer_of(place, self._story.step_seconds[place])
        self._note(f"{name} starts")
        # Addresses of those that run: a newcomer knows one, and a peer that comes back knows all.
        await self._nursery.start(self._world.run, name, sorted(self.living), kind)
        self.living.add(name)

    def _kill(self, name: str) -> None:
        self._note(f"{name} dies")
        self.living.discard(name)
        self._world.crash(name)
        self._thaw(name)

    def _thaw(self, name: str) -> None:
        if name in self.frozen:
            self.frozen.discard(name)
            self._world.network.goes_on(self._world.identity(name).peer_id)
            self._standstill.go_on(self._world.tasks[name])

    async def _restart(self, names: Sequence[str]) -> None:
        for name in names:
            self._kill(name)
        for name in self._random.sample(names, len(names)):
            await trio.sleep(self._random.uniform(*RESTART_SECONDS) / len(names))
            await self._start(name)

    # Faults

    async def _inject(self, fault: Fault) -> None:
        living = sorted(self.living)
        if len(living) < 2:
            return
        name, other = self._random.sample(living, 2)
        self.counts[fault.kind] += 1
        self._note(f"{fault.kind} for {fault.for_seconds:.1f} s: {name}, {other}")
        match fault.kind:
            case "crash":
                public = [each for each in living if each not in self._story.private_names]
                is_needed = public == [name]  # without it the others could not find each other
                if self._num_crashes < CRASHES_MAX and len(living) > 2 and not is_needed:
                    self._num_crashes += 1
                    self._kill(name)
            case "restart":
                await self._restart([name])
            case "several":
                await self._restart(
                    self._random.sample(living, self._random.randint(2, len(living)))
                )
            case "blackout":
                await self._restart(living)
            case "freeze":
                await self._freeze(name, fault.for_seconds)
            case "silence":
                others = [each for each in self._story.names if each != name]
                await self._cut([name], others, fault.for_seconds)
            case "break":
                self._world.network.reset(*self._ids(name, other))
            case "split":
                size = self._random.randint(1, len(living) - 1)
                group = self._random.sample(living, size)
                rest = [each for each in self._story.names if each not in group]
                await self._cut(group, rest, fault.for_seconds)
            case "slow line":
                await self._slow_line(name, fault.for_seconds)
            case "slow trainer":
                await self._slow_trainer(name, fault.for_seconds)
            case "join":
                absent = [each for each in self._story.names if each not in self._world.nodes]
                if absent:
                    await self._start(absent[0])

    async def _slow_trainer(self, name: str, seconds: float) -> None:
        node = self._world.participant_or_none(name)
        if node is None:  # its trainer has not begun
            return
        trainer = node.context.trainer
        assert isinstance(trainer, NumbersTrainer)
        usual = trainer.step_seconds
        trainer.step_seconds = SLOW_STEPS * usual
        await trio.sleep(seconds)
        trainer.step_seconds = usual

    def _ids(self, one: str, other: str) -> tuple[PeerId, PeerId]:
        return self._world.identity(one).peer_id, self._world.identity(other).peer_id

    async def _freeze(self, name: str, seconds: float) -> None:
        if name in self.frozen:
            return
        life = self._world.tasks[name]
        self.frozen.add(name)
        self._world.network.stopped(self._world.identity(name).peer_id)
        self._standstill.stop(life)
        await trio.sleep(seconds)
        if self._world.tasks[name] is life:
            self._thaw(name)

    async def _cut(self, group: Sequence[str], others: Sequence[str], seconds: float) -> None:
        pairs = [self._ids(one, two) for one in group for two in others]
        for pair in pairs:
            self._world.network.cut(*pair)
        await trio.sleep(seconds)
        for pair in pairs:
            self._world.network.heal(*pair)

    async def _slow_line(self, name: str, seconds: float) -> None:
        links = [
            link
            for one, two in combinations(self._story.names, 2)
            if name in (one, two)
            for link in self._world.network.links(*self._ids(one, two))
        ]
        for link in links:
            link.bytes_per_second = SLOW_LINE
        await trio.sleep(seconds)
        for link in links:
            link.bytes_per_second = float("inf")
