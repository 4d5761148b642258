"""The vectors that an optimiser keeps, in fp32, in bf16, or in 8 bits.

    fp32   4 bytes an element
    bf16   2 bytes. A value is rounded up or down so that the mean over the steps is right: a moment
           changes by less than half a unit of bf16 in many a step, and would stand still if it were
           always rounded to the nearest
    8bit   1 byte, and 4 for each block of 256 elements: "8-bit Optimizers via Block-wise
           Quantization" (Dettmers and others 2021, arXiv 2110.02861). A block is divided by its
           largest magnitude, and each element becomes the nearest of 256 numbers (`code_values`)

An update reads some elements as fp32, changes them and writes them (`MomentVector`). What the
update itself computes is the same in all formats. Blocks and pieces end where a parameter ends.

bitsandbytes has kernels for some devices only, and torchao compiles its update, which takes seconds
and a compiler at each start. Plain operations of torch take a small part of a step.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.trainer.ipc.choices import MomentFormat
from gossamer.trainer.resources.memory_estimate import MOMENT_BLOCK

PIECE_ELEMENTS = 2**22
"""Elements that are in fp32 at once, a multiple of a block: some 100 MB with all that the update
makes of them. A smaller piece leaves a GPU idle between its kernels."""

_BF16_SHIFT = 2**16
"""A float's bits below those that bf16 keeps are a number below this."""

_TURN_STRIDE, _ELEMENT_STRIDE = 40503, 25173
"""Odd numbers; the first one is the golden ratio's part of 2^16. So multiples of it modulo 2^16 are
spread evenly, over any run of steps (an additive recurrence)."""


class Span(NamedTuple):
    """A piece of one parameter's elements."""

    start: int
    """Its first element in the flat vector."""
    length: int
    block: int
    """Its first block of the flat vector's."""

    @property
    def stop(self) -> int:
        return self.start + self.length


class MomentVector(ABC):
    """A flat vector of an optimiser."""

    is_signed: bool
    """False if no element may be negative."""

    @property
    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Its tensors, by the end of a name: an empty one, or `.scales`."""

    @abstractmethod
    def is_whole(self, spans: Sequence[Span]) -> bool:
        """Whether it covers these spans, and has numbers in all of them that an update can use."""

    @abstractmethod
    def read(self, span: Span) -> Tensor:
        """(length,) fp32. With fp32 it is the vector's own memory."""

    @abstractmethod
    def write(self, span: Span, values: Tensor, turn: int) -> None:
        """Keeps what `read` has given and an update has changed.

        Args:
            values: (length,) fp32, which are overwritten.
            turn: number of the update; it chooses which values are rounded up.
        """


class _Plain(MomentVector):
    """One number for each element."""

    def __init__(self, values: Tensor, *, is_signed: bool) -> None:
        self._values, self.is_signed = values, is_signed

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {"": self._values}

    def is_whole(self, spans: Sequence[Span]) -> bool:
        values = self._values
        if values.shape != (_num_elements(spans),) or not bool(torch.isfinite(values).all()):
            return False
        return self.is_signed or not bool((values < 0).any())


class _Fp32(_Plain):
    def read(self, span: Span) -> Tensor:
        return self._values[span.start : span.stop]

    def write(self, span: Span, values: Tensor, turn: int) -> None:
        own = self.read(span)
        if own.data_ptr() != values.data_ptr():
            own.copy_(values)


class _Bf16(_Plain):
    def read(self, span: Span) -> Tensor:
        return self._values[span.start : span.stop].float()

    def write(self, span: Span, values: Tensor, turn: int) -> None:
        first = turn * _TURN_STRIDE + span.start * _ELEMENT_STRIDE
        thresholds = torch.arange(span.length, dtype=torch.int32, device=values.device)
        thresholds.mul_(_ELEMENT_STRIDE).add_(first % _BF16_SHIFT).bitwise_and_(_BF16_SHIFT - 1)
        bits = values.view(torch.int32)
        # Magnitude and sign are apart in these bits, so that this rounds away from zero or to it.
        bits.add_(thresholds).bitwise_and_(-_BF16_SHIFT)
        self._values[span.start : span.stop] = values


