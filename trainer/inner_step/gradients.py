"""The gradient of one inner step, in as many passes as the device's memory makes necessary."""

from __future__ import annotations

import gc
import logging
import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from gossamer.trainer.compiling.compiler import Compiler
from gossamer.trainer.inner_step.optimizer import gradient_norm
from gossamer.trainer.inner_step.step_clock import StepClock
from gossamer.trainer.model import Decoder
from gossamer.trainer.resources.device import Device, is_out_of_memory
from gossamer.trainer.resources.passes import Pass, Passes
from gossamer.trainer.text.data import num_targets

SCALE_FIRST = 2.0**16
_SCALE_MAX = 2.0**24
"""A larger one is of no use: the smallest number of fp16 is 2^-24."""

GOOD_STEPS = 2_000
"""Steps without an overflow after which the scale is doubled, as in torch's `GradScaler`."""


class LossScale:
    """The scale of a loss in fp16, whose range is too small for gradients (arXiv 1710.03740,
    section 3.2).

    It is a power of two, so that it changes no bits but those of numbers that would be zero or
    infinite. If a gradient is not finite, it is halved and the same batch is taken again.
    """

    def __init__(self) -> None:
        self.value = SCALE_FIRST
        self._num_good = 0

    def went_well(self) -> None:
        """A gradient was finite."""
        self._num_good += 1
        if self._num_good >= GOOD_STEPS:
            self.value, self._num_good = min(2 * self.value, _SCALE_MAX), 0

    def overflowed(self) -> bool:
        """A gradient was not finite. False if no smaller scale is left."""
        self._num_good = 0
        if self.value <= 1.0:
            return False
        self.value /= 2
        return True


log = logging.getLogger(__name__)


STEADY_STEPS = 8
"""Steps with a share of the same size after which layers are compiled for it. Shares of unlike
devices are found in the first steps."""


class TrainerError(RuntimeError):
    """Training cannot go on. The message says why, for people."""


class Gradients:
    """Takes gradients of a model in micro-batches, whose sum is the gradient of the batch."""

    def __init__(
        self,
        decoder: Decoder,
        device: Device,
        passes: Passes,
        on_progress: Callable[[], None],
        clock: StepClock | None = None,
        compiler: Compiler | None = None,
    ) -> None:
        """
        Args:
            on_progress: is called after every micro-batch.
            clock: is told what begins; None: nobody asks it.
            compiler: is asked between steps for compiled layers; None: there are none.
        """
        self._decoder, self._device = decoder, device
        self._parameters = list(decoder.parameters())
        self._on_progress = on_progress
        self._clock, self._compiler = clock or StepClock(), compiler
        self.passes = passes
        self._scale = LossScale()
        """In use if the device needs one."""
        self._share, self._num_steady = 0, 0
        """Sequences of the last step, and how many steps have had as many."""

    def take(self, sequences: NDArray[np.int64]) -> tuple[float, float]:
        """(mean loss in nats, norm of the gradient, which is left in `.grad`).

        Args:
            sequences: (num_sequences, context + 1)

        Raises:
            TrainerError: memory does not suffice for a single sequence.
        """
        # Without any targets loss and gradient are 0.
        return self.take_part(sequences, max(1, num_targets(sequences)))

    def _largest_pass(self, num_sequences: int) -> Pass | None:
        """Returns the size of the passes for which layers are compiled; None: not known yet.

        One of several devices takes a share of a step, and `passes` are sized by the whole step.
        """
        self._num_steady = self._num_steady + 1 if num_sequences == self._share else 0
        self._share = num_sequences
        size = self.passes.proven
        if size is None or size.sequences <= num_sequences:
            return size
        if self._num_steady < STEADY_STEPS:
            return None
        return size._replace(sequences=num_sequences)

    def take_part(self, sequences: NDArray[np.int64], targets: int) -> tuple[float, float]:
        """As `take`, of some sequences of a step with so many targets: their part of the mean loss,
        and the norm of their part of the gradient."""
        if self._compiler is not None:
            self._compiler.look(self._largest_pass(len(sequences)))
        self._clock.begins("forward")
        on_device = torch.from_numpy(sequences).to(self._device.torch_device)
        while True:
            self.passes.begins()
            try:
                loss = self._add_up(on_device, targets)
                self._clock.begins("optimizer")
                # One wait for the device a step: both numbers at once.
                loss_value, norm = torch.stack((loss, gradient_norm(self._parameters))).tolist()
                self.passes.worked()
                if self._is_in_range(loss_value, norm):
                    return loss_value, norm
                self.drop()
                continue
            except Exception as error:
                if not is_out_of_memory(error):
                    if self._compiler is None or not self._compiler.gave_up(error):
                        raise
                    self.drop()
                    continue
            # Here the error is gone, and with it the frames that hold the failed pass.
            self._make_room(*sequences.shape)

    def _add_up(self, sequences: torch.Tensor, targets: int) -> torch.Tensor:
        """The mean loss over so many targets: ()"""
        size = self.passes.present
        self._decoder.checkpointing = size.checkpointing
        scale = self._scale.value if self._device.needs_loss_scale else 1.0
        loss = torch.zeros((), device=sequences.device)
        for micro_batch in torch.split(sequences, size.sequences):
            self._clock.begins("forward")
            with self._device.autocast():
                part = self._decoder.loss_sum(micro_batch) / targets
            self._clock.begins("backward")
            scaled = part if scale == 1.0 else part * scale
            scaled.backward()  # type: ignore[no-untyped-call]
            loss += part.detach()
            self._on_progress()
        if scale != 1.0:
            gradients = [p.grad for p in self._parameters if p.grad is not None]
            torch._foreach_mul_(gradients, 1.0 / scale)
        return loss

    def _is_in_range(self, loss: float, norm: float) -> bool:
        """False if the batch is to be taken again, with a smaller scale of the loss.

        The forward pass has no scale: where the loss itself is not finite, it is the model's.
        """
        if not self._device.needs_loss_scale or not math.isfinite(loss):
            return True
        if math.isfinite(norm):
            self._scale.went_well()
            return True
        return not self._scale.overflowed()

    def drop(self) -> None:
        """Forgets the gradient in `.grad`."""
        for parameter in self._parameters:
            parameter.grad = None

    def _make_room(self, num_sequences: int, num_tokens: int) -> None:
        """Drops what is left of a failed pass, and makes the next one smaller.

        Args:
            num_tokens: of a sequence, its first input among them.
        """
        self.drop()
        gc.collect()
        self._device.release_memory()
        failed = min(self.passes.present.sequences, num_sequences)
        if not self.passes.failed(num_sequences):
            raise TrainerError(
                f"{self._device.name} has too little memory for one sequence of "
                f"{num_tokens - 1} tokens with {self._decoder.flat.numel()} parameters "
                f"({self.passes.numbers}): {self._device.memory_advice}"
            )
        size = self.passes.present
        again = ", with activations computed twice" if size.checkpointing else ""
        log.warning(
            "out of memory with %d sequences at once, trying %d%s", failed, size.sequences, again
        )
