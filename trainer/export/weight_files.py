"""The weights of an export as safetensors files. Without torch.

`trainer.pretrained.weights` has the format. The tensors are written piece by piece from the flat
vector, so that a type of half the size needs no second copy of the model in memory. Files larger
than a limit are cut, and an index says which tensor is where, as Hugging Face's libraries do it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gossamer.protocol.model_config import ModelConfig
from gossamer.protocol.state.parameter_layout import Tensor, layout_of
from gossamer.trainer.pretrained.weights import INDEX_NAME, SHARDS_MAX, SINGLE_NAME, stored_name

ExportType = Literal["fp32", "bf16"]

ITEM_BYTES = {"fp32": 4, "bf16": 2}

SHARD_BYTES = 5_000_000_000
"""Of one file, unless somebody chooses. Hubs and older file systems take files of this size."""

_STORED_TYPES = {"fp32": "F32", "bf16": "BF16"}

_ALIGNMENT = 8
"""Of the tensors' first byte, which the format recommends for readers that map the file."""

_PIECE = 2**20
"""Values that are rounded at a time: the copies of more would take memory for nothing."""

_OWN_NAME = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors|model\.safetensors\.index\.json")


class WeightFile(NamedTuple):
    """One file and the tensors in it, which lie one after the other in the flat vector."""

    name: str
    tensors: Sequence[Tensor]


def plan_files(model: ModelConfig, dtype: ExportType, bytes_max: int) -> list[WeightFile]:
    """The files of a model. A tensor that is larger than a file may be has one of its own.

    Raises:
        ValueError: there would be more files than readers take; the message is for people.
    """
    parts: list[list[Tensor]] = [[]]
    size = 0
    for tensor in layout_of(model):
        tensor_bytes = tensor.num_elements * ITEM_BYTES[dtype]
        if parts[-1] and size + tensor_bytes > bytes_max:
            parts.append([])
            size = 0
        parts[-1].append(tensor)
        size += tensor_bytes
    if len(parts) == 1:
        return [WeightFile(SINGLE_NAME, parts[0])]
    if len(parts) > SHARDS_MAX:
        raise ValueError(f"{len(parts):,} files of weights; at most {SHARDS_MAX:,}: allow larger")
    return [
        WeightFile(f"model-{number:05}-of-{len(parts):05}.safetensors", part)
        for number, part in enumerate(parts, start=1)
    ]


def write_weights(
    path: Path, tensors: Sequence[Tensor], flat: NDArray[np.float32], dtype: ExportType
) -> None:
    """Writes tensors that are neighbours in the flat vector (num_parameters,) to a new file. Raises
    OSError."""
    item_bytes = ITEM_BYTES[dtype]
    first, last = tensors[0].range.start, tensors[-1].range.stop
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    for tensor in tensors:
        places = [(at - first) * item_bytes for at in (tensor.range.start, tensor.range.stop)]
        header[stored_name(tensor)] = {
            "dtype": _STORED_TYPES[dtype],
            "shape": tensor.shape,
            "data_offsets": places,
        }
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % _ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for piece in converted(flat[first:last], dtype):
            file.write(piece.data)


def converted(
    values: NDArray[np.float32], dtype: ExportType
) -> Iterator[NDArray[np.float32] | NDArray[np.uint16]]:
    """The values in pieces, as little-endian fp32, or as the upper halves of fp32 (bf16), rounded
    to the nearest, ties to even. The values are finite. (n,) -> (at most _PIECE,) each."""
    for start in range(0, len(values), _PIECE):
        piece = values[start : start + _PIECE]
        if dtype == "fp32":
            yield piece.astype("<f4", copy=False)
            continue
        bits = piece.view(np.uint32)
        rounding = 0x7FFF + ((bits >> 16) & 1)
        yield ((bits + rounding) >> 16).astype("<u2")


def index_json(files: Sequence[WeightFile], dtype: ExportType) -> bytes:
    """The index of several files."""
    total = sum(tensor.num_elements for file in files for tensor in file.tensors)
    weight_map = {stored_name(tensor): file.name for file in files for tensor in file.tensors}
    metadata = {"total_parameters": total, "total_size": total * ITEM_BYTES[dtype]}
    return (json.dumps({"metadata": metadata, "weight_map": weight_map}, indent=2) + "\n").encode()


def stale_files(directory: Path, files: Sequence[WeightFile]) -> list[Path]:
    """Weights of an earlier export that do not belong to these files. Readers would take a single
    old file before several new ones, and an old index beside a new single file."""
    kept = {file.name for file in files} | ({INDEX_NAME} if len(files) > 1 else set())
    return [
        path
        for path in sorted(directory.iterdir())
        if _OWN_NAME.fullmatch(path.name) and path.name not in kept
    ]
