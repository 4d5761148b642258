"""Many seeds on all processors."""

from __future__ import annotations

import gc
import multiprocessing
import os
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from tests.sim.planted import planted
from tests.sim.simulator.world import simulate

SEEDS_AT_ONCE = 8
"""That a process is given: worlds differ much in size, and all processes should end together."""


_YOUNGEST = 0
"""Generation of the garbage collector: what has come up since it looked last."""


@dataclass(frozen=True)
class Outcome:
    """What became of one seed's world."""

    seed: int
    error: str | None
    """What went wrong, in a line; None: all is well."""
    trace: str
    statistics: Counter[str]

    @property
    def replay(self) -> str:
        """The command that shows what happened."""
        return f"python -m tests.sim.run --start {self.seed} --seeds 1 --verbose"

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.error}\n  replay: {self.replay}"


def run_seed(seed: int, *, bug: str | None = None, verbose: bool = False) -> Outcome:
    """Runs the world of one seed to its end; `bug`: with one of those that are planted."""
    # A world is one web of references until it ends: to look for garbage in it before is in vain.
    gc.disable()
    try:
        with planted(bug):
            statistics = simulate(seed, verbose=verbose).statistics
    except Exception as error:
        return Outcome(seed, f"{type(error).__name__}: {error}", traceback.format_exc(), Counter())
    finally:
        gc.enable()
        gc.collect(_YOUNGEST)
    return Outcome(seed, None, "", statistics)


def run_seeds(seeds: Iterable[int], *, bug: str | None = None) -> Iterator[Outcome]:
    """In parallel; outcomes come in the order of the seeds."""
    with simulating(seeds, bug=bug) as outcomes:
        yield from outcomes


@contextmanager
def simulating(seeds: Iterable[int], *, bug: str | None = None) -> Iterator[Iterator[Outcome]]:
    """Simulates the worlds while the block lasts, whether or not somebody waits for outcomes. These
    come in the order of the seeds."""
    # Started anew, not forked: the caller may have threads.
    context = multiprocessing.get_context("spawn")
    with context.Pool(os.cpu_count()) as pool:
        yield pool.imap(partial(run_seed, bug=bug), seeds, chunksize=SEEDS_AT_ONCE)
