"""`diloco` in one process: rounds, the ring, the outer step; with overlap, or in fragments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from gossamer.protocol.codecs.inner_products import norm_of
from gossamer.protocol.codecs.payloads import AveragedPayloads, payloads_named
from gossamer.protocol.manifest import InnerConfig, OuterConfig
from gossamer.protocol.model_config import ModelConfig
from gossamer.protocol.rounds.ring.set_parts import ring_average
from gossamer.protocol.state.digest import FloatVector
from gossamer.protocol.state.outer_momentum import rates_of_round
from gossamer.protocol.state.outer_step import nesterov
from gossamer.protocol.state.sync_sets import SyncSets
from gossamer.trainer.ipc.messages import Start
from tests.benchmarks._losses_arms import Arm
from tests.benchmarks._losses_workers import Worker
from tests.benchmarks._parity_training import CURVE_TOKENS, Curve, Heldout, Text, rounds_of

MOMENTUM_MAX = 0.9
"""Largest momentum in use, for rounds that choose their own."""

Deal = Callable[[int], Sequence[int]]
"""Function from a worker to the shards that it trains on."""


@dataclass(frozen=True)
class Setting:
    """Settings that all arms of a seed share."""

    text: Text
    model: ModelConfig
    inner: InnerConfig
    outer: OuterConfig
    sparse_rates: tuple[float, float]
    """Outer learning rate and momentum of `sparse`."""
    seed: int
    deal: Deal
    points: int
    """Number of points of the curve."""
    device: str = "cpu"


class Swarm:
    """The state that all peers share, and the peers."""

    def __init__(self, setting: Setting, num_workers: int) -> None:
        size = setting.model.num_parameters
        self.sync_sets = SyncSets(setting.model, setting.outer)
        self.parameters: FloatVector = np.zeros(size, np.float32)
        """State after the newest round. The trainers see `base`, which may lag behind it."""
        self.momentum: FloatVector = np.zeros(size, np.float32)
        self.base: FloatVector = np.zeros(size, np.float32)
        self.workers = [
            Worker(
                setting.model,
                setting.inner,
                setting.text,
                setting.seed,
                self.base,
                self.sync_sets.whole,
                setting.outer.mixing,
                setting.device,
            )
            for _ in range(num_workers)
        ]
        for number, worker in enumerate(self.workers):
            worker.deal(setting.deal(number))
        self._total_steps = setting.inner.total_steps
        self.momenta: list[float] = []
        """See `Curve`."""
        self.workers[0].trainer.genesis()
        np.copyto(self.parameters, self.base)

    def train_round(
        self,
        number: int,
        first: int,
        steps: Sequence[int],
        delay: float,
        members: Sequence[Worker],
    ) -> list[int]:
        """Inner steps of one round, so many of each member; the newest state arrives after the part
        `delay` of them. Returns the members' tokens."""
        earlier = self.sync_sets.whole if number == 1 else self.sync_sets.of_round(number - 1)
        is_whole = earlier is self.sync_sets.whole
        new = tuple((part.start, part.stop) for part in earlier.ranges)
        delay = delay if number > 1 else 0
        if not delay:
            self.publish()
        late = [max(1, round(delay * each)) if delay else 0 for each in steps]
        for worker, num_steps, num_late in zip(members, steps, late, strict=True):
            start: Start = "local" if delay or not is_whole else "base"
            worker.begin(number, first, num_steps, start, () if delay else new)
            worker.train(num_late)
        if delay:
            self.publish()
        for worker, num_steps, num_late in zip(members, steps, late, strict=True):
            if delay and worker.has_begun:
                worker.trainer.rebase(new)
            worker.train(num_steps - num_late)
        return [worker.finish().tokens for worker in members]

    def take_round(
        self,
        number: int,
        members: Sequence[Worker],
        tokens: Sequence[int],
        outer: OuterConfig,
        payloads: AveragedPayloads,
    ) -> None:
        """The ring of these members, in this order, and the outer step."""
        sync_set = self.sync_sets.of_round(number)
        carried = [worker.pending[sync_set.within] for worker in members]
        norms = [norm_of(values) for values in carried]
        average = ring_average(carried, tokens, sync_set.plan, payloads, outer.error_decay)
        pieces = (  # as the daemon adds them up
            (average[sync_set.plan.range_of(chunk)][of_chunk], self.momentum[part])
            for chunk in range(sync_set.plan.num_chunks)
            for part, of_chunk in sync_set.pieces_of(chunk)
        )
        rates = rates_of_round(outer, self._total_steps, number, pieces, norms)
        rate, mu, average = rates.learning_rate, rates.momentum, rates.of_average(average)
        self.momenta.append(mu)
        start = 0
        for part in sync_set.ranges:
            parameters, momentum = self.parameters[part], self.momentum[part]
            of_average = average[start : start + parameters.size]
            nesterov(parameters, momentum, of_average, rate, mu, parameters, momentum)
            start += parameters.size

    def publish(self) -> None:
        """The newest state becomes known to the trainers."""
        np.copyto(self.base, self.parameters)


