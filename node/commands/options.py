"""Options that several commands share, and the settings that follow from them."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from gossamer.node.base.setting_values import GivenValue
from gossamer.node.base.settings import (
    CONFIG_VARIABLE,
    Settings,
    default_config_file,
    default_state_dir,
    load_settings,
)
from gossamer.node.storage.state_dir import StateDir, StateDirError
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.limits import MIB
from gossamer.protocol.manifest import decode_manifest

_DEFAULTS = Settings(state_dir=default_state_dir())
# Help is the same text for every person, so that it can stand in the documentation.
_STATE_DIR = str(_DEFAULTS.state_dir).replace(str(Path.home()), "~", 1)
_CONFIG = str(default_config_file()).replace(str(Path.home()), "~", 1)


def _default(text: str) -> Parameter:
    """Shows what holds where the option is not given. The option itself is then None or empty."""
    return Parameter(show_default=text)


@dataclass(frozen=True, kw_only=True)
class StateOptions:
    """The place of the node's state. Each setting is also a GOSSAMER_... variable."""

    state_dir: Annotated[Path | None, _default(_STATE_DIR)] = None
    """Directory with identity, state and data of this node (GOSSAMER_STATE_DIR)."""
    config: Annotated[Path | None, _default(f"${CONFIG_VARIABLE}, or {_CONFIG}")] = None
    """TOML file with any of these settings."""


@dataclass(frozen=True, kw_only=True)
class NodeOptions(StateOptions):
    """The options of `start`, `join` and `doctor`. Each setting is also a GOSSAMER_... variable.

    It has more than 12 attributes: each is an option.
    """

    listen: Annotated[tuple[str, ...], _default(" ".join(_DEFAULTS.listen))] = ()
    """Address to listen on for peers; repeatable. Port 0 picks a free one."""
    announce: Annotated[tuple[str, ...], _default("what the node finds")] = ()
    """Address by which others reach this node, without a peer id; repeatable."""
    up_limit: Annotated[tuple[str, ...], _default("none")] = ()
    """Limit of the upload in Mbit/s, such as 10 or 10@18:00-23:00; repeatable."""
    down_limit: Annotated[tuple[str, ...], _default("none")] = ()
    """Limit of the download, likewise."""
    port_mapping: Annotated[str | None, _default(_DEFAULTS.port_mapping)] = None
    """Whether to ask the router to forward the port (UPnP): on or off."""
    lan: Annotated[str | None, _default(_DEFAULTS.lan)] = None
    """Whether to find nodes of the run in this network (multicast DNS): on or off."""
    relay: Annotated[str | None, _default(_DEFAULTS.relay)] = None
    """Whether to carry connections of members that cannot reach each other: on, off, or introduce,
    which carries only what it takes to cross their routers."""
    relay_limit: Annotated[tuple[str, ...], _default("none")] = ()
    """Limit of what is carried for others in Mbit/s, in the form of --up-limit; repeatable."""
    api: Annotated[str | None, _default(_DEFAULTS.api)] = None
    """HOST:PORT of the local page, status and metrics. Port 0 picks a free one."""
    device: Annotated[str | None, _default(_DEFAULTS.device)] = None
    """Device to train on: auto, cpu, cuda, cuda:N, mps or xpu; or several as one: all, or a list
    such as cuda:0,cuda:1."""
    threads: Annotated[int | None, _default(f"{_DEFAULTS.threads}, which lets torch choose")] = None
    """CPU threads for training."""
    memory_max: Annotated[str | None, _default("none")] = None
    """Limit of the memory of node and trainer together, such as 8GiB."""
    disk_max: Annotated[str | None, _default("none")] = None
    """Limit of the whole state directory, such as 20GiB."""
    gpu_memory: Annotated[str | None, _default("none")] = None
    """Limit of the card's memory, such as 50% or 8GiB."""
    gpu_power_watts: Annotated[int | None, _default("none")] = None
    """Limit of the card's power in watts. It needs root."""
    gpu_temperature_max: Annotated[int | None, _default("none")] = None
    """Temperature of the card in degrees C above which to pause until it is 5 degrees less."""
    micro_batch: Annotated[int | None, _default("what fits into the device's memory")] = None
    """Number of sequences that go through the model at once, to begin with."""
    moments: Annotated[str | None, _default(_DEFAULTS.moments)] = None
    """Format of the optimiser's moments, the fewer bytes the later: fp32, bf16, 8bit, or auto, the
    first that fits."""
    compile: Annotated[str | None, _default(_DEFAULTS.compile)] = None
    """Whether torch's compiler makes the layers faster, beside the training: on, off, or auto,
    which does it on CUDA and ROCm cards."""
    name: Annotated[str | None, _default("none")] = None
    """Name by which others see this node, beside its peer id; at most 32 characters."""
    team: Annotated[str | None, _default("none")] = None
    """Team that others see beside the name; at most 32 characters."""
    work_hours: Annotated[str | None, _default("always")] = None
    """Hours in which to train, such as 22:00-07:00, or "mon-fri 22:00-07:00, sat 00:00-24:00"."""
    on_battery: Annotated[str | None, _default(_DEFAULTS.on_battery)] = None
    """Whether to train while the machine runs on its battery: on or off."""
    on_metered: Annotated[str | None, _default(_DEFAULTS.on_metered)] = None
    """Whether to train, fetch and serve while the system calls the line metered: on or off."""
    pause_for: Annotated[tuple[str, ...], _default("none")] = ()
    """Name of a program beside which not to train; repeatable."""
    only_when_idle: Annotated[str | None, _default("off")] = None
    """Train only when nobody has used the machine for so long, such as 5min."""
    cache_bytes: Annotated[str | None, _default(f"{_DEFAULTS.cache_bytes // MIB}MiB")] = None
    """Limit of the data and states on disk, such as 20GiB; the newest states stay beyond it."""
    bootstrap: Annotated[tuple[str, ...], _default("none")] = ()
    """Address of a peer to try besides those that this node knows; repeatable."""
    wait_for_peers: Annotated[int | None, _default(str(_DEFAULTS.wait_for_peers))] = None
    """Number of other peers that must be ready before a run's first round begins."""
    serve_after: Annotated[str | None, _default(_DEFAULTS.serve_after)] = None
    """Time for which the node serves the final state of a finished run before it leaves, such as
    0, 12h, 7d or forever."""
    log_format: Annotated[str | None, _default(_DEFAULTS.log_format)] = None
    """Format of log lines: text or json."""
    log_level: Annotated[str | None, _default(_DEFAULTS.log_level)] = None
    """Least level of log lines: debug, info, warning or error."""
    log_to: Annotated[tuple[str, ...], _default("none")] = ()
    """Where to write curves of the run: tensorboard or wandb:offline; repeatable. It takes the
    extra gossamer[tensorboard] or gossamer[wandb]."""
    log_folder: Annotated[Path | None, _default("logs in the state directory")] = None
    """Folder for these curves."""


