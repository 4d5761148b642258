"""Everything about a run that follows from the size of its model."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from gossamer.protocol.manifest import InnerConfig, OuterConfig, RoundConfig
from gossamer.protocol.model_config import ModelConfig
from gossamer.trainer.text.tokenizers.tokens import TokenizerKind


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a run that follows from the size of its model."""

    name: str
    summary: str
    """One line for people: its size, and the machines that it suits."""
    origin: str
    """Predicate of a sentence for people, whose subject is its settings: how they came about."""
    tokenizer: TokenizerKind
    model: ModelConfig
    inner: InnerConfig
    outer: OuterConfig
    sparse_rates: tuple[float, float]
    """Outer learning rate and (constant) momentum with `sync = "sparse"`."""
    rounds: RoundConfig


class OuterStep(NamedTuple):
    """Settings of the outer step. With `displacement`, `momentum` is the most that a round may
    choose."""

    learning_rate: float
    momentum: float
    displacement: float = 0.0
