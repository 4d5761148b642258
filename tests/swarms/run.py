"""Runs any number of swarms of whole nodes, and says how to replay those that fail.

python -m tests.swarms.run --seeds 200 [--start 0] [--mode distro]
python -m tests.swarms.run --seeds 1 --start 17 --verbose
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback
from collections import Counter

import structlog

from tests.swarms.swarm_story import MODES
from tests.swarms.swarm_world import replay, run_seed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--mode", choices=MODES, default="distro")
    parser.add_argument("--verbose", action="store_true", help="print what happens")
    arguments = parser.parse_args()
    level = logging.DEBUG if arguments.verbose else logging.CRITICAL
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(level))
    counts: Counter[str] = Counter()
    num_swarms = num_failures = 0
    started = time.process_time()
    for seed in range(arguments.start, arguments.start + arguments.seeds):
        try:
            counts.update(run_seed(seed, arguments.mode, verbose=arguments.verbose))
        except KeyboardInterrupt:
            break  # what was found until now is said
        except Exception as error:
            num_failures += 1
            text = str(error.exceptions[0] if isinstance(error, ExceptionGroup) else error)
            print(f"seed {seed}: {type(error).__name__}: {text}")
            print(f"  replay: {replay(seed, arguments.mode)}", flush=True)
            if arguments.verbose:
                traceback.print_exc()
        num_swarms += 1
    seconds = time.process_time() - started
    print(f"{num_swarms} swarms, {num_failures} failures, {seconds:.0f} s of CPU")
    for what, count in sorted(counts.items()):
        print(f"{count:9}  {what}")
    return 1 if num_failures else 0


if __name__ == "__main__":
    sys.exit(main())
