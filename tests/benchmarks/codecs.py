"""How fast are the ring's codecs, and what do they cost in accuracy?

    python -m tests.benchmarks.codecs
    python -m tests.benchmarks.codecs --rounds 50 --distribution laplace
    python -m tests.benchmarks.codecs --only-large
    python -m tests.benchmarks.codecs --only-sparse --top-k 1024

Speed, on one core: megabytes (1e6) of fp32 a second, encoded and decoded chunk by chunk (1 MiB
each) over a vector that no cache holds; median of the turns. What sparse rings send is decoded to
places and values.

Accuracy: rings of N members with the arithmetic of a node (`protocol/rounds/ring/ring_parts.py`),
every member's vector drawn independently. Relative errors (norm of the error / norm of the exact
value):

    hop       one encoding of one vector
    average   the average of one round, against the exact mean
    all       the sum of the averages of all rounds against the sum of the exact means: what
              training has got in the end. "dropped": every member forgets its rounding errors;
              "carried": it adds them to its next vector, as nodes do (error feedback)

Large rings: `int4` with and without wider sums, the same errors with error feedback, and the bits
that a member sends for each value in a round. Large sparse rings: sets of all members' parts, and
sets that become sums; how far an average of sums is from that of the sets of the same work, and the
errors of all rounds with error feedback, of which most is what was not sent yet.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
from rich.console import Console
from rich.table import Table

from gossamer.protocol.codecs.payloads import SPARSE, AveragedPayloads, payloads_named
from gossamer.protocol.codecs.sparse_codec import DEFAULT_K, SparseCodec
from gossamer.protocol.codecs.tensor_codecs import TensorCodec, codec, codec_names
from gossamer.protocol.rounds.ring.set_parts import ring_average
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.state.digest import FloatVector

CHUNK_ELEMENTS = 256 * 1024
NUM_MEMBERS = (2, 4, 8)
LARGE_RINGS = (2, 4, 8, 16, 32, 64, 128, 256)
DRAWS: dict[str, Callable[[np.random.Generator, int], FloatVector]] = {
    "normal": lambda rng, size: rng.standard_normal(size).astype(np.float32),
    "laplace": lambda rng, size: rng.laplace(size=size).astype(np.float32),
}


def relative_error(found: FloatVector, exact: FloatVector) -> float:
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


def speeds(coder: TensorCodec | SparseCodec, num_chunks: int, turns: int) -> tuple[float, float]:
    """(encoded, decoded) MB of fp32 a second."""
    plan = ChunkPlan(num_chunks * CHUNK_ELEMENTS, CHUNK_ELEMENTS)
    values = np.random.default_rng(0).standard_normal(plan.num_elements, dtype=np.float32)
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(turns):
        started = time.perf_counter()
        encoded = [coder.encode(values[plan.range_of(chunk)]) for chunk in range(num_chunks)]
        seconds[0].append(time.perf_counter() - started)
        started = time.perf_counter()
        for data in encoded:
            coder.decode(data, CHUNK_ELEMENTS)
        seconds[1].append(time.perf_counter() - started)
    encode, decode = (values.nbytes / statistics.median(each) / 1e6 for each in seconds)
    return encode, decode


def errors_of_ring(
    payloads: AveragedPayloads, num_members: int, options: argparse.Namespace, *, carries: bool
) -> tuple[float, float]:
    """(error of the first average, error of the sum of all)."""
    rng = np.random.default_rng(0)
    plan = ChunkPlan(options.elements, CHUNK_ELEMENTS)
    residuals = [np.zeros(options.elements, np.float32) for _ in range(num_members)]
    total, exact_total = np.zeros((2, options.elements), np.float32)
    first = 0.0
    for number in range(options.rounds):
        vectors = [DRAWS[options.distribution](rng, options.elements) for _ in range(num_members)]
        pendings = [v + residual for v, residual in zip(vectors, residuals, strict=True)]
        average = ring_average(pendings, [1] * num_members, plan, payloads)
        if carries:
            residuals = pendings
        exact = np.stack(vectors).mean(axis=0, dtype=np.float64).astype(np.float32)
        if number == 0:
            first = relative_error(average, exact)
        total += average
        exact_total += exact
    return first, relative_error(total, exact_total)


def print_speeds(console: Console, options: argparse.Namespace) -> None:
    table = Table(title=f"MB of fp32 a second on one core ({options.megabytes} MB)")
    for column in ("codec", "bits a value", "encode", "decode"):
        table.add_column(column, justify="right")
    num_chunks = max(1, options.megabytes * 1_000_000 // (4 * CHUNK_ELEMENTS))
    coders: dict[str, TensorCodec | SparseCodec] = {name: codec(name) for name in codec_names()}
    widening = codec("int4", is_widening=True)
    wide = {coder.name: coder for coder in map(widening.of_sum, (9, 33, 129))}
    for name, coder in {**coders, **wide, "sparse": SparseCodec()}.items():
        bits = 8 * coder.encoded_bytes(CHUNK_ELEMENTS) / CHUNK_ELEMENTS
        encode, decode = speeds(coder, num_chunks, options.turns)
        table.add_row(name, f"{bits:.3f}", f"{encode:,.0f}", f"{decode:,.0f}")
    console.print(table)


def print_errors(console: Console, options: argparse.Namespace) -> None:
    table = Table(
        title=f"relative errors, {options.elements:,} values, {options.distribution}, "
        f"{options.rounds} rounds"
    )
    for column in ("codec", "N", "hop", "average", "all, dropped", "all, carried"):
        table.add_column(column, justify="right")
    values = DRAWS[options.distribution](np.random.default_rng(1), options.elements)
    for name in codec_names():
        hop = relative_error(codec(name).decode(codec(name).encode(values), len(values)), values)
        for num_members in NUM_MEMBERS:
            kind = payloads_named(name)
            average, dropped = errors_of_ring(kind, num_members, options, carries=False)
            _, carried = errors_of_ring(kind, num_members, options, carries=True)
            errors = (f"{error:.1e}" for error in (hop, average, dropped, carried))
            table.add_row(name, str(num_members), *errors)
    console.print(table)


def print_large_rings(console: Console, options: argparse.Namespace) -> None:
    table = Table(
        title=f"large rings, {options.large_elements:,} values, {options.distribution}, "
        f"{options.rounds} rounds"
    )
    kinds = {
        "int4": payloads_named("int4"),
        "widening": payloads_named("int4", is_widening=True),
    }
    columns = [f"{kind}: {what}" for kind in kinds for what in ("average", "all, carried", "bits")]
    for column in ("N", *columns):
        table.add_column(column, justify="right")
    large = argparse.Namespace(**{**vars(options), "elements": options.large_elements})
    for num_members in LARGE_RINGS:
        row = [str(num_members)]
        for payloads in kinds.values():
            average, carried = errors_of_ring(payloads, num_members, large, carries=True)
            row += [f"{average:.3f}", f"{carried:.3f}", f"{bits_sent(payloads, num_members):.2f}"]
        table.add_row(*row)
    console.print(table)


def print_large_sparse_rings(console: Console, options: argparse.Namespace) -> None:
    table = Table(
        title=f"large sparse rings, {options.large_elements:,} values, {options.top_k} of each "
        f"4,096, {options.distribution}, {options.rounds} rounds"
    )
    sets = payloads_named(SPARSE, options.top_k)
    sums = payloads_named(SPARSE, options.top_k, sparse_sums_of=CHUNK_ELEMENTS)
    columns = ("sets: all, carried", "bits", "sums: from the sets", "all, carried", "bits")
    for column in ("N", *columns, "int4: bits"):
        table.add_column(column, justify="right")
    large = argparse.Namespace(**{**vars(options), "elements": options.large_elements})
    for num_members in LARGE_RINGS:
        _, of_sets = errors_of_ring(sets, num_members, large, carries=True)
        _, of_sums = errors_of_ring(sums, num_members, large, carries=True)
        averages = [first_average(kind, num_members, large) for kind in (sets, sums)]
        dense = payloads_named("int4", is_widening=True)
        row = [
            f"{of_sets:.4f}",
            f"{bits_sent(sets, num_members):.2f}",
            f"{relative_error(averages[1], averages[0]):.3f}",
            f"{of_sums:.4f}",
            f"{bits_sent(sums, num_members):.2f}",
            f"{bits_sent(dense, num_members):.2f}",
        ]
        table.add_row(str(num_members), *row)
    console.print(table)


def first_average(
    payloads: AveragedPayloads, num_members: int, options: argparse.Namespace
) -> FloatVector:
    """The average of one round."""
    rng = np.random.default_rng(0)
    vectors = [DRAWS[options.distribution](rng, options.elements) for _ in range(num_members)]
    plan = ChunkPlan(options.elements, CHUNK_ELEMENTS)
    return ring_average(vectors, [1] * num_members, plan, payloads)


def bits_sent(payloads: AveragedPayloads, num_members: int) -> float:
    """Bits that each member sends in a round, for each value of the vector."""
    on_way = payloads.mean_bytes(CHUNK_ELEMENTS, num_members)
    return 2 * (num_members - 1) / num_members * 8 * on_way / CHUNK_ELEMENTS


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=256, help="of the vector for speed")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--elements", type=int, default=512 * 1024, help="of those for accuracy")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--distribution", choices=DRAWS, default="normal")
    parser.add_argument("--large-elements", type=int, default=32 * 1024)
    parser.add_argument("--only-large", action="store_true", help="only the tables of large rings")
    parser.add_argument("--only-sparse", action="store_true", help="only that of sparse ones")
    parser.add_argument("--top-k", type=int, default=DEFAULT_K, help="of sparse rings")
    options = parser.parse_args()
    console = Console(width=120)
    if options.only_sparse:
        print_large_sparse_rings(console, options)
        return
    if not options.only_large:
        print_speeds(console, options)
        print_errors(console, options)
    print_large_rings(console, options)
    print_large_sparse_rings(console, options)


if __name__ == "__main__":
    main()
