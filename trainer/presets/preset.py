"""Everything about a run that follows from the size of its model."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from gossamer.protocol.manifest import InnerConfig, InnerOptimizer, OuterConfig, RoundConfig
from gossamer.protocol.model_config import ModelConfig
from gossamer.trainer.text.tokenizers.tokens import TokenizerKind


class OuterStep(NamedTuple):
    """Settings of the outer step. With `displacement`, `momentum` is the most that a round may
    choose."""

    learning_rate: float
    momentum: float
    displacement: float = 0.0


class OuterSteps(NamedTuple):
    """Settings of the outer step by the inner optimiser of the peers."""

    adamw: OuterStep
    muon: OuterStep

    def of(self, optimizer: InnerOptimizer) -> OuterStep:
        """Returns the settings for an inner optimiser."""
        return self.muon if optimizer == "muon" else self.adamw


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
    """It has the outer step for Muon."""
    dense_steps: OuterSteps
    """With `sync = "diloco"`."""
    sparse_steps: OuterSteps
    """With `sync = "sparse"`; their momentum is constant."""
    muon_top_k: int
    """With `sync = "sparse"` and Muon: values sent of each 4,096. `outer` has that for AdamW."""
    rounds: RoundConfig
