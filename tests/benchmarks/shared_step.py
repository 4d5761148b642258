"""How long does a shared step of `distro` take a daemon, with one thread and with more?

    python -m tests.benchmarks.shared_step
    python -m tests.benchmarks.shared_step --preset 150m --threads 1 2 4

A step of the preset's parameters with the parts of some members, without their decoding: wall time,
and the processor's time of all threads, which a busy machine spoils less; the least of some
repetitions. The parameters afterwards are the same bits whatever the threads (checked).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from functools import partial

import blake3
import numpy as np

from gossamer.node.base.threads import PIECE_ELEMENTS, map_pieces
from gossamer.protocol.codecs.sign_codec import SignUpdate
from gossamer.protocol.state.exact_transform import grids_of, pieces_of
from gossamer.protocol.state.shared_step import shared_step
from gossamer.trainer.presets.table import PRESETS

KEPT = 4
"""Signs of a tile in each member's part."""


def update_of(num_parameters: int, seed: int) -> SignUpdate:
    draw = np.random.default_rng(seed)
    places = np.unique(draw.integers(0, num_parameters, KEPT * num_parameters // 4096))
    return SignUpdate(places, draw.random(len(places)) < 0.5)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", choices=PRESETS, default="40m")
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(arguments)
    model = PRESETS[options.preset].model
    num_parameters = model.num_parameters
    updates = [update_of(num_parameters, seed) for seed in range(options.members)]
    whole = grids_of(model)
    pieces = pieces_of(whole, PIECE_ELEMENTS)
    arms = [("whole tensors", 1, whole)]
    arms += [("pieces", threads, pieces) for threads in options.threads]
    print(f"{options.preset}: {num_parameters:,} parameters, {options.members} members")
    digests = set()
    for name, threads, grids in arms:
        walls, cpus = [], []
        for _ in range(options.repeats):
            parameters = np.zeros(num_parameters, np.float32)
            wall, cpu = time.perf_counter(), time.process_time()
            apply = partial(map_pieces, num_threads=threads)
            shared_step(grids, parameters, updates, 1e-3, 0.1, parameters, apply)
            walls.append(time.perf_counter() - wall)
            cpus.append(time.process_time() - cpu)
        digests.add(blake3.blake3(parameters.tobytes()).hexdigest())
        wall, cpu = (1e9 * min(times) / num_parameters for times in (walls, cpus))
        print(f"{name:<14} {threads} threads  {wall:5.1f} ns of wall, {cpu:5.1f} ns of processor")
    assert len(digests) == 1


if __name__ == "__main__":
    main()
