"""Further CPU processes for a trainer in this one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gossamer.protocol.model_config import ModelConfig
from gossamer.trainer.ipc import messages as m
from gossamer.trainer.local_trainer import LocalTrainer
from gossamer.trainer.ranks.spread import Spread
from gossamer.trainer.ranks.starting import start_others
from gossamer.trainer.resources.device import choose_devices
from tests.support.small_model import INNER, MODEL


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
