"""Runs any number of simulated worlds on all processors, and says how to replay those that fail.

python -m tests.sim.run --seeds 10000 [--start 0]
python -m tests.sim.run --seeds 1 --start 4711 --verbose
python -m tests.sim.run --seeds 100 --bug "double count"
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.sim.planted import BUGS
from tests.sim.pool import run_seed, run_seeds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--verbose", action="store_true", help="print what happens in each world")
    parser.add_argument("--failures", type=int, default=10, help="stop after this many")
    parser.add_argument("--bug", choices=sorted(BUGS), help="plant this bug in every peer")
    arguments = parser.parse_args()
    bug = arguments.bug
    seeds = range(arguments.start, arguments.start + arguments.seeds)
    statistics: Counter[str] = Counter()
    num_worlds = num_failures = 0
    started = time.perf_counter()
    outcomes = (
        (run_seed(seed, bug=bug, verbose=True) for seed in seeds)
        if arguments.verbose
        else run_seeds(seeds, bug=bug)
    )
    for outcome in outcomes:
        num_worlds += 1
        statistics.update(outcome.statistics)
        if outcome.error is not None:
            num_failures += 1
            print(outcome, flush=True)
            if arguments.verbose:
                print(outcome.trace)
            if num_failures >= arguments.failures:
                break
    print(f"{time.perf_counter() - started:.1f} s, {num_worlds} worlds, {num_failures} failures")
    for what, count in sorted(statistics.items()):
        print(f"{count:9}  {what}")
    return 1 if num_failures else 0


if __name__ == "__main__":
    sys.exit(main())
