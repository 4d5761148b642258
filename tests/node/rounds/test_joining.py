"""What a node does before its first round."""

from __future__ import annotations

import threading
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import trio

from gossamer.node.rounds.following import Joiner


class Trainer:
    """A trainer that has drawn weights."""

    def __init__(self) -> None:
        self.readers: set[int] = set()

    async def genesis(self) -> bool:
        return True

    @property
    def base(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        self.readers.add(threading.get_ident())
        return np.arange(3, dtype=np.float32)


def test_initial_weights_are_copied_in_a_thread() -> None:
    """Those of a model of 215 million parameters are 860 MB."""
    trainer, committed, trainings = Trainer(), MagicMock(), MagicMock()
    trainings.trainer, trainings.run_in_thread = trainer, trio.to_thread.run_sync
    parts: list[Any] = [MagicMock() for _ in range(5)]
    swarm, chain_sync, follower, prover, fetcher = parts
    joiner = Joiner(
        committed, chain_sync, swarm, trainings, follower, prover, fetcher, has_bootstrap=False
    )
    assert trio.run(joiner._draw_genesis)
    (initial,) = committed.set_genesis.call_args.args
    assert initial.tolist() == [0.0, 1.0, 2.0]
    assert trainer.readers
    assert threading.get_ident() not in trainer.readers