State = Annotated[StateOptions | None, Parameter(name="*")]
Node = Annotated[NodeOptions | None, Parameter(name="*")]


def settings_of(options: StateOptions | None) -> Settings:
    """Returns the settings from options, environment and file.

    Raises:
        ConfigError: some of them are not allowed; one sentence a mistake.
    """
    config = options.config if options is not None else None
    return load_settings(flags_of(options), os.environ, config)


def trains_on_own_text(settings: Settings) -> bool:
    """Returns whether the run in the state directory has every peer train on its own text."""
    try:
        signed = StateDir(settings.state_dir).read_manifest()
        return signed is not None and bool(decode_manifest(signed.manifest).data.own)
    except (StateDirError, RemoteProtocolError):
        return False  # the daemon says what is wrong with it


def flags_of(options: StateOptions | None) -> dict[str, GivenValue]:
    """Returns the values of the options by the name of their setting."""
    if options is None:
        return {}
    names = [field.name for field in fields(options) if field.name != "config"]
    return {name: getattr(options, name) for name in names}


def reading_settings_of(options: StateOptions | None) -> Settings:
    """Returns the settings of a command that reads the state beside a running node.

    What the node's parts log goes to stderr, and only errors: that a round was committed meanwhile
    is none. ConfigError as `settings_of`.
    """
    settings = settings_of(options)
    # Here, because `gossamer status` and orders write no log, and loading it takes 50 ms.
    from gossamer.node.telemetry.logs import configure_logs

    configure_logs(settings.log_format, "error")
    return settings
