"""What do a daemon's passes over the vectors cost in a round, with one thread and with more?

    python -m tests.benchmarks.round_passes                       # docs/benchmarks/ring.md
    python -m tests.benchmarks.round_passes --codec int8 --threads 1 4 16

The passes that a round waits for outside its ring, one after the other, with the node's own code:

    promise       the root over the work, for `Ready`
    outer step    averages decoded and in their places, and the digests of the next state
    in place      the step on the state itself
    settle        rounding errors, and the vector of the offer to its file
    checkpoint    the blocks of the whole state to their files

Nanoseconds a parameter, of the wall and of the processor (all threads); the least of some turns,
because other work disturbs single ones. The state is the same bits whatever the threads (checked).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest.mock import patch

import msgspec
import numpy as np

from gossamer.node.base import threads
from gossamer.node.modes.pending_work import Contributions, FinishedSum
from gossamer.node.network.identity import Identity
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.storage.state.next_state import NextState
from gossamer.node.storage.state.state_blocks import StateVectors, write_state
from gossamer.node.storage.work.own_work import Work
from gossamer.node.telemetry.metrics import Metrics
from gossamer.protocol.accounting.ledger import Ledger
from gossamer.protocol.codecs.inner_products import norm_of
from gossamer.protocol.codecs.payloads import SumPayloads
from gossamer.protocol.ids import digest_of
from gossamer.protocol.limits import TOKENS_TOTAL_MAX
from gossamer.protocol.manifest import Manifest, decode_manifest
from gossamer.protocol.state.chain import Member
from gossamer.protocol.state.chunk_plan import ChunkPlan, default_chunk_elements
from gossamer.protocol.state.digest import index_of
from gossamer.trainer.presets.table import PRESETS
from tests.support.node_world import found

MEMBERS = 4
HEADS = [digest_of(bytes([number])) for number in range(2)]
RING = digest_of(b"ring")

Costs = dict[str, tuple[float, float]]
"""Seconds of the wall and of the processor by pass."""


def manifest_of(preset: str, codec: str, displacement: float) -> Manifest:
    model = PRESETS[preset].model
    manifest = decode_manifest(found(Identity.from_seed(bytes(32)))[0].manifest)
    outer = msgspec.structs.replace(
        manifest.outer,
        codec=codec,
        chunk_elements=default_chunk_elements(model.num_parameters),
        displacement=displacement,
    )
    return msgspec.structs.replace(manifest, model=model, outer=outer)


def turn(manifest: Manifest, root: Path) -> tuple[Costs, bytes]:
    """One round's passes, and the digest of the state to which they lead."""
    size = manifest.model.num_parameters
    plan = ChunkPlan(size, manifest.outer.chunk_elements)
    draw = np.random.default_rng(0)
    parameters, momentum = (draw.standard_normal(size, np.float32) for _ in range(2))
    pending = draw.standard_normal(size, np.float32)
    next_state = NextState(manifest, plan, parameters)
    payloads = next_state.payloads
    assert isinstance(payloads, SumPayloads)
    work = Work(root / "work", pending, plan, 4, Metrics(), tokens_max=TOKENS_TOTAL_MAX)
    work.stepped(1)
    work.trained(HEADS[0], 1, 1, ())
    work.offer(HEADS[0], 1)
    part = FinishedSum(pending, plan, payloads.coder, [1] * MEMBERS, 0, None)
    averages = []
    for chunk in range(plan.num_chunks):
        own = part.add(chunk, None, 0)
        averages.append(
            part.finish_average(chunk, own, 1)
            if chunk % MEMBERS == 0
            else payloads.coder.encode(pending[plan.range_of(chunk)])
        )
    work.followed(RING, part)
    store = BlockStore(root / "blocks", 2**40)
    present = StateVectors(parameters, momentum, index_of(parameters, momentum, plan))
    members = [Member("", 1, norm_of(pending))] * MEMBERS
    masks = [(1 << MEMBERS) - 1] * plan.num_chunks
    every = (1 << plan.num_chunks) - 1
    costs: Costs = {}

    def measured(name: str, work: Callable[[], object]) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        costs[name] = time.perf_counter() - wall, time.process_time() - cpu

    contributions = Contributions(payloads, 1.0)
    measured("promise", lambda: contributions.root_of(pending, plan))
    measured("outer step", lambda: next_state.compute(present, 1, averages, masks, members))
    measured("in place", lambda: next_state.apply(present))
    measured(
        "settle",
        lambda: work.committed_by(HEADS[1], HEADS[0], RING, 1, every, counts_spans=True),
    )
    index = index_of(parameters, momentum, plan)
    measured("checkpoint", lambda: write_state(store, plan, present, Ledger()))
    return costs, index.digest + digest_of(pending.view(np.uint8).data)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", choices=PRESETS, default="40m")
    parser.add_argument("--codec", default="int4")
    parser.add_argument("--displacement", type=float, default=0.0)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args(arguments)
    manifest = manifest_of(options.preset, options.codec, options.displacement)
    size = manifest.model.num_parameters
    print(f"{options.preset}: {size:,} parameters, {options.codec}")
    least: dict[int, Costs] = {number: {} for number in options.threads}
    states = set()
    folder = "/dev/shm" if Path("/dev/shm").is_dir() else None
    for repeat in range(options.turns + 1):
        for number, costs in least.items():
            with (
                tempfile.TemporaryDirectory(dir=folder) as root,
                patch.object(threads, "num_usable_cores", lambda n=number: n),
            ):
                found_costs, state = turn(manifest, Path(root))
            states.add(state)
            if not repeat:
                continue  # the first one finds no memory in the heap
            for name, (wall, cpu) in found_costs.items():
                before = costs.get(name, (wall, cpu))
                costs[name] = min(wall, before[0]), min(cpu, before[1])
    for name in least[options.threads[0]]:
        of_threads = (
            f"{number} threads {1e9 * wall / size:5.1f} wall {1e9 * cpu / size:5.1f} processor"
            for number, costs in least.items()
            for wall, cpu in [costs[name]]
        )
        print(f"{name:<12}", "   ".join(of_threads), flush=True)
    assert len(states) == 1, "the bits depend on the threads"


if __name__ == "__main__":
    main()
