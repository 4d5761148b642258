"""Writes a GGUF file, version 3 (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).

The file has a magic, a version, the numbers of tensors and of key-value pairs, the pairs, the name,
shape, type and place of each tensor, and behind all that the tensors' bytes, each aligned. All
numbers are little-endian. The bytes of a tensor are asked for when its turn comes, so that no more
than one of them needs a copy.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from numpy.typing import NDArray

MAGIC = b"GGUF"
VERSION = 3
ALIGNMENT = 32
"""Of each tensor, the format's default."""

F32, BF16 = 0, 30
"""Types of tensors, as ggml numbers them."""

_ITEM_BYTES = {F32: 4, BF16: 2}

_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
"""Types of values, as the format numbers them."""

Value = int | float | bool | str | Sequence[str] | Sequence[int] | Sequence[float]
"""A value of a pair: a whole number is unsigned, and signed in a sequence, as llama.cpp reads
them."""


@dataclass(frozen=True)
class GgufTensor:
    """One tensor, and where its values come from."""

    name: str
    shape: tuple[int, ...]
    """The last dimension is the one whose values are neighbours. The file has them reversed."""
    kind: int
    pieces: Callable[[], Iterable[NDArray[Any]]]
    """Returns the values in pieces, in the order and type of the file."""

    @property
    def num_bytes(self) -> int:
        return _ITEM_BYTES[self.kind] * math.prod(self.shape)


def write_gguf(path: Path, pairs: Mapping[str, Value], tensors: Sequence[GgufTensor]) -> None:
    """Writes a new file. Raises OSError."""
    with path.open("wb") as file:
        file.write(MAGIC + struct.pack("<IQQ", VERSION, len(tensors), len(pairs)))
        for key, value in pairs.items():
            file.write(_string(key) + _encoded(value))
        offset = 0
        for tensor in tensors:
            shape = struct.pack(f"<{len(tensor.shape)}Q", *reversed(tensor.shape))
            file.write(_string(tensor.name) + struct.pack("<I", len(tensor.shape)) + shape)
            file.write(struct.pack("<IQ", tensor.kind, offset))
            offset += _aligned(tensor.num_bytes)
        _pad(file)
        for tensor in tensors:
            start = file.tell()
            for piece in tensor.pieces():
                file.write(piece.data)
            assert file.tell() - start == tensor.num_bytes
            _pad(file)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def _pad(file: BinaryIO) -> None:
    file.write(bytes(-file.tell() % ALIGNMENT))


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _encoded(value: Value) -> bytes:
    """The type of a value and its bytes."""
    if isinstance(value, bool):
        return struct.pack("<I?", _BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", _UINT32, value)
    if isinstance(value, float):
        return struct.pack("<If", _FLOAT32, value)
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _string(value)
    kind = _STRING
    body = b""
    if value and isinstance(value[0], float):
        kind, body = _FLOAT32, struct.pack(f"<{len(value)}f", *value)
    elif value and isinstance(value[0], int):
        kind, body = _INT32, struct.pack(f"<{len(value)}i", *value)
    else:
        body = b"".join(_string(str(each)) for each in value)
    return struct.pack("<IIQ", _ARRAY, kind, len(value)) + body
