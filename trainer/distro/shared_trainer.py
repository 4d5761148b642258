"""One peer's trainer in rounds of shared steps (`sync = "distro"`): it takes gradients, and no step
of its own.

Its step takes a gradient at the state that all share, and adds it to the decoupled momentum
(`decoupled_momentum`). The step itself is the same on all peers (`shared_step`) and comes with
`base`. So a round has no work that could be carried: what the swarm did not take stays in the
momentum.

The momentum is kept over restarts, and saved with its place in the chain: what was taken up to
there is out of it, and what later rounds took is not. Only the daemon knows whether they took
anything, so it has to confirm a momentum that was loaded (`keep_momentum`). Otherwise the first
round drops it, because nothing may be counted twice.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from gossamer.protocol.state.shared_step import step_codec
from gossamer.trainer.checkpoint import SavedMomentum, load_momentum, save_momentum
from gossamer.trainer.distro.dct import ModelDct
from gossamer.trainer.distro.decoupled_momentum import Momentum
from gossamer.trainer.ipc import messages
from gossamer.trainer.ipc.messages import TrainerConfig
from gossamer.trainer.local_trainer import LocalTrainer


class SharedTrainer(LocalTrainer):
    """Model, data queue and momentum of one peer. Not for use from several threads."""

    def __init__(
        self,
        config: TrainerConfig,
        base: NDArray[np.float32],
        pseudo_gradient: NDArray[np.float32],
        on_progress: Callable[[], None] = lambda: None,
        *,
        steps: messages.SharedSteps,
    ) -> None:
        """See `LocalTrainer`. At `optimizer_path` is the momentum."""
        super().__init__(config, base, pseudo_gradient, on_progress)
        device = self.device.torch_device
        dct = ModelDct(config.model, device)
        self._momentum = Momentum(dct, device, top_k=steps.top_k, decay=config.inner.beta1)
        self._codec = step_codec(config.model, steps.top_k, steps.chunks)
        self._has_lookahead = steps.lookahead
        self._last_rate = 0.0
        self._is_offered = False
        self._was_spoilt = False
        """Whether the momentum had a value out of range, and nothing was added since."""
        self._is_in_doubt = False
        """True from loading a saved momentum until the daemon says whether to keep it."""
        if problem := self._with_file(self._load_momentum):
            self.optimizer_problem = f"{problem}; the momentum starts at zero"

    @property
    def waits_for_others(self) -> bool:
        return self._is_offered

    def begin(self, task: messages.Begin) -> None:
        """See `LocalTrainer`. The last offer, if it was not taken, stays in the momentum."""
        self._is_offered = False
        if self._is_in_doubt:
            self.keep_momentum(keep=False)
        super().begin(task)

    def _make_optimizer(self) -> None:
        return None

    def offer(self) -> messages.Shared | None:
        """Returns what is to be sent after the newest step; None if there is nothing to send."""
        if self._was_spoilt:
            return None
        self._is_offered = True
        update = self._codec.encode(self._momentum.offer())
        return messages.Shared(round=self.round.task.round, update=update)

    def share(self, *, taken: bool) -> None:
        """Tells the momentum what became of the newest offer."""
        self._is_offered = False
        if taken:
            self._momentum.taken()

    def keep_momentum(self, *, keep: bool) -> None:
        """Keeps or clears the momentum that was loaded. Allowed between rounds only."""
        self._require_between_rounds("KeepMomentum")
        self._is_in_doubt = False
        if not keep:
            self._momentum.clear()

    def save(self, place: messages.Place | None = None) -> str:
        """Writes the momentum; returns why it could not, or the empty string.

        A momentum that the daemon has not confirmed yet is on the disk already, with its place.
        """
        if place is None or self._is_in_doubt:
            return ""
        saved = SavedMomentum(self._momentum.values, self._last_rate, place)
        return self._with_file(lambda path: save_momentum(saved, self._config.model, path))

    def _load_momentum(self, path: Path) -> None:
        saved = load_momentum(self._config.model, path)
        self._momentum.restore(saved.values)
        self._last_rate, self.loaded_momentum = saved.last_rate, saved.place
        self._is_in_doubt = True

    @torch.no_grad()
    def _take_position(self) -> None:
        self._handover.load_base()
        if self._has_lookahead:
            self._momentum.look_ahead(self._decoder.flat, self._last_rate)

    @torch.no_grad()
    def _use_gradients(self, learning_rate: float) -> bool:
        self._momentum.add(p.grad for p in self._parameters if p.grad is not None)
        self._last_rate = learning_rate
        self._was_spoilt = not self._momentum.is_usable
        if self._was_spoilt:
            # It would be there for good, and the strongest frequencies would be its own.
            self._momentum.clear()
        return not self._was_spoilt

    def finish(self) -> messages.Finished:
        """Ends the round. `pseudo_gradient` is zero: nothing is this peer's own."""
        finished = super().finish()
        self._pseudo_gradient[:] = 0.0
        return finished
