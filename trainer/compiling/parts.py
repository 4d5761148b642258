"""The parts of a training pass that torch's compiler gains most with, each compiled once.

The layers are one function of their parameters, so that one compilation serves them all ("regional
compilation"): norms, rotary positions, activation and additions become a few kernels between the
matrix products. The loss of a chunk of tokens is the other one, whose logits are then read twice
instead of written and read some ten times.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from msgspec.structs import replace

from gossamer.protocol.model_config import ModelConfig
from gossamer.trainer.chunked_loss import fused_loss
from gossamer.trainer.layers import run_layer
from gossamer.trainer.model import CompiledParts, decoder_on
from gossamer.trainer.resources.device import Device
from gossamer.trainer.resources.memory_estimate import FLOAT_BYTES
from gossamer.trainer.resources.passes import Pass, training_on

_Function = TypeVar("_Function", bound=Callable[..., object])

Backend = str | Callable[..., Any]

CONTEXT_BYTES = 700 * 10**6
"""Memory that a process takes on a card before its first tensor; an estimate."""


def compile_parts(model: ModelConfig, size: Pass, backend: Backend = "inductor") -> CompiledParts:
    """The parts for passes of that size. torch compiles each at its first call.

    Args:
        backend: torch's name of the compiler, or one.
    """
    torch.compiler.reset()  # what was compiled for another size
    # torch's own code asks for it, of the input of a layer.
    warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")

    def compiled(function: _Function) -> _Function:
        # A part that cannot be compiled as a whole is an error, which switches back: nobody would
        # notice one that is compiled in pieces, and is slow. And no size has code for any size.
        found = torch.compile(function, fullgraph=True, dynamic=False, backend=backend)
        return cast("_Function", found)

    shape = (size.sequences, model.context, model.width)
    return CompiledParts(shape, compiled(run_layer), compiled(fused_loss))


def compile_now(model: ModelConfig, device: Device, size: Pass, loss_rows: int) -> None:
    """Compiles the parts by one pass of a model as small as possible, for torch's cache on the
    disk.

    Args:
        loss_rows: tokens whose logits exist at once.

    Raises:
        RuntimeError: torch cannot compile them, or memory does not suffice.
    """
    decoder = decoder_on(_with_few_layers(model), device)
    decoder.flat.normal_(0.0, 0.02)
    for frozen in decoder.buffers():
        frozen.zero_()
    decoder.checkpointing, decoder.loss_rows = size.checkpointing, loss_rows
    decoder.compiled = compile_parts(model, size)
    shape = (size.sequences, model.context + 1)
    sequences = torch.zeros(shape, dtype=torch.int64, device=device.torch_device)
    with device.autocast():
        loss = decoder.loss_sum(sequences)
    loss.backward()  # type: ignore[no-untyped-call]
    loss.item()  # waits for the card, whose errors come then


def bytes_to_compile(model: ModelConfig, device: Device, size: Pass) -> int:
    """Estimate of the device's memory that `compile_now` takes in a process of its own."""
    small = _with_few_layers(model)
    training = training_on(device, small)
    one_pass = training.pass_bytes(size.sequences, checkpointing=size.checkpointing)
    return CONTEXT_BYTES + FLOAT_BYTES * small.num_parameters + training.frozen_bytes + one_pass


def _with_few_layers(model: ModelConfig) -> ModelConfig:
    """The model with no more layers than it takes for one of them to be compiled. With adapters
    the first one is not: its input has no gradient."""
    return replace(model, num_layers=2 if model.lora else 1)
