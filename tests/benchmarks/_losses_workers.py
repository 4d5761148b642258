"""The peers of an arm: each is a `LocalTrainer` with its share of the text and what it carries."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gossamer.protocol.manifest import InnerConfig
from gossamer.protocol.model_config import ModelConfig
from gossamer.protocol.state.digest import FloatVector
from gossamer.protocol.state.run_end import SchedulePlace
from gossamer.protocol.state.sync_sets import SyncSet
from gossamer.protocol.wire.statements import Span
from gossamer.trainer.ipc.messages import Finished, Ranges, Start, TrainerConfig
from gossamer.trainer.local_trainer import LocalTrainer
from tests.benchmarks._parity_training import Text
from tests.support.local_rounds import begin


def place_at(inner: InnerConfig, first: int) -> SchedulePlace | None:
    """The place of the round after `first` inner steps in a schedule of tokens, in a swarm of
    constant size; None without one."""
    schedule = inner.schedule
    if not schedule:
        return None
    step_tokens = schedule.total_tokens // inner.total_steps
    return SchedulePlace(
        schedule=schedule, tokens_before=first * step_tokens, tokens_per_step=step_tokens
    )


class Peer:
    """One peer without its daemon: a trainer, and the text that it reads."""

    def __init__(self, trainer: LocalTrainer, text: Text) -> None:
        self.trainer = trainer
        self._text = text

    def deal(self, shards: Sequence[int]) -> None:
        """Queues whole shards."""
        self._text.push_shards(self.trainer.push, shards)

    def deal_spans(self, spans: Sequence[Span]) -> None:
        """Queues what a member of a real swarm trained on, in absolute positions."""
        self._text.push_spans(self.trainer.push, spans)


class Worker(Peer):
    """A peer that trains by itself and hands over its work."""

    def __init__(
        self,
        model: ModelConfig,
        inner: InnerConfig,
        text: Text,
        seed: int,
        base: FloatVector,
        sync_set: SyncSet,
        mixing: float = 0.0,
        device: str = "cpu",
    ) -> None:
        """`base`: (num_parameters,), the state that the peers share; only `genesis` writes it.
        `sync_set`: all parameters."""
        self._inner = inner
        self._sync_set = sync_set
        self._update = np.zeros_like(base)
        self.pending = np.zeros_like(base)
        """Work that no round has taken, in exchange order."""
        config = TrainerConfig(
            model=model,
            inner=inner,
            seed=seed,
            token_bytes=text.token_bytes,
            device=device,
            mixing=mixing,
        )
        trainer = LocalTrainer(config, base, self._update)
        super().__init__(trainer, text)
        self.has_begun = False

    def begin(
        self, number: int, first: int, steps: int, start: Start = "base", new: Ranges = ()
    ) -> None:
        """A peer that is new has nothing of its own to go on from."""
        start = start if self.has_begun else "base"
        begin(
            self.trainer, number, first, steps, math.inf, start, new, place_at(self._inner, first)
        )

    def train(self, steps: int) -> None:
        for _ in range(steps):
            assert self.trainer.step() is not None, "the corpus is too small for so many steps"

    def finish(self) -> Finished:
        """Ends the round; its work is added to `pending`."""
        self.has_begun = True
        finished = self.trainer.finish()
        self._sync_set.add_work(self._update, self.pending)
        return finished
