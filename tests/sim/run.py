"""Runs any number of simulated worlds, and says how to replay the ones that fail.

python tests/sim/run.py --seeds 10000 [--start 0]
python tests/sim/run.py --seeds 1 --start 4711 --verbose
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from simulator import simulate


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--verbose", action="store_true", help="print what happens in each world")
    parser.add_argument("--failures", type=int, default=10, help="stop after this many")
    arguments = parser.parse_args()
    statistics: Counter[str] = Counter()
    failures = 0
    started = time.perf_counter()
    for seed in range(arguments.start, arguments.start + arguments.seeds):
        try:
            statistics.update(simulate(seed, verbose=arguments.verbose).statistics)
        except Exception as error:
            failures += 1
            print(f"seed {seed}: {type(error).__name__}: {error}")
            print(f"  replay: python tests/sim/run.py --start {seed} --seeds 1 --verbose")
            if arguments.verbose:
                traceback.print_exc()
            if failures >= arguments.failures:
                break
    print(f"{time.perf_counter() - started:.1f} s, {failures} failures")
    for what, count in sorted(statistics.items()):
        print(f"{count:9}  {what}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
