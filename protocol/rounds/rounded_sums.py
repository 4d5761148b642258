"""The sums that one member of a ring encodes, and the rounding errors that it makes in them.

A chunk on its way is the sum of w_i * delta_i over its contributors, with w_i the share of a member
in the ring's capped tokens (`token_caps`). The average is that sum divided by the sum of their w_i.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from gossamer.protocol.codecs.chunk_values import Buffer, Float32Array
from gossamer.protocol.codecs.tensor_codecs import TensorCodec
from gossamer.protocol.token_caps import capped_tokens

_ERROR_SHARE = 0.5
"""Lower bound on the share by which a rounding error is divided, as a part of the mean share. An
error weighs as little in the next ring as its member, so a member with a small share carries it
magnified. If that member does more work in the next round, the magnified error is noise: a member
that came for one step of twenty would add a coarse codec's error twentyfold. With this bound it
forgets a part of its errors."""

Values = Callable[[], Float32Array]
"""Gives the same values, in a new vector, each time that it is called."""


class _Rounded(NamedTuple):
    """Values that a codec rounded."""

    values: Values
    coder: TensorCodec
    encoded: Buffer
    weight: np.float32
    """Divisor of the error: with this weight it comes into the next ring."""

    def error(self) -> Float32Array:
        error = self.values()
        error -= self.coder.decode(self.encoded, error.size)
        error /= self.weight
        return error


class RoundedSums:
    """The newest sum and the newest average of each chunk at one member.

    After a fault a chunk may come round again, and the error of its earlier sum does not count
    then.
    """

    def __init__(self, coder: TensorCodec, tokens: Sequence[int], position: int) -> None:
        """`tokens` of all members, by ring position; `position`: this member's."""
        self._codec = coder
        self._weights = capped_tokens(tokens)
        self._total = sum(self._weights)
        self.share = self.share_of(position)
        self._error_weight = max(self.share, np.float32(_ERROR_SHARE / len(tokens)))
        self._sums: dict[int, _Rounded] = {}
        self._averages: dict[int, _Rounded] = {}

    def share_of(self, position: int) -> np.float32:
        """The share of the member at a ring position."""
        return np.float32(self._weights[position] / self._total)

    def shares_of(self, mask: int) -> float:
        """The sum of the shares of these members; exactly 1 of all."""
        return sum(weight for i, weight in enumerate(self._weights) if mask >> i & 1) / self._total

    def decoded(self, payload: Buffer, num_elements: int, mask: int) -> Float32Array:
        """The values of a sum of these members, (num_elements,). Raises MalformedError."""
        return self._codec.of_sum(mask.bit_count()).decode(payload, num_elements)

    def encode(self, chunk: int, values: Values, num_members: int) -> Buffer:
        """The encoded sum of so many members, this one among them."""
        coder = self._codec.of_sum(num_members)
        return _noted(self._sums, chunk, values, coder, self._error_weight)

    def finish(self, chunk: int, payload: Buffer, num_elements: int, mask: int) -> Buffer:
        """The encoded average of a sum of these members."""
        # Exactly one when all members contribute: a division by almost one would round all values.
        divisor = np.float32(self.shares_of(mask))

        def average() -> Float32Array:
            return self.decoded(payload, num_elements, mask) / divisor

        # An error of the average belongs to the whole ring. As part of this member's next delta it
        # weighs w, so it has to be 1 / w times as large.
        return _noted(self._averages, chunk, average, self._codec, self._error_weight / divisor)

    def error_of(self, chunk: int) -> Float32Array | None:
        """The rounding errors that this member made, in units of its own work; None: it made none.

        They are worked out here, from what came in and what went out. Kept as they are made they
        would take 4 bytes a parameter and more.
        """
        both = (self._sums, self._averages)
        found = [newest[chunk].error() for newest in both if chunk in newest]
        return sum(found[1:], found[0]) if found else None


def _noted(
    newest: dict[int, _Rounded], chunk: int, values: Values, coder: TensorCodec, weight: np.float32
) -> Buffer:
    encoded = coder.encode(values())
    if coder.name != "fp32":
        newest[chunk] = _Rounded(values, coder, encoded, weight)
    return encoded
