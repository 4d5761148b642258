"""`gossamer presets`."""

from __future__ import annotations

import json as json_text
from typing import NamedTuple

from gossamer.node.base.terminal.terminal import open_console, plain_table
from gossamer.node.base.terminal.units import format_bytes
from gossamer.node.runs.planning.draft import draft_of_preset
from gossamer.node.runs.planning.needs import PEERS_SUPPOSED, needs_of
from gossamer.node.runs.planning.planning import Line, plan_round
from gossamer.node.runs.planning.step_estimate import step_seconds
from gossamer.trainer.presets.table import PRESETS

SECONDS_MIN = 0.1
"""Shorter steps are not told apart: in these a card mostly waits for the next operation."""


class PresetNeeds(NamedTuple):
    """A preset, and what it costs a machine; sizes in bytes."""

    name: str
    parameters: int
    memory_bytes: int
    """Host memory of a machine that trains on its CPU."""
    memory_bytes_beside_gpu: int
    """Host memory of a machine that trains on a GPU with memory of its own."""
    gpu_bytes: int
    """Memory of the GPU for parameters, gradient and optimizer, without activations."""
    step_seconds: float
    """Time of an inner step on a card of 24 GB, by estimate."""
    state_bytes: int
    """Bytes that a newcomer fetches."""
    bytes_a_round: int
    """Bytes sent in a round, and as many received."""
    summary: str


def presets(*, json: bool = False) -> int:
    """List the presets: size, memory, bytes a round.

    Memory is an estimate without the activations of a step: of a machine that trains on its CPU, of
    one with a GPU, and of that GPU. A newcomer fetches the state. In a round of 8 peers each sends
    so many bytes, and receives as many. The time of an inner step is an estimate for a GeForce RTX
    4090. `gossamer plan --preset NAME` says more.

    Parameters
    ----------
    json
        Print JSON.
    """
    rows = [needs_of_preset(name) for name in PRESETS]
    if json:
        print(json_text.dumps([row._asdict() for row in rows], indent=2))
        return 0
    titles = ("preset", "parameters", "memory", "beside a GPU", "on it", "state", "a round")
    table = plain_table(titles, ("preset",))
    for row in rows:
        sizes = (
            row.memory_bytes,
            row.memory_bytes_beside_gpu,
            row.gpu_bytes,
            row.state_bytes,
            row.bytes_a_round,
        )
        table.add_row(row.name, f"{row.parameters:,}", *map(format_bytes, sizes))
    console = open_console()
    console.print(table)
    console.print()
    for row in rows:
        seconds = row.step_seconds
        shown = f"{seconds:.1f}" if seconds > SECONDS_MIN else f"below {SECONDS_MIN}"
        step = f"{shown} s a step on a card of 24 GB"
        console.print(f"{row.name:<8}{row.summary}; {step}", highlight=False, soft_wrap=True)
    return 0


def needs_of_preset(name: str) -> PresetNeeds:
    """Returns the numbers of a preset. ManifestError if there is none."""
    draft = draft_of_preset(name)
    on_host = needs_of(draft, trains_on_host=True, cache_bytes=0)
    beside = needs_of(draft, trains_on_host=False, cache_bytes=0)
    plan = plan_round(draft, PEERS_SUPPOSED, Line(1.0, 1.0))
    return PresetNeeds(
        name=name,
        parameters=draft.model.num_parameters,
        memory_bytes=on_host.memory,
        memory_bytes_beside_gpu=beside.memory,
        gpu_bytes=beside.device_memory,
        step_seconds=step_seconds(draft),
        state_bytes=plan.state_bytes,
        bytes_a_round=plan.sent_bytes,
        summary=PRESETS[name].summary,
    )
