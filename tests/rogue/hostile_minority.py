"""Eight whole nodes of one run, of which three send lies in place of their work, in virtual time.

A hostile node follows the protocol to the letter, but for two things: its trainer hands it the lie
of an attack (`tests.support.lies`), and each of its `Ready`s claims the most tokens that are
plausible. It is a rushing adversary: the lies are made from the work that the honest trainers hand
to their nodes in the same round.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar
from unittest.mock import patch

import msgspec
import numpy as np
import trio

from gossamer.node.base.settings.settings import Settings
from gossamer.node.modes.sync_mode import Promise
from gossamer.node.rounds.opening import OpenRound
from gossamer.node.storage.state.committed import CommittedState
from gossamer.protocol.codecs import chunk_values
from gossamer.protocol.codecs.chunk_values import Float32Array
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.manifest import Manifest, decode_manifest
from gossamer.protocol.policy.plausible_work import WorkBounds
from gossamer.protocol.state.chain import Header, credits_of
from gossamer.trainer.ipc import messages
from tests.rogue.test_influence import largest_parameter
from tests.support import jumping_clock
from tests.support.lies import NOBODY, attack_of
from tests.support.node_world import (
    NumbersTrainer,
    World,
    assert_account_is_true,
    headers_of,
    settled,
    simulate,
    target_of,
    tokens_of,
)

HONEST, HOSTILE = "abcde", "fgh"
ALL = HONEST + HOSTILE
ROUNDS = 12
"""Rounds that are counted. A node that is left out of one of them misses the share below."""

CREDITED_SHARE_MIN = 0.95
"""Share of its rounds in which each honest node is credited."""

OWN_PART = np.float32(0.5)
"""Spread of the honest targets about a common one. Without a common part the work of honest members
has no mean from which a lie could differ."""

RUSH_SECONDS = 0.5
"""For so long a liar waits for the work of the honest members: they finish a round together, and
collect far more time for a `Ready`."""

LOOK_SECONDS = 0.01


@dataclass
class Overheard:
    """What the liars know of the honest members' work."""

    work: dict[int, dict[str, Float32Array]] = field(default_factory=dict)
    """By round and by name: the vector that the honest trainer handed to its node."""

    async def of_round(self, number: int) -> Float32Array | None:
        """The work of the honest members in a round, (members, num_elements); None without any."""
        with trio.move_on_after(RUSH_SECONDS):
            await jumping_clock.until(
                lambda: len(self.work.get(number, ())) == len(HONEST), LOOK_SECONDS
            )
        found = self.work.get(number)
        return np.stack([*found.values()]) if found else None


def common_target(optimizer_path: str, num_parameters: int) -> Float32Array:
    """The target of all nodes, with a part of the node's own."""
    own = target_of(Path(optimizer_path), num_parameters)
    return target_of(Path("one/trainer/for_all"), num_parameters) + OWN_PART * own


class Honest(NumbersTrainer):
    """It goes to a target near those of the others, and the liars hear of its work."""

    overheard: ClassVar[Overheard]
    _number = 0

    def __init__(self, manifest: Manifest, settings: Settings, optimizer_path: str) -> None:
        super().__init__(manifest, settings, optimizer_path)
        self._name = Path(optimizer_path).parent.parent.name
        self._target = common_target(optimizer_path, self.base.size)

    async def train(self, begin: messages.Begin) -> messages.Finished:
        self._number = begin.round
        return await super().train(begin)

    async def collect(self) -> bool:
        is_usable = await super().collect()
        self.overheard.work.setdefault(self._number, {})[self._name] = self.pending.copy()
        return is_usable


class Hostile(Honest):
    """It sends what its attack says in place of its work, and claims the most tokens it may."""

    attack: ClassVar[str]

    def __init__(self, manifest: Manifest, settings: Settings, optimizer_path: str) -> None:
        super().__init__(manifest, settings, optimizer_path)
        self._place = HOSTILE.index(self._name)
        self._claim = WorkBounds(manifest).tokens_max
        self._draw = np.random.default_rng(self._place)
        self._honest_targets = np.stack(
            [common_target(f"{name}/trainer/of_each", self.base.size) for name in HONEST]
        )

    def _lie(self, own: Float32Array, others: Float32Array | None) -> Float32Array:
        attack = attack_of(self.attack, self._number, self._place)
        assert attack is not None
        # A member that alone has work in a round hears of nobody else's.
        heard = own[np.newaxis] if others is None else others
        return np.asarray(attack(own, heard, self._draw), np.float32)

    async def train(self, begin: messages.Begin) -> messages.Finished:
        finished = await super().train(begin)
        if self._shares or not finished.tokens:
            return finished
        return msgspec.structs.replace(finished, tokens=self._claim)

    async def collect(self) -> bool:
        self.pending[:] = 0  # what an encoded lie left over is no work
        is_usable = await NumbersTrainer.collect(self)
        if not self._shares:
            others = await self.overheard.of_round(self._number)
            self.pending[:] = self._lie(self.pending.copy(), others)
        return is_usable

    async def _share(self, round_number: int, deadline: float) -> None:
        """The signs of a lie about where it would go."""
        true = self._target
        lie = self._lie(true - self.base, self._honest_targets - self.base)
        self._target = self.base + lie
        await super()._share(round_number, deadline)
        self._target = true


