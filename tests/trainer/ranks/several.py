"""Further CPU processes for a trainer in this one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gossamer.protocol.manifest import InnerConfig
from gossamer.protocol.model_config import ModelConfig
from gossamer.trainer.ipc import messages as m
from gossamer.trainer.local_trainer import LocalTrainer
from gossamer.trainer.ranks.spread import Spread
from gossamer.trainer.ranks.starting import start_others
from gossamer.trainer.resources.device import choose_devices

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


@contextmanager
def others(
    num_devices: int = 2,
    on_lost: Callable[[str], None] = lambda reason: None,
    model: ModelConfig = MODEL,
    frozen_paths: tuple[str, ...] = (),
) -> Iterator[Spread]:
    """The processes beside this one."""
    configure = m.Configure(
        model=model,
        frozen_paths=frozen_paths,
        inner=INNER,
        device=",".join(["cpu"] * num_devices),
        limits=m.Limits(threads=num_devices),
        seed=0,
        base_fd=-1,
        pseudo_gradient_fd=-1,
        token_bytes=2,
    )
    spread = start_others(
        configure,
        choose_devices(configure.device),
        is_confined=False,
        on_progress=lambda: None,
        on_lost=on_lost,
    )
    try:
        yield spread
    finally:
        spread.close()
        spread.group.leave()


def spread_over(trainer: LocalTrainer, spread: Spread) -> LocalTrainer:
    trainer.spread(spread)
    return trainer
