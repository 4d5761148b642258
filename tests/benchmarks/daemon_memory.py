"""How many bytes a parameter does a daemon take?

Two real daemons train and average on this machine, in each way of averaging, with models of two
sizes. The peak of the resident memory of a daemon (without its trainer) grows by so many bytes for
each further parameter; what is left is that of the interpreter and the libraries. The models train
on few tokens, so that rounds are quick: the daemon's memory does not depend on that.

    python -m tests.benchmarks.daemon_memory
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import msgspec
import psutil
from rich.console import Console
from rich.table import Table

from gossamer.node.demo.local_swarm import LocalSwarm
from gossamer.node.runs.planning.draft import Draft, draft_of_preset
from gossamer.node.runs.planning.manifest_file import write_manifest_file
from gossamer.protocol.sync_modes import SyncMode
from gossamer.trainer.presets.modes import default_optimizer

WIDTHS = (512, 768)
ROUNDS = 4
"""Rounds of both after the first one: all buffers of a ring are in use after two."""

ASK_SECONDS = 0.05
PATIENCE_SECONDS = 900.0
MODES = ("fp32", "fp16", "int8", "int4", "int4+overlap", "sparse", "distro")
SYNC_MODES: dict[str, SyncMode] = {"sparse": "sparse", "distro": "distro"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    table = Table(title="peak resident memory of the larger of two daemons")
    for name in ("mode", "small", "large", "bytes a parameter", "without a model"):
        table.add_column(name, justify="right")
    for mode in parser.parse_args().modes:
        drafts = [_draft(mode, width) for width in WIDTHS]
        small, large = (draft.model.num_parameters for draft in drafts)
        peaks = [_peak_bytes(draft) for draft in drafts]
        slope = (peaks[1] - peaks[0]) / (large - small)
        table.add_row(
            mode,
            f"{small / 1e6:.1f} M: {peaks[0] / 1e6:.0f} MB",
            f"{large / 1e6:.1f} M: {peaks[1] / 1e6:.0f} MB",
            f"{slope:.1f}",
            f"{(peaks[0] - slope * small) / 1e6:.0f} MB",
        )
    Console().print(table)


def _draft(mode: str, width: int) -> Draft:
    averaging, _, overlap = mode.partition("+")
    draft = draft_of_preset("5m")
    change = msgspec.structs.replace
    model = change(draft.model, width=width, hidden_width=5 * width // 2, context=64)
    sync = SYNC_MODES.get(averaging, draft.sync)
    inner = change(draft.inner, sequences_per_step=1, optimizer=default_optimizer(sync))
    outer = change(
        draft.outer,
        inner_steps=3,
        warmup_inner_steps=2,
        overlap=bool(overlap),
        codec="fp32" if averaging in SYNC_MODES else averaging,
    )
    if averaging in SYNC_MODES:
        top_k = 128 if averaging == "sparse" else 16
        outer = change(outer, displacement=0.0, warmup_rounds=0, warmup_inner_steps=1, top_k=top_k)
    return change(draft, sync=sync, model=model, inner=inner, outer=outer)


def _peak_bytes(draft: Draft) -> float:
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalSwarm(Path(folder), ["--threads", "1"]) as swarm,
    ):
        path = Path(folder) / "run.toml"
        write_manifest_file(path, draft)
        first = swarm.found("--manifest", str(path))
        swarm.join(first.address(PATIENCE_SECONDS))
        processes = []
        for node in swarm.nodes:
            node.wait_for(lambda status: status.round >= 1, PATIENCE_SECONDS, "first round")
            assert node.process is not None
            processes.append(psutil.Process(node.process.pid))
        goal = first.wait_for(lambda _: True, 10.0, "status").round + ROUNDS
        peak, deadline = 0, time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            status = first.status()
            if status is not None and status.round >= goal:
                return float(peak)
            peak = max(peak, *(process.memory_info().rss for process in processes))
            time.sleep(ASK_SECONDS)
    raise TimeoutError(f"no {ROUNDS} rounds within {PATIENCE_SECONDS:.0f} s")


if __name__ == "__main__":
    main()
