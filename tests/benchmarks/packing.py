"""How much shorter does packing make a chunk on its way, and at what price?

    python -m tests.benchmarks.packing [--preset 1m] [--rounds 6] [--text FILES]
    python -m tests.benchmarks.packing --only-sparse --chunk-elements 262144

Two peers train a few rounds on real text (that of Python's library, if no other is named).
Then all chunks of one peer's work, and of the sum of both, are encoded and packed as a ring's links
do it. Beside the codecs that have a packing stands what zstd as it is would make of the payloads of
the others, and of fp16. Sparse updates stand with the number of values that they keep of each
4,096; their "sum" is the list of both peers' updates.

Columns:
    of 100 bytes   that travel: of one peer's work, and of the sum of both
    bits           a value of one peer's work, as they travel
    MB/s           of payload on one core, packing and unpacking; median of all chunks
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias, get_args

import numpy as np
import zstandard
from msgspec.structs import replace
from rich.console import Console
from rich.table import Table

from gossamer.protocol.codecs.chunk_values import Buffer, Float32Array
from gossamer.protocol.codecs.contributions import add_record
from gossamer.protocol.codecs.packing import LAYOUTS
from gossamer.protocol.codecs.payloads import SPARSE, Payloads, payloads_named
from gossamer.protocol.codecs.sparse_codec import SparseCodec
from gossamer.protocol.codecs.tensor_codecs import codec, codec_names
from gossamer.protocol.manifest import InnerOptimizer
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.trainer.presets.modes import adapted
from gossamer.trainer.presets.table import PRESETS
from gossamer.trainer.text.shard_folder import cut_text
from gossamer.trainer.train import Swarm, Worker

NUM_PEERS = 2
TOP_KS = (64, 256, 1024, 2048, 4096)


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
            text.push_shards(worker.queue.push, range(number, len(text.index.shards), NUM_PEERS))
        for number in range(1, options.rounds + 1):
            swarm.round(number, workers)
        first, steps = run.outer.first_inner_step_of(number + 1), run.outer.inner_steps
        for worker in workers:
            worker.train(swarm.parameters, first, steps)
    return swarm.plan, [worker.pending for worker in workers]


class Rates(NamedTuple):
    """Of all chunks."""

    part: float
    """Part of the bytes that travels."""
    bits: float
    """Bits that travel, for each value."""
    pack: float
    unpack: float
    """MB/s of payload; 0: nothing was unpacked."""


Encode: TypeAlias = Callable[[Sequence[Float32Array]], Buffer]
"""Function from each peer's values of a chunk to the payload of these peers."""


def encode_sum(name: str) -> Encode:
    """The sum of the peers' values in a dense codec."""
    return lambda values: codec(name).encode(np.stack(values).sum(axis=0, dtype=np.float32))


def encode_list(coder: SparseCodec) -> Encode:
    """The list of the peers' sparse updates."""

    def encode(values: Sequence[Float32Array]) -> Buffer:
        payload = b""
        for position, each in enumerate(values):
            payload = add_record(payload, position, coder.encode(each))
        return payload

    return encode


def rates_of(
    payloads: Payloads,
    encode: Encode,
    plan: ChunkPlan,
    works: Sequence[Float32Array],
    compress: Callable[[Buffer], bytes] | None = None,
) -> Rates:
    """The rates of packing the work of so many peers, or of `compress`."""
    whole, sent, mask = 0, 0, (1 << len(works)) - 1
    seconds: tuple[list[float], list[float]] = ([], [])
    for chunk in range(plan.num_chunks):
        payload = encode([np.ascontiguousarray(work[plan.range_of(chunk)]) for work in works])
        whole += len(payload)
        if compress is not None:
            sent += min(len(payload), len(compress(payload)))
            continue
        packing = payloads.packing(plan.elements_of(chunk), mask)
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
    return Rates(sent / whole, 8 * sent / works[0].size, pack, unpack)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", choices=PRESETS, default="1m")
    parser.add_argument("--rounds", type=int, default=6, help="before the one that is looked at")
    parser.add_argument("--text", type=Path, nargs="+", default=(), help="files and folders")
    parser.add_argument("--only-sparse", action="store_true")
    parser.add_argument("--chunk-elements", type=int, help="of sparse updates; None: the preset's")
    options = parser.parse_args(arguments)
    console = Console(width=120)
    table = Table(title=f"packing of {options.preset}, after {options.rounds} rounds")
    for column in ("optimizer", "codec", "of 100 bytes", "of a sum", "bits", "pack", "unpack MB/s"):
        table.add_column(column, justify="right")
    compress = zstandard.ZstdCompressor(level=3).compress
    for optimizer in get_args(InnerOptimizer):
        plan, works = works_of(options, optimizer)

        def add(label: str, one: Rates, both: Rates, optimizer: str = optimizer) -> None:
            speeds = [f"{speed:,.0f}" if speed else "-" for speed in (one.pack, one.unpack)]
            parts = (f"{100 * one.part:.1f}", f"{100 * both.part:.1f}", f"{one.bits:.3f}")
            table.add_row(optimizer, label, *parts, *speeds)

        for name in () if options.only_sparse else codec_names():
            kinds = [(name, None)] if name in LAYOUTS else []
            for label, kind in (*kinds, (f"{name}, zstd alone", compress)):
                payloads = payloads_named(name, is_packing=True)
                one, both = (
                    rates_of(payloads, encode_sum(name), plan, some, kind)
                    for some in (works[:1], works)
                )
                add(label, one, both)
        of_sparse = ChunkPlan(plan.num_elements, options.chunk_elements or plan.chunk_elements)
        for top_k in TOP_KS:
            payloads, encode = (
                payloads_named(SPARSE, top_k, is_packing=True),
                encode_list(SparseCodec(top_k)),
            )
            one, both = (rates_of(payloads, encode, of_sparse, some) for some in (works[:1], works))
            add(f"sparse, {top_k}", one, both)
    console.print(table)


if __name__ == "__main__":
    main()
