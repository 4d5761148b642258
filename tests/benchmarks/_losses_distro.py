"""`distro` in one process: every step is shared, and what is shared are signs (`demo`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np

from gossamer.protocol.manifest import InnerConfig
from gossamer.protocol.model_config import ModelConfig
from gossamer.protocol.state.digest import FloatVector
from gossamer.protocol.state.exact_transform import grids_of
from gossamer.protocol.state.shared_step import shared_rate_at, shared_step, step_codec
from gossamer.trainer.distro.shared_trainer import SharedTrainer
from gossamer.trainer.ipc.messages import SharedSteps, TrainerConfig
from gossamer.trainer.presets.modes import SMALL_DISTRO
from tests.benchmarks._losses_arms import Arm
from tests.benchmarks._losses_diloco import Progress, Setting
from tests.benchmarks._losses_workers import Peer
from tests.benchmarks._parity_training import Curve, Text
from tests.support.local_rounds import begin


class SharedPeer(Peer):
    """A peer that has a part in every step."""

    def __init__(
        self,
        model: ModelConfig,
        inner: InnerConfig,
        steps: SharedSteps,
        text: Text,
        seed: int,
        base: FloatVector,
        device: str = "cpu",
    ) -> None:
        """`base`: (num_parameters,), where all are; only `genesis` writes it."""
        config = TrainerConfig(
            model=model, inner=inner, seed=seed, token_bytes=text.token_bytes, device=device
        )
        trainer = SharedTrainer(config, base, np.zeros_like(base), steps=steps)
        super().__init__(trainer, text)
        self._shared = trainer
        self.update: bytes | None = None
        """The peer's part for the next step, encoded."""

    def begin(self, first: int, steps: int) -> None:
        """A round: what was offered in the last one and not taken stays in the momentum."""
        if self._shared.in_round:
            self._shared.finish()
        self.update = None
        begin(self._shared, 1, first, steps, math.inf)

    def train(self) -> bool:
        """Takes a gradient where all are, and offers; False if there is no more text."""
        if self._shared.step() is None:
            return False
        offer = self._shared.offer()
        self.update = None if offer is None else offer.update
        return True

    def taken(self) -> None:
        """All peers took the part that this peer offered."""
        self._shared.share(taken=True)
        self.update = None


class SharedSwarm:
    """The parameters that all peers share, and the peers."""

    def __init__(self, setting: Setting, steps: SharedSteps, num_peers: int) -> None:
        model, self._inner = setting.model, setting.inner
        self._grids = grids_of(model)
        self._codec = step_codec(model, steps.top_k, steps.chunks)
        self.parameters: FloatVector = np.zeros(model.num_parameters, np.float32)
        self.peers = [
            SharedPeer(
                model,
                self._inner,
                steps,
                setting.text,
                setting.seed,
                self.parameters,
                setting.device,
            )
            for _ in range(num_peers)
        ]
        for number, peer in enumerate(self.peers):
            peer.deal(setting.deal(number))
        self.peers[0].trainer.genesis()

    def take_step(self, step: int, contributors: Sequence[SharedPeer]) -> None:
        """The run's step of that number, from what these peers offered."""
        updates = [self._codec.decode(peer.update) for peer in contributors if peer.update]
        assert len(updates) == len(contributors), "a peer in a step that has nothing for it"
        rate, weight_decay = shared_rate_at(step, self._inner), self._inner.weight_decay
        shared_step(self._grids, self.parameters, updates, rate, weight_decay, self.parameters)
        assert np.isfinite(self.parameters).all()
        for peer in contributors:
            peer.taken()


def train_distro(setting: Setting, arm: Arm) -> Curve:
    """One batch of each peer a step, as `synchronous` with as many peers.

    With `uneven`, no step waits for a slow peer: it takes its gradient where all are, has its part
    in the step during which it is ready, and goes on from there (`node/modes/shared_steps.py`).
    """
    inner = msgspec.structs.replace(
        setting.inner,
        learning_rate=arm.learning_rate or SMALL_DISTRO.learning_rate,
        beta1=SMALL_DISTRO.decay if arm.decay is None else arm.decay,
    )
    steps = SharedSteps(top_k=arm.top_k or SMALL_DISTRO.top_k, lookahead=arm.lookahead)
    swarm = SharedSwarm(replace(setting, inner=inner), steps, arm.num_peers)
    progress, step_tokens = Progress(setting), inner.sequences_per_step * setting.model.context
    for peer in swarm.peers:
        peer.begin(0, inner.total_steps)
    steps_of_parts = [2**late if arm.is_uneven else 1 for late in reversed(range(arm.num_peers))]
    for step in range(inner.total_steps):
        contributors = []
        for peer, steps_of_part in zip(swarm.peers, steps_of_parts, strict=True):
            if step % steps_of_part == 0:
                assert peer.train(), "the corpus is too small for so many steps"
            if (step + 1) % steps_of_part == 0:
                contributors.append(peer)
        swarm.take_step(step, contributors)
        progress.curve.tokens += step_tokens * len(contributors)
        progress.note(step + 1, swarm.parameters)
    return progress.end(swarm.parameters, 0)
