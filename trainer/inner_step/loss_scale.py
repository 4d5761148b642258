"""The scale of a loss in fp16, whose range is too small for gradients.

The loss is multiplied by it before the backward pass, and the gradient is divided by it afterwards
(Mixed precision training, arXiv 1710.03740, section 3.2). It is a power of two, so that this
changes no bits but those of numbers that would be zero or infinite. If the gradient is not finite,
the scale is halved and the same batch is taken again.
"""

from __future__ import annotations

SCALE_FIRST = 2.0**16
_SCALE_MAX = 2.0**24
"""A larger one is of no use: the smallest number of fp16 is 2^-24."""

GOOD_STEPS = 2_000
"""Steps without an overflow after which the scale is doubled, as in torch's `GradScaler`."""


class LossScale:
    """The scale at present, and what is known of it."""

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
