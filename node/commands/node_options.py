"""The options of the commands that run a node.

Apart from those that all commands have: a class of so many options takes its time to build, and a
command that asks a running node needs two of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from gossamer.node.commands.options import DEFAULTS, StateOptions, shown_default
from gossamer.protocol.limits import MIB


@dataclass(frozen=True, kw_only=True)
class NodeOptions(StateOptions):
    """The options of `start`, `join` and `doctor`. Each setting is also a GOSSAMER_... variable.

    It has more than 12 attributes: each is an option.
    """

    listen: Annotated[tuple[str, ...], shown_default(" ".join(DEFAULTS.listen))] = ()
    """Address to listen on for peers; repeatable. Port 0 picks a free one."""
    announce: Annotated[tuple[str, ...], shown_default("what the node finds")] = ()
    """Address by which others reach this node, without a peer id; repeatable."""
    up_limit: Annotated[tuple[str, ...], shown_default("none")] = ()
    """Limit of the upload in Mbit/s, such as 10 or 10@18:00-23:00; repeatable."""
    down_limit: Annotated[tuple[str, ...], shown_default("none")] = ()
    """Limit of the download, likewise."""
    port_mapping: Annotated[str | None, shown_default(DEFAULTS.port_mapping)] = None
    """Whether to ask the router to forward the port (UPnP): on or off."""
    lan: Annotated[str | None, shown_default(DEFAULTS.lan)] = None
    """Whether to find nodes of the run in this network (multicast DNS): on or off."""
    relay: Annotated[str | None, shown_default(DEFAULTS.relay)] = None
    """Whether to carry connections of members that cannot reach each other: on, off, or introduce,
    which carries only what it takes to cross their routers."""
    relay_limit: Annotated[tuple[str, ...], shown_default("none")] = ()
    """Limit of what is carried for others in Mbit/s, in the form of --up-limit; repeatable."""
    api: Annotated[str | None, shown_default(DEFAULTS.api)] = None
    """HOST:PORT of the local page, status and metrics. Port 0 picks a free one."""
    device: Annotated[str | None, shown_default(DEFAULTS.device)] = None
    """Device to train on: auto, cpu, cuda, cuda:N, mps or xpu; or several as one: all, or a list
    such as cuda:0,cuda:1."""
    threads: Annotated[
        int | None, shown_default(f"{DEFAULTS.threads}, which lets torch choose")
    ] = None
    """CPU threads for training."""
    memory_max: Annotated[str | None, shown_default("none")] = None
    """Limit of the memory of node and trainer together, such as 8GiB."""
    disk_max: Annotated[str | None, shown_default("none")] = None
    """Limit of the whole state directory, such as 20GiB."""
    gpu_memory: Annotated[str | None, shown_default("none")] = None
    """Limit of the card's memory, such as 50% or 8GiB."""
    gpu_power_watts: Annotated[int | None, shown_default("none")] = None
    """Limit of the card's power in watts. It needs root."""
    gpu_temperature_max: Annotated[int | None, shown_default("none")] = None
    """Temperature of the card in degrees C above which to pause until it is 5 degrees less."""
    micro_batch: Annotated[int | None, shown_default("what fits into the device's memory")] = None
    """Number of sequences that go through the model at once, to begin with."""
    moments: Annotated[str | None, shown_default(DEFAULTS.moments)] = None
    """Format of the optimiser's moments, the fewer bytes the later: fp32, bf16, 8bit, or auto, the
    first that fits."""
    compile: Annotated[str | None, shown_default(DEFAULTS.compile)] = None
    """Whether torch's compiler makes the layers faster, beside the training: on, off, or auto,
    which does it on CUDA and ROCm cards."""
    name: Annotated[str | None, shown_default("none")] = None
    """Name by which others see this node, beside its peer id; at most 32 characters."""
    team: Annotated[str | None, shown_default("none")] = None
    """Team that others see beside the name; at most 32 characters."""
    work_hours: Annotated[str | None, shown_default("always")] = None
    """Hours in which to train, such as 22:00-07:00, or "mon-fri 22:00-07:00, sat 00:00-24:00"."""
    on_battery: Annotated[str | None, shown_default(DEFAULTS.on_battery)] = None
    """Whether to train while the machine runs on its battery: on or off."""
    on_metered: Annotated[str | None, shown_default(DEFAULTS.on_metered)] = None
    """Whether to train, fetch and serve while the system calls the line metered: on or off."""
    pause_for: Annotated[tuple[str, ...], shown_default("none")] = ()
    """Name of a program beside which not to train; repeatable."""
    only_when_idle: Annotated[str | None, shown_default("off")] = None
    """Train only when nobody has used the machine for so long, such as 5min."""
    cache_bytes: Annotated[str | None, shown_default(f"{DEFAULTS.cache_bytes // MIB}MiB")] = None
    """Limit of the data and states on disk, such as 20GiB; the newest states stay beyond it."""
    bootstrap: Annotated[tuple[str, ...], shown_default("none")] = ()
    """Address of a peer to try besides those that this node knows; repeatable."""
    wait_for_peers: Annotated[int | None, shown_default(str(DEFAULTS.wait_for_peers))] = None
    """Number of other peers that must be ready before a run's first round begins."""
    serve_after: Annotated[str | None, shown_default(DEFAULTS.serve_after)] = None
    """Time for which the node serves the final state of a finished run before it leaves, such as
    0, 12h, 7d or forever."""
    log_format: Annotated[str | None, shown_default(DEFAULTS.log_format)] = None
    """Format of log lines: text or json."""
    log_level: Annotated[str | None, shown_default(DEFAULTS.log_level)] = None
    """Least level of log lines: debug, info, warning or error."""
    log_to: Annotated[tuple[str, ...], shown_default("none")] = ()
    """Where to write curves of the run: tensorboard or wandb:offline; repeatable. It takes the
    extra gossamer[tensorboard] or gossamer[wandb]."""
    log_folder: Annotated[Path | None, shown_default("logs in the state directory")] = None
    """Folder for these curves."""


Node = Annotated[NodeOptions, Parameter(name="*")]

NO_NODE_OPTIONS = NodeOptions()
