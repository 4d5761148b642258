"""Weights of a folder: safetensors files, one or several, into one flat fp32 vector. Without torch.

The format (https://github.com/huggingface/safetensors): 8 bytes with the little-endian length of a
header, the header, which is a JSON object from names to `{dtype, shape, data_offsets}`, and the
tensors' bytes, at offsets that count from the header's end. They cover the rest of the file, and no
byte belongs to two.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from gossamer.protocol.limits import MIB
from gossamer.protocol.model_config import ModelConfig
from gossamer.protocol.state.parameter_layout import HEAD, Tensor, is_adapter, layout_of
from gossamer.trainer.pretrained.config import parse_object
from gossamer.trainer.pretrained.errors import FolderError

SINGLE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"

HEADER_BYTES_MAX = 16 * MIB
"""A tensor takes some 150 bytes of a header, and the largest model that a manifest allows has a few
thousand tensors."""

INDEX_BYTES_MAX = 16 * MIB
"""As a header: a name and a file for each tensor."""

SHARDS_MAX = 1024
"""Files of one model; the largest published ones have some 200."""

PIECE_BYTES = 16 * MIB
"""Tensors are read in pieces of this size, so that only the result needs much memory."""

PROBLEMS_SHOWN = 8
"""A folder of another model lacks every tensor: the first few say enough."""

_Size = Annotated[int, msgspec.Meta(ge=0)]

_ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


class _Entry(msgspec.Struct, frozen=True):
    """An entry of a header."""

    dtype: str
    shape: Annotated[tuple[_Size, ...], msgspec.Meta(max_length=8)]
    data_offsets: tuple[_Size, _Size]


@dataclass(frozen=True)
class StoredTensor:
    """The place of one tensor in a file."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    """First byte in the file."""
    stop: int
    """Byte after the last one."""


@dataclass(frozen=True)
class StoredWeights:
    """All tensors of a model, found and checked against its shape, and not read yet."""

    tensors: tuple[tuple[Tensor, StoredTensor], ...]

    def read(self) -> NDArray[np.float32]:
        """(num_parameters,) in the order of `layout_of`.

        Raises:
            FolderError: a file changed or cannot be read, or a value is not finite.
        """
        last = self.tensors[-1][0]
        flat = np.empty(last.range.stop, dtype=np.float32)
        for tensor, stored in self.tensors:
            try:
                _read_into(flat[tensor.range], stored)
            except OSError as error:
                raise _unreadable(stored.path, error) from error
            except ValueError as error:
                raise FolderError(f"{stored.path}: {tensor.name} {error}") from error
        return flat


def find_weights(folder: Path, model: ModelConfig) -> StoredWeights:
    """Finds the tensors of a model in its folder. Only headers are read.

    Raises:
        FolderError: a file is missing or damaged, or tensors are missing, of another shape or type,
            or more than the model has. One sentence each.
    """
    stored: dict[str, StoredTensor] = {}
    for path in _files(folder):
        for name, place in _read_header(path).items():
            if name in stored:
                raise FolderError(f"{path} and {stored[name].path} both have {name}")
            stored[name] = place
    found: list[tuple[Tensor, StoredTensor]] = []
    problems: list[str] = []
    for tensor in layout_of(model):
        name = stored_name(tensor)
        if name not in stored:
            problems.append(f"{folder} has no tensor {name}: is a file missing?")
            continue
        place = stored.pop(name)
        if place.shape != tensor.shape:
            problems.append(
                f"{place.path}: {name} has the shape {_shape(place.shape)}; by config.json it is "
                f"{_shape(tensor.shape)}"
            )
        elif place.dtype not in _ITEM_BYTES:
            problems.append(
                f"{place.path}: {name} has the type {place.dtype}; supported: "
                f"{', '.join(sorted(_ITEM_BYTES))}"
            )
        else:
            found.append((tensor, place))
    problems += [
        f"{place.path}: {name} is no tensor of this model, which cannot be trained without it"
        for name, place in stored.items()
        if not _is_superfluous(name, model)
    ]
    if problems:
        more = len(problems) - PROBLEMS_SHOWN
        last = [f"and {more} more"] if more > 0 else []
        raise FolderError(*problems[:PROBLEMS_SHOWN], *last)
    return StoredWeights(tuple(found))


def stored_name(tensor: Tensor) -> str:
    """The name of a tensor in Hugging Face's model of the family; of an adapter that in PEFT's
    file, where two wrappers stand before it."""
    if is_adapter(tensor):
        return f"base_model.model.model.{tensor.name}"
    return tensor.name if tensor.name == HEAD else f"model.{tensor.name}"


def _is_superfluous(name: str, model: ModelConfig) -> bool:
    """Whether `transformers` too does without this tensor: old files have the frequencies of the
    rotary positions, and some have the head that is tied to the embedding once more."""
    return name.endswith("rotary_emb.inv_freq") or (name == HEAD and model.tied_embeddings)


def _files(folder: Path) -> list[Path]:
    """The files with the tensors: one, or those that the index names."""
    if (folder / SINGLE_NAME).is_file():
        return [folder / SINGLE_NAME]
    index = folder / INDEX_NAME
    if not index.is_file():
        pickled = " (pickled weights are not read: save the model as safetensors)"
        has_pickled = any(folder.glob("pytorch_model*.bin"))
        raise FolderError(
            f"{folder} has neither {SINGLE_NAME} nor {INDEX_NAME}"
            + (pickled if has_pickled else "")
        )
    weight_map = parse_object(read_bounded(index, INDEX_BYTES_MAX), str(index)).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise FolderError(f"{index} is damaged: it has no weight_map")
    names = set(map(str, weight_map.values()))
    if len(names) > SHARDS_MAX:
        raise FolderError(f"{index} names {len(names)} files; at most {SHARDS_MAX} are read")
    problems = []
    for name in sorted(names):
        if Path(name).name != name or not name.endswith(".safetensors"):
            problems.append(f"{index} names {name!r}, which is no safetensors file of the folder")
        elif not (folder / name).is_file():
            problems.append(f"{folder / name} is missing; {INDEX_NAME} names it")
    if problems:
        raise FolderError(*problems[:PROBLEMS_SHOWN])
    return [folder / name for name in sorted(names)]


def _read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one file, each inside it."""
    damaged = f"{path} is damaged; copy or download it again"
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > size - 8:
                raise FolderError(f"{damaged} (it ends before its header does)")
            if length > HEADER_BYTES_MAX:
                raise FolderError(
                    f"{path} has a header of {length:,} bytes; at most {HEADER_BYTES_MAX:,}"
                )
            header = parse_object(file.read(length), f"the header of {path}")
    except OSError as error:
        raise _unreadable(path, error) from error
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            tensor = _tensor_of(path, entry, 8 + length, size)
            if tensor is None:
                raise FolderError(f"{damaged} (the entry of {name} makes no sense)")
            tensors[name] = tensor
    ends = 8 + length
    for tensor in sorted(tensors.values(), key=lambda each: (each.start, each.stop)):
        if tensor.start != ends:
            break
        ends = tensor.stop
    if ends != size:
        raise FolderError(f"{damaged} (its tensors do not cover it, each byte once)")
    return tensors


