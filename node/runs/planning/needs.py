"""The needs of a run, told and checked before anything large is allocated.

A manifest comes from strangers. One of a billion parameters makes the daemon allocate tens of GB in
its first seconds, and the system ends the process without a word.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from gossamer.node.base.settings.settings import Settings
from gossamer.node.base.terminal.printable import printable
from gossamer.node.base.terminal.units import format_bytes
from gossamer.node.peers.members.run_exchange import JoinError
from gossamer.node.runs.planning.draft import Draft
from gossamer.node.runs.planning.planning import Line, plan_round
from gossamer.node.storage.disk_use import bytes_beside, existing_parent
from gossamer.protocol.codecs.payloads import payloads_of
from gossamer.protocol.ids import short
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.model_config import ModelConfig
from gossamer.protocol.sync_modes import SYNC_MODES
from gossamer.trainer.ipc.choices import MomentChoice
from gossamer.trainer.resources.memory_estimate import Training, moment_elements

DAEMON_BYTES_PER_PARAMETER = 28
"""Five fp32 vectors, and the chunks of a ring. Measured: 22 to 28, by the way of averaging."""

DAEMON_BYTES = 150 * 1000**2
"""A daemon without a model: 130 MB resident (measured)."""

TRAINER_PROCESS_BYTES = 250 * 1000**2
"""A trainer without a model, and the process of each further device: 250 MB resident (measured)."""

PROCESS_BYTES = DAEMON_BYTES + TRAINER_PROCESS_BYTES

STATE_BYTES_PER_PARAMETER = 8
"""Parameters and momentum of a checkpoint, in fp32."""

STATES_ON_DISK = 8
"""Checkpoints, and averages between them, that a node keeps at most."""

FREE_SHARE_MAX = 0.7
"""Part of the free memory, and of the free disk, that a run may need by this estimate. The rest is
for activations, and for what the owner does with the machine."""

PEERS_SUPPOSED = 8
"""Members for which the traffic of a round is told. With sums it depends little on their number;
with signed records it grows with it."""


class TooLargeError(JoinError):
    """The run does not fit into this machine."""


@dataclass(frozen=True)
class Needs:
    """The needs of a run, in bytes."""

    memory: int
    """Host memory of daemon and trainer."""
    device_memory: int
    """Memory of the training device, if that has its own."""
    disk: int
    """The most that lies on the disk, with a full data cache."""
    least_disk: int
    """The same with an empty data cache: that takes what is left."""


def needs_of(
    run: Manifest | Draft,
    *,
    trains_on_host: bool,
    cache_bytes: int,
    moments: MomentChoice = "auto",
    num_devices: int = 1,
) -> Needs:
    """Returns what a run needs of a machine.

    Args:
        trains_on_host: whether the trainer's vectors lie in host memory.
        cache_bytes: limit of the data cache.
        moments: the owner's choice of what the optimiser keeps its moments in. `auto` counts as
            fp32, which a CPU has then.
        num_devices: devices that train as one. Each has a process with parameters and gradient; the
            first one has the rest.
    """
    parameters = run.model.num_parameters
    records = _records_bytes(run)
    # Parameters, gradient, what the optimiser keeps, and weights that adapters leave as they are,
    # in half precision on cards alone; activations come on top.
    shares_steps = SYNC_MODES[run.sync].shares_steps
    elements = moment_elements(run.model, run.inner, shares_steps=shares_steps)
    training = Training(
        run.model,
        half=not trains_on_host,
        moment_elements=elements,
        moment_format="fp32" if moments == "auto" or shares_steps else moments,
    )
    trainer = training.vectors_bytes + training.gradient_bytes
    other = TRAINER_PROCESS_BYTES
    if trains_on_host:
        follower = replace(training, moment_elements=0)
        other += follower.vectors_bytes + follower.gradient_bytes
    states = STATES_ON_DISK * max(STATE_BYTES_PER_PARAMETER * parameters, records)
    states += run.model.frozen_bytes
    return Needs(
        memory=PROCESS_BYTES
        + (num_devices - 1) * other
        + DAEMON_BYTES_PER_PARAMETER * parameters
        + (trainer if trains_on_host else 0)
        + records,
        device_memory=0 if trains_on_host else trainer,
        disk=states + cache_bytes,
        least_disk=states,
    )


def _records_bytes(run: Manifest | Draft) -> int:
    """Returns the size of a round's records, where they are signed contributions in the place of
    sums. Those of shared steps are small, and the same among members that trust each other."""
    if run.trust != "open" or SYNC_MODES[run.sync].shares_steps:
        return 0
    elements = run.outer.chunk_elements
    part_bytes = payloads_of(run.sync, run.outer, run.trust).part_bytes(elements)
    return PEERS_SUPPOSED * part_bytes * -(-run.model.num_parameters // elements)


def require_memory(run: Manifest | Draft, needs: Needs, free_bytes: int) -> None:
    """Raises TooLargeError if a run needs more of the free memory than it may."""
    if needs.memory > FREE_SHARE_MAX * free_bytes:
        raise TooLargeError(
            f"the run {run.name} has {run.model.num_parameters:,} parameters and needs some "
            f"{format_bytes(needs.memory)} of memory here; {format_bytes(free_bytes)} are free, "
            f"and a run may need {FREE_SHARE_MAX:.0%} of that. Free memory, or take a smaller "
            "model"
        )


def require_disk(run: Manifest | Draft, needs: Needs, state_dir: Path) -> None:
    """Raises TooLargeError if a run needs more of the disk than it may: of what is free and what
    the state directory has of it.

    It blocks for as long as the disk needs.
    """
    place = existing_parent(state_dir)
    free = shutil.disk_usage(place).free
    own = bytes_beside(state_dir)
    if needs.least_disk > FREE_SHARE_MAX * (free + own):
        raise TooLargeError(
            f"the run {run.name} has {run.model.num_parameters:,} parameters and needs some "
            f"{format_bytes(needs.least_disk)} of disk here; {format_bytes(free)} are free in "
            f"{place}, and a run may need {FREE_SHARE_MAX:.0%} of that. Free some space, give "
            "another --state-dir, or take a smaller model"
        )


def describe(
    manifest: Manifest, needs: Needs, free_bytes: int | None = None, device: str = ""
) -> list[str]:
    """Returns the lines that tell the owner of a machine what a run will use.

    Call it after `require_memory`: the traffic is counted chunk by chunk.

    Args:
        free_bytes: host memory that is free; None if it is not to be told.
        device: how the model fits into the training device's own memory; empty if it has none, or
            if that is not known.
    """
    model = manifest.model
    plan = plan_round(manifest, PEERS_SUPPOSED, Line(1.0, 1.0))
    own = ""
    if needs.device_memory and not device:
        own = f", and {format_bytes(needs.device_memory)} of the training device"
    optimizer = ", inner optimizer muon" if manifest.inner.uses_muon else ""
    free = "" if free_bytes is None else f" of {format_bytes(free_bytes)} that are free"
    return [
        f"run       {printable(manifest.name)} ({short(manifest.run_id)})",
        f"founder   {manifest.founder}",
        f"model     {model.num_parameters:,} parameters{_said_of_frozen(model)}",
        f"modes     sync {manifest.sync}, trust {manifest.trust}{optimizer}",
        f"memory    some {format_bytes(needs.memory)}{free}{own}",
        *([f"device    {device}"] if device else []),
        f"disk      at most some {format_bytes(needs.disk)}",
        f"network   some {format_bytes(plan.sent_bytes)} up and down in each round",
        *_said_of_data(manifest),
    ]


def _said_of_frozen(model: ModelConfig) -> str:
    if not model.lora:
        return ""
    return (
        f" of adapters, beside {model.whole.num_parameters:,} that stay as they are "
        f"({format_bytes(model.frozen_bytes)}, fetched once)"
    )


def _said_of_data(manifest: Manifest) -> list[str]:
    """Returns the lines on what of the data goes to whom."""
    if not manifest.data.own:
        return [
            "shared    this node serves the run's state and parts of its corpus to other members"
        ]
    return [
        "shared    this node serves the run's state and the text that all are compared on",
        "data      your own text stays here, also as tokens; what leaves is what training makes of "
        "it: changes of the model, from which somebody may be able to tell parts of the text, the "
        "number of tokens, and the loss",
    ]


def describe_limits(settings: Settings) -> str:
    """Returns the owner's limits on one line for people, with the command that sets others."""
    given = [
        (" and ".join(settings.up_limit), "{} Mbit/s up"),
        (" and ".join(settings.down_limit), "{} Mbit/s down"),
        (settings.threads or "", "{} thread" if settings.threads == 1 else "{} threads"),
        (format_bytes(settings.memory_max) if settings.memory_max else "", "{} of memory"),
        (format_bytes(settings.disk_max) if settings.disk_max else "", "{} of disk"),
        (settings.gpu_memory, "{} of the card's memory"),
        (settings.gpu_power_watts or "", "{} W"),
        (settings.gpu_temperature_max or "", "{} degrees C"),
    ]
    texts = [text.format(value) for value, text in given if value]
    other = "gossamer limits set upload=10 (and others) changes them at any time"
    return f"{', '.join(texts) or 'none: line, processor and card are used in full'}; {other}"


class NotWantedError(JoinError):
    """The owner of the machine does not want to join."""


def ask_owner(lines: list[str], show: Callable[[str], None], ask: Callable[[str], str]) -> None:
    """Shows what a run will use and asks whether to join it.

    Raises:
        NotWantedError: the answer is not yes.
    """
    for line in lines:
        show(line)
    if ask("Join this run? [y/N] ").strip().lower() not in ("y", "yes"):
        raise NotWantedError("not joined")
