"""The configuration of a trainer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gossamer.protocol.manifest import InnerConfig
from gossamer.protocol.model_config import ModelConfig
from gossamer.trainer.ipc.choices import CompileChoice, MomentChoice
from gossamer.trainer.ipc.messages import Configure


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """The training of one peer: its model and how it learns. It holds for the life of a trainer."""

    model: ModelConfig
    inner: InnerConfig
    seed: int
    """Of the initial parameters."""
    token_bytes: int
    """Bytes of one token in a shard."""
    device: str = "auto"
    optimizer_path: str = ""
    """File from which the moments come and to which they are saved; empty for none."""
    micro_batch: int = 0
    """Sequences of one forward pass to begin with; 0 begins with what fits by an estimate."""
    moments: MomentChoice = "auto"
    """What the optimiser keeps its moments in."""
    compiling: CompileChoice = "off"
    """Whether the layers are compiled behind the training."""
    children_use_device: bool = True
    """Whether a process that the trainer starts can use the device."""
    mixing: float = 0.0
    """See `overlap`."""
    frozen_paths: tuple[str, ...] = ()
    """Files with the weights that adapters leave as they are (`adapters.read_frozen`). Without
    them a run of adapters can draw its initial parameters, and nothing else."""
    tokenizer: Literal["", "bytes", "bpe", "files"] = ""
    """The run's tokenizer, by which bytes of text are counted; empty: they are not."""
    tokenizer_path: str = ""
    """File of the run's tokenizer; empty for plain bytes."""


def config_of(message: Configure, device: str, *, children_use_device: bool) -> TrainerConfig:
    """Returns what the daemon wants a trainer to be built for, on a device that was chosen."""
    return TrainerConfig(
        model=message.model,
        inner=message.inner,
        seed=message.seed,
        token_bytes=message.token_bytes,
        device=device,
        optimizer_path=message.optimizer_path,
        micro_batch=message.micro_batch,
        moments=message.moments,
        compiling=message.compiling,
        children_use_device=children_use_device,
        mixing=message.mixing,
        frozen_paths=message.frozen_paths,
        tokenizer=message.tokenizer,
        tokenizer_path=message.tokenizer_path,
    )
