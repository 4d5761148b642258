"""The process that compiles behind the training, started by a trainer and never by people:
`python -m gossamer.trainer.compiling.ahead`, with an `Order` as JSON on stdin.

What it makes lies in torch's cache on the disk, in the trainer's folder. So the trainer, which then
compiles the same, is done in a few seconds. A compiler that crashes or hangs ends this process and
nothing else. It inherits from the trainer what that gave up (`confinement`).

Exit code 0: it is compiled. Otherwise the last line of stderr says why not.
"""

from __future__ import annotations

import os
import sys

import msgspec
import torch

from gossamer.protocol.model_config import ModelConfig
from gossamer.trainer.compiling.parts import compile_now
from gossamer.trainer.confinement.system_calls import end_with_parent
from gossamer.trainer.ipc import environment
from gossamer.trainer.resources.device import take_device
from gossamer.trainer.resources.passes import Pass


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    model: ModelConfig
    device: str
    sequences: int
    checkpointing: bool
    loss_rows: int
    """Tokens whose logits exist at once."""
    threads: int
    """Of the trainer's torch: a CPU's kernels are written for a number of them."""


def reason_of(error: Exception) -> str:
    """A compiler's error in one line. torch names the compiler in the first line of its own, and
    says below what happened. Where it quotes the traceback of another process, the last line of
    that says it."""
    message, _, quoted = str(error).partition("Traceback (most recent call last):")
    lines = [line.strip() for line in message.splitlines() if line.strip()][:2]
    lines += [line for line in quoted.splitlines() if line and not line.startswith(" ")][:1]
    return " ".join([f"{type(error).__name__}:", *lines])


def main() -> int:
    """Compiles what stdin says. Exit code: 0, or 1 with the reason on stderr."""
    end_with_parent()
    os.nice(environment.NICENESS)
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    torch.set_num_threads(order.threads)
    device = take_device(order.device, order.model.width)
    try:
        compile_now(
            order.model, device, Pass(order.sequences, order.checkpointing), order.loss_rows
        )
    except Exception as error:
        print(reason_of(error), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    environment.end(main())