class Progress:
    """The curve of an arm as it grows."""

    def __init__(self, setting: Setting) -> None:
        self._heldout = Heldout(setting.text, setting.model, setting.device)
        self._total = setting.inner.total_steps
        self._every = max(1, self._total // setting.points)
        self._next = self._every
        self.curve = Curve()

    def note(self, step: int, parameters: FloatVector) -> None:
        if self._next <= step < self._total:
            self._next = step + self._every
            self.curve.add(step, self._heldout.loss(parameters, CURVE_TOKENS))

    def end(self, parameters: FloatVector, rounds: int) -> Curve:
        self.curve.rounds = rounds
        self.curve.add(self._total, self._heldout.loss(parameters))
        return self.curve


def outer_of(setting: Setting, arm: Arm) -> OuterConfig:
    """The preset's outer step with what the arm changes.

    Raises:
        ValueError: fragments that do not divide the inner steps, as no manifest may have them.
    """
    if arm.inner_steps % arm.fragments:
        raise ValueError(f"{arm.name}: {arm.fragments} fragments of {arm.inner_steps} steps")
    changes: dict[str, object] = {
        "inner_steps": arm.inner_steps,
        "codec": arm.codec,
        "fragments": arm.fragments,
        "mixing": arm.mixing,
    }
    if arm.cold:
        changes["warmup_rounds"] = 0
    if arm.displacement:
        changes.update(displacement=arm.displacement, learning_rate=1.0, momentum=MOMENTUM_MAX)
    if arm.rates is not None:
        changes["learning_rate"], changes["momentum"] = arm.rates
    return msgspec.structs.replace(setting.outer, **changes)


def delay_of(arm: Arm, outer: OuterConfig, number: int) -> float:
    """Part of round `number` after which the last round's result arrives; `Arm.overlap`."""
    return 0 if outer.is_warmup(number) and not arm.overlap_warmup else arm.overlap


def train_diloco(setting: Setting, arm: Arm) -> Curve:
    """All parameters at once, or in fragments that have their turn one after the other."""
    outer = outer_of(setting, arm)
    payloads = payloads_named(outer.codec)
    return train_rounds(replace(setting, outer=outer), arm, lambda _number: payloads)


def train_rounds(
    setting: Setting, arm: Arm, payloads_of: Callable[[int], AveragedPayloads]
) -> Curve:
    """All rounds, with the setting's outer step; `payloads_of` a round's number."""
    outer, total = setting.outer, setting.inner.total_steps
    swarm, progress = Swarm(setting, arm.num_peers), Progress(setting)
    num_rounds = rounds_of(outer, total)
    for number in range(1, num_rounds + 1):
        first = outer.first_inner_step_of(number)
        steps = min(outer.inner_steps_of(number), total - first)
        active = swarm.workers[: arm.num_peers_at(first / total)]
        delay = delay_of(arm, outer, number)
        tokens = swarm.train_round(number, first, arm.steps_of(steps, len(active)), delay, active)
        swarm.take_round(number, active, tokens, outer, payloads_of(number))
        progress.curve.tokens += sum(tokens)
        progress.note(first + steps, swarm.parameters)
    progress.curve.momenta = swarm.momenta
    return progress.end(swarm.parameters, num_rounds)
