"""A model that a test trains in milliseconds a step, and settings with which it learns."""

from __future__ import annotations

from gossamer.protocol.manifest import InnerConfig
from gossamer.protocol.model_config import ModelConfig

MODEL = ModelConfig(
    num_layers=2,
    width=32,
    num_heads=4,
    num_kv_heads=2,
    hidden_width=48,
    vocabulary=64,
    context=16,
    tied_embeddings=True,
)
INNER = InnerConfig(
    learning_rate=1e-2,
    warmup_steps=4,
    total_steps=100,
    final_fraction=0.1,
    beta1=0.9,
    beta2=0.95,
    epsilon=1e-8,
    weight_decay=0.1,
    clip_norm=1.0,
    sequences_per_step=4,
)