class _EightBit(MomentVector):
    def __init__(self, codes: Tensor, scales: Tensor, *, is_signed: bool) -> None:
        self._codes, self._scales, self.is_signed = codes, scales, is_signed
        self._values = torch.tensor(code_values(is_signed=is_signed), device=codes.device)
        self._borders = (self._values[:-1] + self._values[1:]) / 2

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {"": self._codes, ".scales": self._scales}

    def is_whole(self, spans: Sequence[Span]) -> bool:
        shapes = self._codes.shape, self._scales.shape
        if shapes != ((_num_elements(spans),), (_num_blocks_of(spans),)):
            return False
        return bool((torch.isfinite(self._scales) & (self._scales >= 0)).all())

    def read(self, span: Span) -> Tensor:
        codes = self._codes[span.start : span.stop]
        values = self._values.index_select(0, codes.int())
        blocks = _blocks(values)
        return blocks.mul_(self._scales_of(span)[:, None]).view(-1)[: span.length]

    def write(self, span: Span, values: Tensor, turn: int) -> None:
        blocks = _blocks(values)
        scales = torch.linalg.vector_norm(blocks, ord=math.inf, dim=1)
        self._scales_of(span).copy_(scales)
        # A block of zeros is divided by something that is no zero.
        blocks.div_(scales.clamp_(min=torch.finfo(torch.float32).tiny)[:, None])
        codes = torch.bucketize(blocks.view(-1)[: span.length], self._borders, out_int32=True)
        self._codes[span.start : span.stop] = codes

    def _scales_of(self, span: Span) -> Tensor:
        return self._scales[span.block : span.block + num_blocks(span.length)]


def zeros(
    spans: Sequence[Span],
    moment_format: MomentFormat,
    device: torch.device,
    *,
    is_signed: bool = True,
) -> MomentVector:
    """A vector of zeros that covers all spans, which follow each other.

    Args:
        is_signed: False for values that are never negative.
    """
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16, "8bit": torch.uint8}
    tensors = {"": torch.zeros(_num_elements(spans), dtype=dtypes[moment_format], device=device)}
    if moment_format == "8bit":
        tensors[".scales"] = torch.zeros(_num_blocks_of(spans), device=device)
    return vector_of(tensors, is_signed=is_signed)


def vector_of(tensors: Mapping[str, Tensor], *, is_signed: bool = True) -> MomentVector:
    """The vector that consists of these tensors, by their types.

    Raises:
        ValueError: no vector has such tensors.
    """
    dtypes = {part: tensor.dtype for part, tensor in tensors.items()}
    if dtypes == {"": torch.float32}:
        return _Fp32(tensors[""], is_signed=is_signed)
    if dtypes == {"": torch.bfloat16}:
        return _Bf16(tensors[""], is_signed=is_signed)
    if dtypes == {"": torch.uint8, ".scales": torch.float32}:
        return _EightBit(tensors[""], tensors[".scales"], is_signed=is_signed)
    raise ValueError(f"no moments consist of {dtypes}")


def copy_moments(source: MomentVector, target: MomentVector, spans: Iterable[Span]) -> None:
    """Copies moments, also from one format and device to another."""
    own, other = target.tensors, source.tensors
    if type(source) is type(target):
        for part, tensor in own.items():
            tensor.copy_(other[part])
        return
    for span in spans:
        # A copy, because `write` may overwrite what it gets, and fp32 moments are read in place.
        target.write(span, source.read(span).to(own[""].device, copy=True), 0)


def spans_of(lengths: Sequence[int], moment_format: MomentFormat) -> list[list[Span]]:
    """The pieces of each of the parameters with so many elements, in flat order. In fp32, which is
    updated where it is, a parameter is one piece."""
    found, start, block = [], 0, 0
    for length in lengths:
        size = length if moment_format == "fp32" else PIECE_ELEMENTS
        pieces = []
        for first in range(0, length, size):
            part = min(size, length - first)
            pieces.append(Span(start + first, part, block + first // MOMENT_BLOCK))
        found.append(pieces)
        start, block = start + length, block + num_blocks(length)
    return found


def num_blocks(length: int) -> int:
    return -(-length // MOMENT_BLOCK)


def _num_elements(spans: Sequence[Span]) -> int:
    return sum(span.length for span in spans)


def _num_blocks_of(spans: Sequence[Span]) -> int:
    return sum(num_blocks(span.length) for span in spans)


@functools.cache
def code_values(*, is_signed: bool) -> tuple[float, ...]:
    """The 256 numbers that a code stands for, ascending, between -1 (or 0) and 1.

    The paper's dynamic quantization (section 2.2), as bitsandbytes has it: each of seven decades
    has twice as many numbers as the next smaller one, in the middles of equal parts. One number is
    1, and one is 0, or 1e-7 of values that are never negative: a small second moment that became 0
    would make the update, which is divided by its root, huge (arXiv 2309.01507 leaves 0 out, too).
    """
    numbers = [1.0, 0.0 if is_signed else 1e-7]
    for decade in range(7):
        num_parts = 2 ** (decade if is_signed else decade + 1)
        size = 10.0 ** (decade - 6)
        middles = [0.1 + 0.9 * (part + 0.5) / num_parts for part in range(num_parts)]
        numbers += [size * middle for middle in middles]
        if is_signed:
            numbers += [-size * middle for middle in middles]
    return tuple(sorted(numbers))


def _blocks(values: Tensor) -> Tensor:
    """(length,) -> (num_blocks, MOMENT_BLOCK), the last one filled up with zeros; the same memory
    if nothing had to be filled up."""
    return F.pad(values, (0, -len(values) % MOMENT_BLOCK)).view(-1, MOMENT_BLOCK)
