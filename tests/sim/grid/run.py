"""Rows and columns in a simulation.

python -m tests.sim.grid.run --rows 8 --columns 8 --faults 3 --seeds 2000
python -m tests.sim.grid.run --rows 100 --columns 100 --seeds 1
"""

from __future__ import annotations

import argparse
import statistics
import time

from tests.sim.grid.member import Grid
from tests.sim.grid.world import World


def main() -> None:
    parser = argparse.ArgumentParser(description="Rings in rows and columns, simulated.")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--columns", type=int, default=8)
    parser.add_argument("--chunks", type=int, help="one for each column, if not said otherwise")
    parser.add_argument("--faults", type=int, default=0, help="at most, drawn for each seed")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    grid = Grid(options.rows, options.columns, options.chunks or options.columns)
    began = time.monotonic()
    outcomes = []
    for seed in range(options.start, options.start + options.seeds):
        outcomes.append(World(grid, seed, seed % (options.faults + 1)).run())
    print(
        f"{len(outcomes)} worlds of {options.rows} x {options.columns} in "
        f"{time.monotonic() - began:.0f} s"
    )
    for name in ("num_incomplete", "num_different", "num_wrong"):
        bad = [s for s, o in enumerate(outcomes, options.start) if getattr(o, name)]
        print(f"{name}: {len(bad)} worlds {bad[:10]}")
    print(
        f"lost: {statistics.mean(o.lost for o in outcomes):.5f} on average, "
        f"{max(o.lost for o in outcomes):.4f} at most"
    )
    print(f"duration, in delays of a message: {statistics.median(o.seconds for o in outcomes):.1f}")
    print(f"messages: {statistics.median(o.num_messages for o in outcomes):.0f}")


if __name__ == "__main__":
    main()
