"""The faults of a swarm of whole nodes, and how everything heals in the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations
from random import Random
from typing import Any

import trio

from gossamer.protocol.ids import PeerId
from tests.support.added_data import add_part
from tests.support.faults import Fault, FaultInjector, FaultKind
from tests.support.node_world import NumbersTrainer, World, initial_weights
from tests.swarms.standstill import Standstill
from tests.swarms.swarm_story import CRASHES_MAX, SwarmStory

LOOK_SECONDS = 0.1
"""How often it is looked at what is waited for."""

FOUND_SECONDS = 120.0
"""For the first rounds, and copies of all data."""

RESTART_SECONDS = (0.2, 6.0)

DURATIONS: dict[FaultKind, tuple[float, float]] = {
    "restart": RESTART_SECONDS,
    "several": RESTART_SECONDS,
    "blackout": RESTART_SECONDS,
    "freeze": (0.3, 10.0),
    "isolate": (0.3, 10.0),
    "split": (0.3, 10.0),
    "slow": (0.3, 10.0),
    "slow trainer": (0.3, 10.0),
}

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


class SwarmFaults(FaultInjector[str]):
    """Does to a world what its story says. `run` returns when all has healed. Peers are names."""

    def __init__(
        self, world: World, story: SwarmStory, nursery: trio.Nursery, note: Callable[[str], None]
    ) -> None:
        self.counts: Counter[str] = Counter()
        random = Random(f"faults {story.mode} {story.seed}")
        super().__init__(random, DURATIONS, lambda what: self.counts.update([what]))
        self._world = world
        self._story = story
        self._nodes = nursery
        self._faults: trio.Nursery | None = None
        """Holds what is still to heal."""
        self._note = note
        self._standstill = Standstill.install()
        self._num_crashes = 0
        self._begun = {*story.first_names}
        """The peers that were started once, or are about to."""
        self._living: set[str] = set()
        self._seeds: dict[str, list[str]] = {}
        """The peers whose addresses each peer was given when it began."""
        self.frozen: set[str] = set()

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
        """Injects the faults of the story. Returns when the last one is over."""
        began = trio.current_time()
        self._world.network.gossip_faults.loss = self._story.gossip_loss
        async with trio.open_nursery() as nursery:
            self._faults = nursery
            nursery.start_soon(self._add_data, began)
            for fault in self._story.faults:
                await trio.sleep_until(began + fault.seconds)
                self.inject(fault)
        self._faults = None
        self._world.network.gossip_faults.loss = 0.0
        self._note("all has healed")

    async def _add_data(self, began: float) -> None:
        """Has the founder add its parts, each as soon as it is there to do so."""
        founder = self._story.names[0]
        for number, seconds in enumerate(self._story.data_seconds, 1):
            await trio.sleep_until(began + seconds)
            await until(self._has_added_data, FOUND_SECONDS)
            self._note(f"{founder} has added part {number} of the data")

    def _has_added_data(self) -> bool:
        """Has the founder add a part, if it is there to do so. Returns whether it was."""
        founder = self._story.names[0]
        if founder not in self._living or founder in self.frozen:
            return False
        return add_part(self._world, founder)

    def inject(self, fault: Fault) -> None:
        """See `FaultInjector`."""
        self._note(fault.kind)
        super().inject(fault)

    def inject_special(self, fault: Fault, peer: str) -> None:
        """See `FaultInjector`."""
        if fault.kind != "slow trainer":
            super().inject_special(fault, peer)
            return
        node = self._world.participant_or_none(peer)
        if node is None:  # its trainer has not begun
            return
        trainer = node.context.trainer
        assert isinstance(trainer, NumbersTrainer)
        usual, seconds = type(trainer).step_seconds, self.duration(fault)
        # Slowed three times, it would not end its step of 100 s in the time that a swarm has.
        if trainer.step_seconds == usual:
            trainer.step_seconds = SLOW_STEPS * usual
            self.later(seconds, lambda: setattr(trainer, "step_seconds", usual))

    # Primitives

    def peers(self) -> list[str]:
        """See `FaultInjector`."""
        return list(self._story.names)

    def living(self) -> list[str]:
        """See `FaultInjector`."""
        return sorted(self._living)

    def absent(self) -> list[str]:
        """See `FaultInjector`."""
        return [name for name in self._story.names if name not in self._begun]

    def may_stay_away(self, peer: str) -> bool:
        """Each piece of the corpus is with three peers, and private peers need a public one."""
        if self._story.data_seconds and peer == self._story.names[0]:
            return False
        public = [each for each in self._living if each not in self._story.private_names]
        if self._num_crashes >= CRASHES_MAX or len(self._living) <= 2 or public == [peer]:
            return False
        self._num_crashes += 1
        return True

    def later(self, seconds: float, event: Callable[[], None]) -> None:
        """See `FaultInjector`."""

        async def wait() -> None:
            await trio.sleep(seconds)
            event()

        assert self._faults is not None
        self._faults.start_soon(wait)

    def start(self, peer: str) -> None:
        """See `FaultInjector`."""
        assert self._faults is not None
        self._begun.add(peer)
        self._faults.start_soon(self._start, peer)

    async def _start(self, name: str) -> None:
        place = self._story.names.index(name)
        kind = trainer_of(place, self._story.step_seconds[place])
        self._note(f"{name} starts")
        # Addresses of those that run: a newcomer knows one, and a peer that comes back knows all.
        # The line that starts a service has its first seeds in each life. Without them a peer that
        # died before it wrote whom it has met might know private peers alone.
        seeds = {*self._living, *self._seeds.setdefault(name, self.living())}
        await self._nodes.start(self._world.run, name, sorted(seeds), kind)
        self._living.add(name)

    def kill(self, peer: str, *, silently: bool) -> None:
        """See `FaultInjector`."""
        assert not silently
        self._note(f"{peer} dies")
        self._living.discard(peer)
        self._world.crash(peer)
        self._thaw(peer)

    def _thaw(self, name: str) -> None:
        if name in self.frozen:
            self.frozen.discard(name)
            self._world.network.goes_on(self._world.identity(name).peer_id)
            self._standstill.go_on(self._world.tasks[name])

    def freeze(self, peer: str, seconds: float) -> None:
        """See `FaultInjector`."""
        if peer in self.frozen:
            return
        self._note(f"{peer} is stopped for {seconds:.1f} s")
        life = self._world.tasks[peer]
        self.frozen.add(peer)
        self._world.network.stopped(self._world.identity(peer).peer_id)
        self._standstill.stop(life)
        self.later(seconds, lambda: self._thaw(peer) if self._world.tasks[peer] is life else None)

    def break_connection(self, one: str, other: str) -> None:
        """See `FaultInjector`."""
        self._world.network.reset(*self._ids(one, other))

    def cut(self, group: Sequence[str], seconds: float) -> None:
        """See `FaultInjector`."""
        self._note(f"{', '.join(group)} and the others cannot hear each other, {seconds:.1f} s")
        others = [each for each in self._story.names if each not in group]
        pairs = [self._ids(one, two) for one in group for two in others]
        for pair in pairs:
            self._world.network.cut(*pair)

        def heal() -> None:
            for pair in pairs:
                self._world.network.heal(*pair)

        self.later(seconds, heal)

    def slow_down(self, peer: str, seconds: float) -> None:
        """See `FaultInjector`."""
        self._note(f"{peer}'s line is slow for {seconds:.1f} s")
        links = [
            link
            for one, two in combinations(self._story.names, 2)
            if peer in (one, two)
            for link in self._world.network.links(*self._ids(one, two))
        ]

        def set_rate(bytes_per_second: float) -> None:
            for link in links:
                link.bytes_per_second = bytes_per_second

        set_rate(SLOW_LINE)
        self.later(seconds, lambda: set_rate(float("inf")))

    def _ids(self, one: str, other: str) -> tuple[PeerId, PeerId]:
        return self._world.identity(one).peer_id, self._world.identity(other).peer_id
