"""The settings of a node: from flag, environment (`GOSSAMER_...`), TOML file or default.

The file is the platform's own unless another one is named. The first of these sources that has a
setting decides. The same rules hold for every source, and all mistakes are reported at once. Each
report names the place of the mistake (`--listen`, `GOSSAMER_LISTEN` or the key of the file) and
what is allowed there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from gossamer.node.base.settings.default_places import (
    NoHomeError,
    default_config_file,
    default_state_dir,
    expanded,
)
from gossamer.node.base.settings.setting_values import (
    PARSERS,
    GivenValue,
    LogFormat,
    LogLevel,
    RelayMode,
    SettingValue,
    Switch,
)
from gossamer.protocol import limits
from gossamer.trainer.ipc.choices import CompileChoice, MomentChoice

ENVIRONMENT_PREFIX = "GOSSAMER_"
CONFIG_VARIABLE = "GOSSAMER_CONFIG"
# deploy/gossamer.service puts the addresses of its command line into this variable.
_OTHER_VARIABLES = (CONFIG_VARIABLE, "GOSSAMER_SEEDS")
# The variables that Kubernetes sets in all containers beside a service that is called gossamer.
_OF_KUBERNETES = re.compile(r"GOSSAMER_(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP)\w*)?)")
# Neighbouring ports that IANA lists as unassigned. Many machines use 4001, libp2p's usual port.
DEFAULT_LISTEN = ("/ip4/0.0.0.0/tcp/4610", "/ip6/::/tcp/4610")
DEFAULT_API = "127.0.0.1:4611"
# A newcomer gets a model of 150 million parameters from two peers in a minute, and a stranger takes
# an eighth of what it could take of a fast machine.
DEFAULT_SERVE_LIMIT = ("100",)
# A machine that is off at night, or whose owner looks once a day, still gets the final state. To
# serve costs no device, and no more upload than `serve_limit`.
DEFAULT_SERVE_AFTER = "24h"
# Room for some hundreds of shards besides the states of a small model, which are blocks, too.
DEFAULT_CACHE_BYTES = 4 * 1024 * limits.MIB
CONFIG_FILE_BYTES_MAX = limits.MIB


class ConfigError(ValueError):
    """The settings cannot be used; `problems` holds one sentence a mistake, for people."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of this node on this machine. The manifest says what the run itself is.

    It has more than 12 attributes: each is a setting.
    """

    state_dir: Path
    listen: tuple[str, ...] = DEFAULT_LISTEN
    """Multiaddrs to listen on. Port 0 picks a free port, and the same one after a restart. A
    machine without IPv6 leaves out that address."""
    announce: tuple[str, ...] = ()
    """Addresses, without a peer id, that other peers are told before those that the node finds."""
    own_networks: tuple[str, ...] = ()
    """Private networks, such as `10.0.0.0/8`, whose addresses other peers may announce to this
    node, besides the networks of its interfaces."""
    up_limit: tuple[str, ...] = ()
    """Limits of the upload in Mbit/s, such as `10` or `10@18:00-23:00`; the first that holds is
    used."""
    down_limit: tuple[str, ...] = ()
    """Limits of the download, in the form of `up_limit`."""
    port_mapping: Switch = "on"
    """Whether to ask a home's router to forward the port (UPnP)."""
    lan: Switch = "on"
    """Whether nodes of one run find each other in their network (multicast DNS)."""
    relay: RelayMode = "on"
    """Whether this node carries connections of members that cannot reach each other. `introduce`:
    only what it takes to cross their routers."""
    serve_limit: tuple[str, ...] = DEFAULT_SERVE_LIMIT
    """Limits of the model, corpus and chain that peers outside the newest rounds get from here, in
    the form of `up_limit`."""
    relay_limit: tuple[str, ...] = ()
    """Limits of what this node carries for others, in the form of `up_limit`."""
    api: str = DEFAULT_API
    """HOST:PORT of the local HTTP endpoint; port 0 picks a free one."""
    api_hosts: tuple[str, ...] = ()
    """Host names, besides loopback ones and addresses, by which the HTTP endpoint and `gossamer
    serve` may be called."""
    device: str = "auto"
    """`auto`, `cpu`, `cuda`, `cuda:N` (ROCm too), `mps`, `xpu` or `xpu:N`. `all` takes all cards as
    one trainer, and `cuda:0,cuda:2` these."""
    threads: int = 0
    """CPU threads of the trainer; 0 lets it choose."""
    memory_max: int = 0
    """Host memory of this node and its trainer together, such as `8GiB`; 0 means no limit."""
    disk_max: int = 0
    """Size of the whole state directory, such as `20GiB`; 0 means no limit but that of the blocks,
    `cache_bytes`."""
    gpu_memory: str = ""
    """Memory of the graphics card that the trainer may take, as a share (`50%`) or a size (`8GiB`);
    empty means no limit."""
    gpu_power_watts: int = 0
    """Limit of the power that the graphics card draws; 0 leaves it as it is. It needs root."""
    gpu_temperature_max: int = 0
    """Temperature of the graphics card in degrees Celsius above which this node pauses until the
    card is 5 degrees cooler; 0 means no limit."""
    micro_batch: int = 0
    """Sequences that go through the model at once, to begin with; 0 begins with what fits into the
    device's memory by an estimate. Fewer are taken where memory runs out."""
    moments: MomentChoice = "auto"
    """What the optimiser keeps its moments in: `fp32`, `bf16` (half of it) or `8bit` (a quarter);
    `auto` takes fp32 unless only less fits into the device's memory."""
    compile: CompileChoice = "auto"
    """Whether torch's compiler makes the layers faster, beside the training: `on`, `off`, or
    `auto`, which does it on CUDA and ROCm cards. A CPU gains little, and needs a C++ compiler."""
    name: str = ""
    """Name by which others see this node, beside its peer id, at most 32 characters; empty shows
    none. It is signed, and nobody else has it checked."""
    team: str = ""
    """Team that others see beside `name`, at most 32 characters; empty shows none. Anybody may name
    any team."""
    sample_prompts: tuple[str, ...] = ()
    """Texts that the model continues every `sample_rounds` rounds for the page and for `gossamer
    report`, at most 8 of up to 500 characters. None: no samples are taken."""
    sample_rounds: int = 10
    """Rounds between two samples of the model; they also take at most 1 % of the time."""
    work_hours: str = ""
    """Hours in which this node trains, in local time, such as `22:00-07:00` or
    `mon-fri 22:00-07:00, sat-sun 00:00-24:00`; empty means always."""
    on_battery: Switch = "off"
    """Whether this node trains while the machine runs on its battery."""
    on_metered: Switch = "off"
    """Whether this node trains, fetches and serves while the system says that the line is metered,
    as that of a phone is. Only NetworkManager on Linux says so."""
    pause_for: tuple[str, ...] = ()
    """Names of programs, such as `blender`, beside which this node does not train."""
    only_when_idle: int = 0
    """Time, such as `5min`, for which nobody has to have used the machine before this node trains;
    `off`, or 0 seconds, means that it always trains."""
    confine_trainer: Switch = "on"
    """Whether the trainer gives up the network and all writing outside of its folder, where the
    system can see to that. `off` is for drivers of GPUs that do not work so."""
    cache_bytes: int = DEFAULT_CACHE_BYTES
    """Limit of the blocks on disk: data and states. Those that are pinned, such as the newest two
    states, stay beyond it."""
    log_format: LogFormat = "text"
    log_level: LogLevel = "info"
    log_steps: int = 10
    """Inner steps between two log lines; 0 logs no step."""
    log_to: tuple[str, ...] = ()
    """Where the curves of the run go besides the page: `tensorboard`, `wandb:offline`, or both.
    Each takes its extra, such as `gossamer[tensorboard]`. Nothing leaves this machine."""
    log_folder: str = ""
    """Folder for these curves; empty means `logs` in the state directory."""
    bootstrap: tuple[str, ...] = ()
    """Addresses of peers to try besides those of known peers."""
    wait_for_peers: int = 0
    """Number of other peers that must be ready to train before a run's first round begins."""
    serve_after: str = DEFAULT_SERVE_AFTER
    """Time for which the node serves the final state of a finished run before it leaves: `0`,
    `30m`, `12h`, `7d` or `forever`."""
    notices: tuple[str, ...] = ()
    """Where the owner is told that the node failed or was put out, that the disk takes nothing, or
    that the run is finished: `desktop`, and addresses of webhooks (`https://...`), which get a POST
    with JSON."""

    @property
    def log_folder_path(self) -> Path:
        """The folder for curves of the run."""
        return Path(self.log_folder) if self.log_folder else self.state_dir / "logs"


