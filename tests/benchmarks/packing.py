"""How much shorter does packing make a chunk on its way, and at what price?

    python -m tests.benchmarks.packing [--preset 1m] [--rounds 6] [--text FILES]

Two peers train a few rounds on real text (that of Python's library, if no other is named).
Then all chunks of one peer's work, and of the sum of both, are encoded and packed as a ring's links
do it. Beside the codecs that have a packing stands what zstd as it is would make of the payloads of
the others, and of fp16.

Columns:
    of 100 bytes   that travel: of one peer's work, and of the sum of both
    MB/s           of payload on one core, packing and unpacking; median of all chunks
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

import numpy as np
import zstandard
from msgspec.structs import replace
from rich.console import Console
from rich.table import Table

from gossamer.protocol.codecs.chunk_values import Buffer, Float32Array
from gossamer.protocol.codecs.packing import LAYOUTS
from gossamer.protocol.codecs.payloads import payloads_named
from gossamer.protocol.codecs.tensor_codecs import codec, codec_names
from gossamer.protocol.manifest import InnerOptimizer
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.trainer.presets.modes import adapted
from gossamer.trainer.presets.table import PRESETS
from gossamer.trainer.text.shard_folder import cut_text
from gossamer.trainer.train import Swarm, Worker

NUM_PEERS = 2
ONE = 0b1


def works_of(
    options: argparse.Namespace, optimizer: InnerOptimizer
) -> tuple[ChunkPlan, list[Float32Array]]:
    """Each peer's work of the round after `options.rounds` others: (num_parameters,)."""
    run = adapted(PRESETS[options.preset], "diloco")
    run = replace(run, inner=replace(run.inner, optimizer=optimizer))
    with tempfile.TemporaryDirectory() as folder:
        text = cut_text(options.text, Path(folder), run.tokenizer, run.model, 1)
        swarm = Swarm(run, "diloco", 1)
        workers = [Worker(run, text.token_bytes) for _ in range(NUM_PEERS)]
        for number, worker in enumerate(workers):
            text.push_shards(worker.queue, range(number, len(text.index.shards), NUM_PEERS))
        for number in range(1, options.rounds + 1):
            swarm.round(number, workers)
        first, steps = run.outer.first_inner_step_of(number + 1), run.outer.inner_steps
        for worker in workers:
            worker.train(swarm.parameters, first, steps)
    return swarm.plan, [worker.pending for worker in workers]


def rates_of(
    name: str, plan: ChunkPlan, work: Float32Array, compress: Callable[[Buffer], bytes] | None
) -> tuple[float, float, float]:
    """(part of the bytes that travels, MB/s of packing, MB/s of unpacking) of all chunks."""
    payloads = payloads_named(name, is_packing=True)
    whole, sent = 0, 0
    seconds: tuple[list[float], list[float]] = ([], [])
    for chunk in range(plan.num_chunks):
        payload = codec(name).encode(np.ascontiguousarray(work[plan.range_of(chunk)]))
        whole += len(payload)
        if compress is not None:
            sent += min(len(payload), len(compress(payload)))
            continue
        packing = payloads.packing(plan.elements_of(chunk), ONE)
        assert packing is not None
        started = time.thread_time()
        parts = packing.pack(payload)
        seconds[0].append((time.thread_time() - started) / len(payload))
        packed = b"".join(bytes(part) for part in parts)
        sent += len(packed)
        if packing.is_length(len(packed)):
            started = time.thread_time()
            unpacked = packing.unpack(packed)
            seconds[1].append((time.thread_time() - started) / len(payload))
            assert bytes(unpacked) == bytes(payload)
    pack, unpack = (1e-6 / statistics.median(each) if each else 0.0 for each in seconds)
    return sent / whole, pack, unpack


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", choices=PRESETS, default="1m")
    parser.add_argument("--rounds", type=int, default=6, help="before the one that is looked at")
    parser.add_argument("--text", type=Path, nargs="+", default=(), help="files and folders")
    options = parser.parse_args(arguments)
    console = Console(width=120)
    table = Table(title=f"packing of {options.preset}, after {options.rounds} rounds")
    for column in ("optimizer", "codec", "of 100 bytes", "of a sum", "pack MB/s", "unpack MB/s"):
        table.add_column(column, justify="right")
    compress = zstandard.ZstdCompressor(level=3).compress
    for optimizer in get_args(InnerOptimizer):
        plan, works = works_of(options, optimizer)
        total = np.stack(works).sum(axis=0, dtype=np.float32)
        for name in codec_names():
            kinds = [(name, None)] if name in LAYOUTS else []
            for label, kind in (*kinds, (f"{name}, zstd alone", compress)):
                one, pack, unpack = rates_of(name, plan, works[0], kind)
                both, _, _ = rates_of(name, plan, total, kind)
                speeds = [f"{speed:,.0f}" if speed else "-" for speed in (pack, unpack)]
                table.add_row(optimizer, label, f"{100 * one:.1f}", f"{100 * both:.1f}", *speeds)
    console.print(table)


if __name__ == "__main__":
    main()
