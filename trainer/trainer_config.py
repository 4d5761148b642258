"""What a trainer is built for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gossamer.protocol.manifest import InnerConfig
from gossamer.protocol.model_config import ModelConfig
from gossamer.trainer.ipc import messages


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """What one peer trains and how. It holds for the life of a trainer."""

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
    moments: messages.MomentChoice = "auto"
    """What the optimiser keeps its moments in."""
    compiling: messages.CompileChoice = "off"
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