def config_file_of(environment: Mapping[str, str], config: Path | None = None) -> tuple[Path, bool]:
    """Returns the file of the settings, and whether it was named and so has to be there.

    Args:
        config: the file that a flag names, if any.

    Raises:
        NoHomeError: the file lies in the home folder of the user, who has none.
    """
    named = config or environment.get(CONFIG_VARIABLE)
    return (expanded(named), True) if named else (default_config_file(), False)


class Sourced(NamedTuple):
    """All settings, and for those that are no defaults the place that they come from."""

    settings: Settings
    places: Mapping[str, str]
    """By field name: a flag, a variable, or file and key, as a mistake there would be reported."""


def load_settings(
    flags: Mapping[str, GivenValue], environment: Mapping[str, str], config: Path | None = None
) -> Settings:
    """Returns the settings from all sources; see `source_settings`."""
    return source_settings(flags, environment, config).settings


def source_settings(
    flags: Mapping[str, GivenValue], environment: Mapping[str, str], config: Path | None = None
) -> Sourced:
    """Returns the settings from all sources, and which source each comes from.

    Args:
        flags: values by field name; None or an empty tuple means "not given".
        environment: variables of the process; only `GOSSAMER_<FIELD>` and `GOSSAMER_CONFIG` count,
            and others that begin like them are mistakes.
        config: TOML file. None means the file that `GOSSAMER_CONFIG` names, or the platform's own
            (`default_config_file`) where that exists.

    Raises:
        ConfigError: there are mistakes; it holds one sentence for each, of all sources together.
        NoHomeError: a path is in the home folder of the user, who has none.
    """
    problems = unknown_variables(environment)
    from_file: Mapping[str, GivenValue] = {}
    try:
        config, is_named = config_file_of(environment, config)
        from_file = _read_file(config, problems, is_named)
    except NoHomeError:
        if config or environment.get(CONFIG_VARIABLE):
            raise

    values: dict[str, SettingValue] = {}
    places: dict[str, str] = {}
    given: GivenValue
    for field in Settings.__struct_fields__:
        variable = ENVIRONMENT_PREFIX + field.upper()
        if flags.get(field) not in (None, (), []):
            given, place = flags[field], "--" + field.replace("_", "-")
        elif environment.get(variable):
            given, place = environment[variable], variable
        elif field in from_file:
            given, place = from_file[field], f"{config}: {field}"
        else:
            continue
        try:
            values[field] = PARSERS[field](given)
            places[field] = place
        except ValueError as error:
            problems.append(f"{place}: {error}")
    if problems:
        raise ConfigError(problems)
    if "state_dir" not in values:
        values["state_dir"] = default_state_dir()
    return Sourced(msgspec.convert(values, Settings), places)


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Returns a sentence for each variable that looks like a setting and is none."""
    known = [ENVIRONMENT_PREFIX + field.upper() for field in Settings.__struct_fields__]
    known += _OTHER_VARIABLES
    # The prefix is equal in all of them, and would make any two look alike.
    known_names = [each.removeprefix(ENVIRONMENT_PREFIX).lower() for each in known]
    problems = []
    for name in sorted(environment):
        if not name.startswith(ENVIRONMENT_PREFIX) or name in known:
            continue
        if not _OF_KUBERNETES.fullmatch(name):
            meant = name.removeprefix(ENVIRONMENT_PREFIX).lower()
            hint = _hint(meant, known_names, lambda each: ENVIRONMENT_PREFIX + each.upper())
            problems.append(
                f"{name}: is no setting; {hint}"
                if hint
                else f"{name}: is no setting: unset it. `gossamer config show` then lists all"
            )
    return problems


def _hint(name: str, known: Sequence[str], spelt: Callable[[str], str] = str) -> str:
    from gossamer.node.base.settings.meant_names import hint  # here: only mistakes need it

    return hint(name, known, spelt)


def read_config_file(path: Path) -> list[str]:
    """Returns a sentence for each mistake of a TOML file by itself, without the other sources."""
    problems: list[str] = []
    for field, given in _read_file(path, problems, is_named=True).items():
        if field in PARSERS:
            try:
                PARSERS[field](given)
            except ValueError as error:
                problems.append(f"{path}: {field}: {error}")
    return problems


def _read_file(path: Path, problems: list[str], is_named: bool) -> Mapping[str, GivenValue]:
    """Returns the table of a file, and an empty one where a file that nobody named is not there."""
    try:
        if path.stat().st_size > CONFIG_FILE_BYTES_MAX:
            problems.append(f"{path}: larger than {CONFIG_FILE_BYTES_MAX} bytes: not a config file")
            return {}
        text = path.read_text(encoding="utf-8-sig")  # some editors begin with a byte order mark
        import tomllib  # here: most nodes have no such file

        table: dict[str, GivenValue] = tomllib.loads(text)
    except (FileNotFoundError, NotADirectoryError):
        if not is_named:
            return {}
        problems.append(f"{path}: no such file; give --config an existing TOML file")
        return {}
    except OSError as error:
        hint = "" if is_named else "; --config /dev/null does without it"
        problems.append(f"{path}: cannot be read: {error.strerror}{hint}")
        return {}
    except ValueError as error:  # TOMLDecodeError, UnicodeDecodeError
        problems.append(
            f"{path}: not valid TOML: {error}; a line is NAME = VALUE, and text has quotes, as in "
            'work_hours = "22:00-07:00"'
        )
        return {}
    known = Settings.__struct_fields__
    for key in sorted(set(table) - set(known)):
        hint = _hint(key, known) or f"the settings are {', '.join(known)}"
        if isinstance(table[key], dict):
            hint = f"write the settings without the line [{key}]"
        problems.append(f"{path}: {key}: no such setting; {hint}")
    return table
