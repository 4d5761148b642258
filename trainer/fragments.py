"""Streaming: the parameters in fragments that are averaged one after the other (Streaming DiLoCo,
arXiv 2501.18512, section 3.1).

Fragment f of N holds the transformer layers f, f + N, f + 2N ... ("strided": it reached a lower
loss there than runs of neighbouring layers). The embedding belongs to the first fragment, the last
norm and an untied head to the last one. With H inner steps between two turns of one fragment, some
fragment has its turn every H / N steps: the bytes of a turn, and so the peak of the bandwidth, fall
by about N.

A function of the model's shape and N alone, so all peers agree. This module needs no torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gossamer.protocol.manifest import ModelConfig
from gossamer.trainer.flat import EMBEDDING, layout_of

_LAYER = re.compile(r"layers\.(\d+)\.")


@dataclass(frozen=True)
class Fragment:
    """Some of the flat vector's elements: sorted ranges that do not touch."""

    ranges: tuple[slice, ...]

    @property
    def num_elements(self) -> int:
        return sum(part.stop - part.start for part in self.ranges)

    def gather(self, vector: NDArray[np.float32]) -> NDArray[np.float32]:
        """A copy of the fragment's elements: (num_parameters,) -> (num_elements,)."""
        return np.concatenate([vector[part] for part in self.ranges])

    def scatter(self, values: NDArray[np.float32], vector: NDArray[np.float32]) -> None:
        """Writes the fragment's elements, (num_elements,), into `vector`, (num_parameters,)."""
        start = 0
        for part in self.ranges:
            stop = start + part.stop - part.start
            vector[part] = values[start:stop]
            start = stop


def fragments_of(model: ModelConfig, num_fragments: int) -> tuple[Fragment, ...]:
    """All fragments; together they hold every element once.

    Raises:
        ValueError: fewer than one fragment, or more than the model has layers.
    """
    if not 1 <= num_fragments <= model.num_layers:
        raise ValueError(
            f"{num_fragments} fragments of a model with {model.num_layers} layers; "
            "a fragment has one layer or more"
        )
    ranges: list[list[slice]] = [[] for _ in range(num_fragments)]
    for tensor in layout_of(model):
        found = _LAYER.match(tensor.name)
        if found:
            fragment = int(found[1]) % num_fragments
        else:
            fragment = 0 if tensor.name == EMBEDDING else num_fragments - 1
        _add(ranges[fragment], tensor.range)
    return tuple(Fragment(tuple(parts)) for parts in ranges)


def fragment_of_round(round_number: int, num_fragments: int) -> int:
    """Whose turn it is in a round; the first round is 1."""
    return (round_number - 1) % num_fragments


def _add(ranges: list[slice], new: slice) -> None:
    if ranges and ranges[-1].stop == new.start:
        ranges[-1] = slice(ranges[-1].start, new.stop)
    else:
        ranges.append(new)