def _tensor_of(path: Path, entry: object, first: int, size: int) -> StoredTensor | None:
    """The tensor of a header's entry; None if it makes no sense in a file of `size` bytes."""
    try:
        given = msgspec.convert(entry, _Entry)
    except msgspec.ValidationError:
        return None
    start, stop = given.data_offsets
    if not start <= stop <= size - first:
        return None
    item_bytes = _ITEM_BYTES.get(given.dtype)
    if item_bytes is not None and stop - start != math.prod(given.shape) * item_bytes:
        return None
    return StoredTensor(path, given.dtype, given.shape, first + start, first + stop)


def _read_into(out: NDArray[np.float32], stored: StoredTensor) -> None:
    """Raises OSError, or ValueError with the end of a sentence about the tensor."""
    item_bytes = _ITEM_BYTES[stored.dtype]
    piece = PIECE_BYTES // item_bytes
    with stored.path.open("rb") as file:
        file.seek(stored.start)
        for start in range(0, len(out), piece):
            part = out[start : start + piece]
            data = file.read(len(part) * item_bytes)
            if len(data) != len(part) * item_bytes:
                raise ValueError("ends early: the file changed, or is damaged")
            values = np.frombuffer(data, dtype=_TYPES[stored.dtype])
            if stored.dtype == "BF16":  # the upper half of an fp32 value
                values = (values.astype(np.uint32) << 16).view(np.float32)
            # An fp64 value beyond fp32, or a signalling NaN. Both are told below.
            with np.errstate(over="ignore", invalid="ignore"):
                part[:] = values
            if not np.isfinite(part).all():
                raise ValueError("has values that are not finite")


def read_bounded(path: Path, bytes_max: int) -> bytes:
    """The content of a small file. Raises FolderError: it cannot be read, or is too large."""
    try:
        with path.open("rb") as file:
            data = file.read(bytes_max + 1)
    except OSError as error:
        raise _unreadable(path, error) from error
    if len(data) > bytes_max:
        raise FolderError(f"{path} has over {bytes_max:,} bytes, the limit of such a file")
    return data


def _unreadable(path: Path, error: OSError) -> FolderError:
    return FolderError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}")


def _shape(shape: Iterable[int]) -> str:
    return " x ".join(map(str, shape)) or "of a single number"
