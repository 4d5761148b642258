"""Streaming: the parameters that a round averages (Streaming DiLoCo, arXiv 2501.18512, 3.1).

Fragment f of N holds the transformer layers f, f + N, f + 2N ... ("strided": in that paper it
reached a lower loss than neighbouring layers), and the f-th of N equal parts of the rows of the
embedding and of an untied head. The last fragment also holds the last norm. With H inner steps
between two turns of one fragment, some fragment has its turn every H / N steps. So the bytes of a
turn, and the peak of the bandwidth, fall by about N. (The embedding as a whole in one fragment
would set the peak: it is a tenth of a model with 150 million parameters, and most of a small one.)

A *sync set* is the set of parameters that one round averages. In the warm-up, and with one fragment
only, it holds all parameters; else the fragment whose turn it is. (With `sync = "distro"` it is the
round's shared steps.) The *sync order* is fragment by fragment, each with its elements in the order
of the flat vector. No chunk has elements of two fragments. So the chunks of a fragment are the same
in every round, and a peer's pending work in sync order is cut for a fragment's round as for a round
of all parameters.

Sync sets are a function of the manifest alone, so all peers agree on them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gossamer.protocol.codecs.chunk_values import is_usable
from gossamer.protocol.manifest import OuterConfig
from gossamer.protocol.model_config import ModelConfig
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.state.digest import FloatVector
from gossamer.protocol.sync_modes import SYNC_MODES, SyncMode


@dataclass(frozen=True)
class SyncSet:
    """Some of the parameters, cut into chunks."""

    ranges: tuple[slice, ...]
    """Ranges of the flat vector, in sync order. Those of a fragment are sorted and do not touch."""
    plan: ChunkPlan
    """The cut of these elements in this order: the chunks of a round, from 0."""
    first_chunk: int
    """Number of the first chunk among the chunks of all parameters."""
    first_element: int
    """Place of the first element in sync order."""

    @property
    def within(self) -> slice:
        """The range of the set in a vector in sync order."""
        return slice(self.first_element, self.first_element + self.plan.num_elements)

    @property
    def mask(self) -> int:
        """Mask of the set's chunks, by their numbers among the chunks of all parameters."""
        return ((1 << self.plan.num_chunks) - 1) << self.first_chunk

    def pieces_of(self, chunk: int) -> Iterator[tuple[slice, slice]]:
        """The places of a chunk's elements: pairs of a range of the flat vector and a range of the
        chunk."""
        wanted = self.plan.range_of(chunk)
        before = 0
        for part in self.ranges:
            first = max(wanted.start, before)
            stop = min(wanted.stop, before + part.stop - part.start)
            if first < stop:
                shift = part.start - before
                yield (
                    slice(first + shift, stop + shift),
                    slice(first - wanted.start, stop - wanted.start),
                )
            before += part.stop - part.start

    def add_work(self, vector: FloatVector, out: FloatVector) -> bool:
        """Adds its elements of a flat vector of work, (num_parameters,), to `out`, (num_elements,).

        Returns False, and adds nothing, if one of them is no usable value (`is_usable`).
        """
        if not all(is_usable(vector[part]) for part in self.ranges):
            return False
        start = 0
        for part in self.ranges:
            stop = start + part.stop - part.start
            out[start:stop] += vector[part]
            start = stop
        return True


class SyncSets:
    """All sync sets of a run."""

    def __init__(self, model: ModelConfig, outer: OuterConfig, sync: SyncMode = "diloco") -> None:
        self._warmup_rounds = outer.warmup_rounds
        if SYNC_MODES[sync].shares_steps:
            # A chunk is a shared step or a part of one, and not a range of the parameters.
            num_chunks = outer.inner_steps * outer.chunks_of_step
            self.whole = SyncSet((), ChunkPlan(num_chunks, 1), 0, 0)
            self.turns: tuple[SyncSet, ...] = (self.whole,)
            return
        fragments = fragments_of(model, outer.fragments)
        sizes = tuple(sum(part.stop - part.start for part in ranges) for ranges in fragments)
        chunk_elements = outer.chunk_elements
        self.whole = SyncSet(
            tuple(part for ranges in fragments for part in ranges),
            ChunkPlan(sum(sizes), chunk_elements, sizes if len(sizes) > 1 else ()),
            0,
            0,
        )
        """The set of all parameters."""
        turns: list[SyncSet] = []
        first_chunk = first_element = 0
        for ranges, size in zip(fragments, sizes, strict=True):
            plan = ChunkPlan(size, chunk_elements)
            turns.append(SyncSet(ranges, plan, first_chunk, first_element))
            first_chunk += plan.num_chunks
            first_element += size
        self.turns = tuple(turns) if len(turns) > 1 else (self.whole,)
        """The sets of the rounds after the warm-up, by fragment."""

    def of_round(self, round_number: int) -> SyncSet:
        """The set that a round averages. The first round is 1."""
        turn = round_number - 1 - self._warmup_rounds
        return self.whole if turn < 0 else self.turns[turn % len(self.turns)]


def fragments_of(model: ModelConfig, num_fragments: int) -> tuple[tuple[slice, ...], ...]:
    """The ranges of each fragment in the flat vector; together they hold every element once.

    Raises:
        ValueError: fewer than one fragment, or more than the model has layers.
    """
    if not 1 <= num_fragments <= model.num_layers:
        raise ValueError(
            f"{num_fragments} fragments of a model with {model.num_layers} layers; "
            "a fragment has one layer or more"
        )
    ranges: list[list[slice]] = [[] for _ in range(num_fragments)]
    start = 0 if model.lora else _add_rows(ranges, 0, model)
    for layer in range(model.num_layers):
        stop = start + model.layer_parameters
        _add(ranges[layer % num_fragments], slice(start, stop))
        start = stop
    if model.lora:  # the layers' adapters are all parameters
        return tuple(map(tuple, ranges))
    _add(ranges[-1], slice(start, start + model.width))
    if not model.tied_embeddings:
        _add_rows(ranges, start + model.width, model)
    return tuple(map(tuple, ranges))


def _add_rows(ranges: list[list[slice]], start: int, model: ModelConfig) -> int:
    """Deals the rows of the matrix of all tokens that begins at `start`; returns where it ends."""
    ends = [model.vocabulary * (number + 1) // len(ranges) for number in range(len(ranges))]
    first = start
    for fragment, rows in zip(ranges, ends, strict=True):
        stop = start + rows * model.width
        _add(fragment, slice(first, stop))
        first = stop
    return first


def _add(ranges: list[slice], new: slice) -> None:
    if ranges and ranges[-1].stop == new.start:
        ranges[-1] = slice(ranges[-1].start, new.stop)
    else:
        ranges.append(new)
