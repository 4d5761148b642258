"""The part of a trainer's state that survives restarts: one safetensors file, replaced atomically.

AdamW's moments (8 bytes a parameter; with Muon 4 for each parameter of a hidden matrix; fewer where
they are kept in fewer, see `moments`), or the momentum of shared steps (4 bytes a parameter) with
its place in the chain and a digest over all of it. Moments are saved as they are kept, and loaded
into whatever format the optimiser has by then.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol, cast

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from gossamer.protocol.ids import Digest, digest_of
from gossamer.protocol.model_config import ModelConfig
from gossamer.trainer.inner_step.moments import MomentVector, vector_of
from gossamer.trainer.inner_step.muon import Muon
from gossamer.trainer.inner_step.optimizer import AdamW
from gossamer.trainer.ipc import messages

MOMENTUM_FORMAT = "gossamer-demo-1"

STEPS_MAX = 2**53
"""Upper bound on the steps in a checkpoint: more than any training has, and few enough for every
number format that is used here."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be used or written. The message says which and why."""


def save_moments(optimizer: AdamW | Muon, model: ModelConfig, path: Path) -> None:
    """Writes the moments; what was at `path` stays until the new file is on the disk.

    Raises:
        CheckpointError: not written (disk full, no permission ...); the old file is untouched.
    """
    tensors = {
        name + part: tensor.cpu()
        for name, (vector, _) in optimizer.vectors.items()
        for part, tensor in vector.tensors.items()
    }
    steps = str(optimizer.num_steps)
    metadata = {"format": _format(optimizer), "model": _model_key(model), "steps": steps}
    _write(tensors, metadata, path, "the optimizer's moments")


def load_moments(optimizer: AdamW | Muon, model: ModelConfig, path: Path) -> None:
    """Fills the optimizer from a checkpoint; on an error it is as it was.

    Raises:
        FileNotFoundError: there is none.
        CheckpointError: damaged, or of another model or optimizer.
    """
    found: dict[str, MomentVector] = {}
    with _reading(path, _format(optimizer), model, "the moments") as (file, metadata):
        for name, (vector, spans) in optimizer.vectors.items():
            tensors = {
                key.removeprefix(name): file.get_tensor(key)
                for key in file.keys()  # noqa: SIM118  it has no iterator
                if key.partition(".")[0] == name
            }
            found[name] = vector_of(tensors, is_signed=vector.is_signed)
            if not found[name].is_whole(spans):
                raise CheckpointError(f"{path} is damaged: moments of the wrong size or not finite")
        num_steps = int(metadata["steps"])
    if not 0 <= num_steps <= STEPS_MAX:
        raise CheckpointError(f"{path} is damaged: steps out of range")
    optimizer.restore(found, num_steps)


def _format(optimizer: AdamW | Muon) -> str:
    return f"gossamer-{optimizer.name}-1"


class SavedMomentum(NamedTuple):
    """The momentum of shared steps, and what was saved with it."""

    values: torch.Tensor
    """(num_parameters,) fp32."""
    last_rate: float
    """Learning rate of the newest gradient in it, with which the lookahead goes on."""
    place: messages.Place


def save_momentum(saved: SavedMomentum, model: ModelConfig, path: Path) -> None:
    """Writes the momentum; what was at `path` stays until the new file is on the disk.

    Raises:
        CheckpointError: not written (disk full, no permission ...); the old file is untouched.
    """
    saved = saved._replace(values=saved.values.cpu())
    metadata = {
        "format": MOMENTUM_FORMAT,
        "model": _model_key(model),
        "last_rate": saved.last_rate.hex(),
        "place": msgspec.msgpack.encode(saved.place).hex(),
        "digest": _digest(saved).hex(),
    }
    _write({"momentum": saved.values}, metadata, path, "the momentum")


def load_momentum(model: ModelConfig, path: Path) -> SavedMomentum:
    """Reads what `save_momentum` wrote.

    Raises:
        FileNotFoundError: there is none.
        CheckpointError: damaged, or of another model.
    """
    with _reading(path, MOMENTUM_FORMAT, model, "the momentum") as (file, metadata):
        saved = SavedMomentum(
            file.get_tensor("momentum"),
            float.fromhex(metadata["last_rate"]),
            msgspec.msgpack.decode(bytes.fromhex(metadata["place"]), type=messages.Place),
        )
        digest = metadata["digest"]
    if (
        saved.values.shape != (model.num_parameters,)
        or saved.values.dtype != torch.float32
        or not math.isfinite(saved.last_rate)
        or _digest(saved).hex() != digest
        or not bool(torch.isfinite(saved.values).all())
    ):
        raise CheckpointError(f"{path} is damaged: it does not fit its digest or its model")
    return saved


class _File(Protocol):
    """An open safetensors file, which has no types of its own."""

    def keys(self) -> list[str]: ...

    def get_tensor(self, name: str) -> torch.Tensor: ...


@contextlib.contextmanager
def _reading(
    path: Path, file_format: str, model: ModelConfig, what: str
) -> Iterator[tuple[_File, dict[str, str]]]:
    """Opens the file, and reads the metadata. A tensor that cannot be read within the block is
    damaged.

    Raises:
        FileNotFoundError: there is none.
        CheckpointError: damaged, or of another model.
    """
    if not path.exists():
        raise FileNotFoundError(path)
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if (metadata.get("format"), metadata.get("model")) != (file_format, _model_key(model)):
                raise CheckpointError(f"{path} has {what} of another model or format")
            yield cast(_File, file), metadata
    except CheckpointError:
        raise
    except (OSError, SafetensorError, KeyError, ValueError, OverflowError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error


def _write(
    tensors: dict[str, torch.Tensor], metadata: dict[str, str], path: Path, what: str
) -> None:
    """Raises CheckpointError."""
    temporary = path.with_name(path.name + ".new")
    try:
        save_file(tensors, temporary, metadata)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except (OSError, SafetensorError) as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise CheckpointError(f"could not write {what} to {path}: {error}") from error


def _digest(saved: SavedMomentum) -> Digest:
    values = saved.values.numpy().data.cast("B")
    place = msgspec.msgpack.encode(saved.place)
    return digest_of(place, saved.last_rate.hex().encode(), values)


def _model_key(model: ModelConfig) -> str:
    return digest_of(msgspec.msgpack.encode(model)).hex()
