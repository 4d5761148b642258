"""The frozen weights of a run of adapters (`model.lora`), and the model that both make together.
Without torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from gossamer.protocol.ids import digest_of
from gossamer.protocol.lora import LoraConfig
from gossamer.protocol.model_config import ModelConfig
from gossamer.protocol.state.digest import FloatVector
from gossamer.protocol.state.frozen_weights import values_of
from gossamer.protocol.state.parameter_layout import adapters_of, layout_of
from gossamer.trainer.text.data import DataError


def read_frozen(
    paths: Sequence[str], lora: LoraConfig, on_piece: Callable[[], None] = lambda: None
) -> Iterator[FloatVector]:
    """The frozen weights in pieces, from files of blocks that are named by their digests.

    Args:
        on_piece: is called before each piece.

    Raises:
        DataError: a file cannot be read, or is damaged.
    """
    for path in map(Path, paths):
        on_piece()
        try:
            block = path.read_bytes()
        except OSError as error:
            raise DataError(f"frozen weights cannot be read: {path}: {error.strerror}") from error
        if digest_of(block).hex() != path.name:
            raise DataError(
                f"frozen weights are damaged on the disk ({path}): start the node again, which "
                "fetches them anew"
            )
        try:
            values = values_of(block, lora)
        except ValueError as error:
            raise DataError(f"the run's frozen weights cannot be used: {path}: {error}") from error
        yield values


def merged(adapters: FloatVector, model: ModelConfig, frozen: Iterable[FloatVector]) -> FloatVector:
    """The parameters of the whole model: each matrix with adapters becomes W + scale * B A, in fp32
    (arXiv 2106.09685, section 4.1).

    Args:
        adapters: (model.num_parameters,)
        frozen: the weights of the whole model in pieces.

    Returns:
        (model.whole.num_parameters,)

    Raises:
        ValueError: the pieces have another length in all.
    """
    assert model.lora
    whole = np.empty(model.whole.num_parameters, np.float32)
    start = 0
    for piece in frozen:
        stop = start + len(piece)
        whole[start:stop] = piece
        start = stop
    if start != len(whole):
        raise ValueError(f"{start} frozen weights; the model has {len(whole)}")
    parts = {part.name: adapters[part.range].reshape(part.shape) for part in layout_of(model)}
    for matrix in layout_of(model.whole):
        names = adapters_of(matrix)
        if all(name in parts for name in names):
            a, b = (parts[name] for name in names)
            whole[matrix.range].reshape(matrix.shape)[:] += np.float32(model.lora.scale) * (b @ a)
    return whole
