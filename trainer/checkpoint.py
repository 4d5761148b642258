"""AdamW's moments on disk: one safetensors file, replaced atomically."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from gossamer.protocol.ids import digest_of
from gossamer.protocol.manifest import ModelConfig
from gossamer.trainer.optimizer import AdamW

FORMAT = "gossamer-adamw-1"

STEPS_MAX = 2**53
"""Beyond any training, and within what every number format here can hold."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be used or written. The message says which and why."""


def save_optimizer(optimizer: AdamW, model: ModelConfig, path: Path) -> None:
    """Writes the moments; what was at `path` stays until the new file is on the disk.

    Raises:
        CheckpointError: not written (disk full, no permission ...); the old file is untouched.
    """
    temporary = path.with_name(path.name + ".new")
    tensors = {
        "first_moment": optimizer.first_moment.cpu(),
        "second_moment": optimizer.second_moment.cpu(),
    }
    metadata = {"format": FORMAT, "model": _model_key(model), "steps": str(optimizer.num_steps)}
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
        raise CheckpointError(
            f"could not write the optimizer's moments to {path}: {error}"
        ) from error


def load_optimizer(optimizer: AdamW, model: ModelConfig, path: Path) -> None:
    """Fills the optimizer from a checkpoint; on an error it is as it was.

    Raises:
        FileNotFoundError: there is none.
        CheckpointError: damaged, or of another model.
    """
    if not path.exists():
        raise FileNotFoundError(path)
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT or metadata.get("model") != _model_key(model):
                raise CheckpointError(f"{path} has the moments of another model or format")
            first, second = file.get_tensor("first_moment"), file.get_tensor("second_moment")
            num_steps = int(metadata["steps"])
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path} is damaged: {error}") from error
    shape = optimizer.first_moment.shape
    for moment in (first, second):
        if (
            moment.shape != shape
            or moment.dtype != torch.float32
            or not bool(torch.isfinite(moment).all())
        ):
            raise CheckpointError(f"{path} is damaged: moments of the wrong size or not finite")
    if not 0 <= num_steps <= STEPS_MAX or bool((second < 0).any()):
        raise CheckpointError(f"{path} is damaged: steps or second moments out of range")
    optimizer.restore(first, second, num_steps)


def _model_key(model: ModelConfig) -> str:
    return digest_of(msgspec.msgpack.encode(model)).hex()