@dataclass
class Notes:
    """What the nodes of a world claimed, and which heads they took over."""

    claimed: dict[tuple[PeerId, Digest], set[int]] = field(default_factory=dict)
    """By author and parent: the tokens in its `Ready`s to the round after that parent."""

    taken_over: list[tuple[CommittedState, Digest]] = field(default_factory=list)

    def assert_none_was_left(self, world: World, name: str, after: int) -> None:
        """Each head of a round after that one which the node took over is in its chain."""
        committed = world.participant(name).context.committed
        path = {*world.path(name)}
        for state, head in self.taken_over:
            if state is committed and head not in path:
                assert committed.chain.entry(head).round <= after

    def assert_covers(self, header: Header, authors: set[PeerId]) -> None:
        """No header credits one of these authors with more than it claimed."""
        for peer, tokens in credits_of(header).items():
            if peer in authors and tokens:
                assert tokens <= max(self.claimed.get((peer, Digest(header.parent)), {0}))


@contextmanager
def claiming(liars: set[PeerId], bound: int) -> Iterator[Notes]:
    """In this context the liars' `Ready`s claim what the bound allows. What all nodes claim and
    take over is noted."""
    notes = Notes()
    say_ready = OpenRound.say_ready

    def said(self: OpenRound, promise: Promise, loss: float | None) -> None:
        machine = self.driver.machine
        if machine._me in liars:
            promise = replace(promise, tokens=bound)
        notes.claimed.setdefault((machine._me, machine.head), set()).add(promise.tokens)
        say_ready(self, promise, loss)

    def assigned(self: CommittedState, name: str, value: object) -> None:
        object.__setattr__(self, name, value)
        if name == "head":
            notes.taken_over.append((self, self.head))

    with (
        patch.object(CommittedState, "__setattr__", assigned),
        patch.object(OpenRound, "say_ready", said),
        # The node of a liar lets out all that a receiver takes. Honest work is far below both.
        patch.object(chunk_values, "WORK_MAGNITUDE_MAX", chunk_values.MAGNITUDE_MAX),
    ):
        yield notes


@dataclass(frozen=True)
class Outcome:
    """What came of one attack."""

    num_rounds: int
    honest: tuple[int, ...]
    """Rounds in which each honest node is credited."""
    hostile: tuple[int, ...]
    """Rounds in which each hostile node is credited."""
    largest: float
    """The largest magnitude of a parameter of the honest nodes."""

    @property
    def lowest_share(self) -> float:
        """Share of the rounds in which the honest node is credited that is credited least."""
        return min(self.honest) / self.num_rounds


def credited_under(root: Path, codec: str, attack: str, rounds: int = ROUNDS) -> Outcome:
    """Lets five honest nodes and three hostile ones work together for some rounds.

    It counts from the first round in which all eight are credited. It also asserts that the honest
    nodes are on one chain with one state, and never took over another head since then. What their
    accounts say of committed tokens is what the chain says, and no header credits an honest node
    with tokens that it did not claim.
    """
    world = World(root, seed=43, codec=codec, trust="open")
    overheard = Overheard()
    honest = type("Honest", (Honest,), {"overheard": overheard})
    lying = type("Hostile", (Hostile,), {"overheard": overheard, "attack": attack})
    hostile = lying if attack != NOBODY else honest
    liars = {world.identity(name).peer_id for name in HOSTILE if attack != NOBODY}
    bound = WorkBounds(decode_manifest(world.signed.manifest)).tokens_max
    headers: list[Header] = []

    async def story(nursery: trio.Nursery) -> None:
        await nursery.start(world.run, ALL[0], (), honest)
        for name in ALL[1:]:
            await nursery.start(world.run, name, ALL[:1], honest if name in HONEST else hostile)

        def all_are_in() -> bool:
            return all(
                any(tokens_of(world, each, name) for each in headers_of(world, "a")) for name in ALL
            )

        await world.until(all_are_in, look_seconds=LOOK_SECONDS)
        began = world.round("a")
        await world.reach(began + rounds, *HONEST, seconds=600.0)
        await world.come_together(*HONEST, seconds=60.0)
        await settled(world, *HONEST)
        for name in HONEST:
            assert_account_is_true(world, name)
            notes.assert_none_was_left(world, name, began)
        headers.extend(headers_of(world, "a"))
        headers[:] = [each for each in headers if began < each.round <= began + rounds]

    with claiming(liars, bound) as notes:
        simulate(world, story)
    for header in headers:
        notes.assert_covers(header, {world.identity(name).peer_id for name in HONEST})
    taken = {credits_of(header).get(liar, 0) for header in headers for liar in liars}
    assert taken <= {0, bound}, "a liar claims less than it may"

    def num_credited(name: str) -> int:
        return sum(tokens_of(world, header, name) > 0 for header in headers)

    return Outcome(
        len(headers),
        tuple(map(num_credited, HONEST)),
        tuple(map(num_credited, HOSTILE)),
        largest_parameter(world, HONEST),
    )
