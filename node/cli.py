"""The `gossamer` command.

Everything heavy is imported inside the command that needs it, so that `gossamer --help` is quick.
An error that a person can do something about is one line on stderr and a non-zero exit status:
1 for what did not work, 2 for a command line that makes no sense. A traceback is a bug.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, CycloptsError, Parameter

if TYPE_CHECKING:
    from gossamer.node.app.client import Order
    from gossamer.node.base.settings import Role, Settings

app = App(
    name="gossamer",
    help="Train one model together on machines that nobody administers together.",
    version=lambda: f"gossamer {version('gossamer')}",
    default_parameter=Parameter(negative=(), show_default=False),
    print_error=False,
    exit_on_error=False,
    result_action="return_value",
)


@dataclass(frozen=True, kw_only=True)
class StateOptions:
    """Where the node's state lies."""

    state_dir: Path | None = None
    """Directory with identity, state and data of this node (GOSSAMER_STATE_DIR)."""
    config: Path | None = None
    """TOML file with any of these settings (GOSSAMER_CONFIG)."""


@dataclass(frozen=True, kw_only=True)
class NodeOptions(StateOptions):
    """What `start` and `join` have in common. Each is also a GOSSAMER_... variable."""

    listen: tuple[str, ...] = ()
    """Address to listen on for peers, such as /ip4/0.0.0.0/tcp/4610; repeatable."""
    api: str | None = None
    """HOST:PORT of the local page, status and metrics (127.0.0.1:4611; port 0: a free one)."""
    device: str | None = None
    """auto, cpu, cuda, cuda:N or mps."""
    threads: int | None = None
    """CPU threads for training; 0 chooses."""
    cache_bytes: str | None = None
    """Limit of the data cache, such as 20GiB."""
    bootstrap: tuple[str, ...] = ()
    """Address of a peer to try as well; repeatable."""
    wait_for_peers: int | None = None
    """Do not begin a run's first round before so many others are ready to train."""
    log_format: str | None = None
    """text or json."""
    log_level: str | None = None
    """debug, info, warning or error."""


_State = Annotated[StateOptions | None, Parameter(name="*")]
_Node = Annotated[NodeOptions | None, Parameter(name="*")]


@app.command
def init(path: Path = Path("run.toml"), *, preset: str | None = None) -> int:
    """Write a commented manifest to edit; `gossamer start --manifest` founds its run.

    Parameters
    ----------
    path
        The file to write (default: run.toml).
    preset
        Model and settings to begin with.
    """
    from gossamer.node.runs.draft import draft_of_preset
    from gossamer.node.runs.manifest_file import write_manifest_file
    from gossamer.trainer.presets import DEFAULT_PRESET

    chosen = preset or DEFAULT_PRESET
    write_manifest_file(path, draft_of_preset(chosen), preset=chosen)
    print(f"Wrote {path}. Edit it, then: gossamer start --manifest {path}")
    return 0


@app.command
def plan(
    manifest: Path | None = None,
    *,
    preset: str | None = None,
    peers: int = 4,
    up: float = 20.0,
    down: float = 100.0,
    tokens_per_second: float | None = None,
    json: bool = False,
) -> int:
    """What a round of a run will cost each peer: bytes, seconds, and how busy its trainer is.

    Parameters
    ----------
    manifest
        TOML file from `gossamer init` (default: the default preset).
    preset
        Model and settings, instead of a manifest.
    peers
        That take part.
    up
        Mbit/s that each of them can send.
    down
        Mbit/s that each of them can receive.
    tokens_per_second
        That each of them trains; `gossamer status` shows it for a running node.
    json
        Print JSON.
    """
    from rich.console import Console

    from gossamer.node.base.settings import ConfigError
    from gossamer.node.interface.plan_view import print_plan
    from gossamer.node.runs.draft import draft_of_preset
    from gossamer.node.runs.manifest_file import read_manifest_file
    from gossamer.node.runs.planning import Line, plan_round
    from gossamer.trainer.presets import DEFAULT_PRESET

    _check_founding(manifest, preset, ())
    if manifest is None:
        draft = draft_of_preset(preset or DEFAULT_PRESET)
    else:
        draft = read_manifest_file(manifest)
    try:
        planned = plan_round(draft, peers, Line(up, down), tokens_per_second)
    except ValueError as error:
        raise ConfigError([str(error)]) from error
    print_plan(planned, Console(), json=json)
    return 0


@app.command
def start(
    *,
    manifest: Path | None = None,
    preset: str | None = None,
    corpus: Annotated[tuple[Path, ...], Parameter(consume_multiple=True)] = (),
    options: _Node = None,
) -> int:
    """Found a run here, or go on with the one in the state directory.

    Parameters
    ----------
    manifest
        TOML file from `gossamer init`.
    preset
        Model and settings, instead of a manifest.
    corpus
        Folders and files of text and JSONL to train on (default: the Python library's sources).
    """
    from gossamer.node.base.settings import Found, Resume
    from gossamer.node.storage.state_dir import StateDir

    settings = _settings(options)
    if StateDir(settings.state_dir).has_run():
        ignored = [
            flag
            for flag, given in (
                ("--manifest", manifest),
                ("--preset", preset),
                ("--corpus", corpus),
            )
            if given
        ]
        return _run(settings, Resume(), ignored)
    _check_founding(manifest, preset, corpus)
    return _run(settings, Found(manifest_file=manifest, corpus=corpus, preset=preset))


@app.command
def join(*addresses: str, options: _Node = None) -> int:
    """Join the run of a peer, or go on with it.

    Parameters
    ----------
    addresses
        Links that `gossamer start` and `gossamer status` show: /ip4/../tcp/../p2p/12D3..#RUN_ID
    """
    from gossamer.node.base.settings import ConfigError, Join, Resume, parse_links
    from gossamer.node.storage.state_dir import StateDir

    settings = _settings(options)
    seeds, run_id = parse_links(addresses)
    state_dir = StateDir(settings.state_dir)
    if state_dir.has_run():
        if run_id is not None:
            state_dir.require_run(bytes.fromhex(run_id))
        return _run(settings, Resume(addresses=seeds, run_id=run_id))
    seeds = seeds or settings.bootstrap
    if not seeds:
        raise ConfigError(
            ["gossamer join needs the address of a peer: the link that `gossamer start` printed"]
        )
    return _run(settings, Join(addresses=seeds, run_id=run_id))


@app.command
def status(*, json: bool = False, options: _State = None) -> int:
    """Show what the node does and what the swarm does.

    Parameters
    ----------
    json
        Everything, for machines.
    """
    import msgspec

    from gossamer.node.app.client import fetch_status
    from gossamer.node.storage.state_dir import StateDir
    from gossamer.node.telemetry.status import encode_status

    answer = fetch_status(StateDir(_settings(options).state_dir))
    if json:
        print(msgspec.json.format(encode_status(answer), indent=2).decode())
        return 0
    from rich.console import Console

    from gossamer.node.interface.views import print_status

    print_status(answer, Console())
    return 0


@app.command
def pause(*, options: _State = None) -> int:
    """Stop training for a while and free the device; the node stays and serves what it has."""
    return _order("pause", options, "The node pauses. Go on with: gossamer resume")


@app.command
def resume(*, options: _State = None) -> int:
    """Go on after a pause, or after the trainer failed."""
    return _order("resume", options, "The node goes on.")


@app.command
def leave(*, options: _State = None) -> int:
    """Stop the node in order: it hands over its work, saves its state and exits."""
    return _order(
        "leave", options, "The node leaves and exits; its state stays for the next start."
    )


@app.command
def demo(*, directory: Path | None = None) -> int:
    """Run a swarm of four peers here, kill one, let a fifth join, and show what comes of it.

    Parameters
    ----------
    directory
        Where to put states, logs and the picture (default: a new temporary folder).
    """
    from gossamer.node.local.demo import run_demo

    return run_demo(directory)


@app.command
def doctor(address: str | None = None, *, options: _Node = None) -> int:
    """Check this machine and say what to do; exit status 1 if something must be mended.

    Parameters
    ----------
    address
        A peer that should be reachable.
    """
    from rich.console import Console

    from gossamer.node.interface.doctor import run_doctor

    return run_doctor(_settings(options), address, Console())


@app.command
def export(directory: Path, *, options: _State = None) -> int:
    """Write the newest committed state as safetensors, as Hugging Face's LlamaForCausalLM reads it.

    Parameters
    ----------
    directory
        Where to write; created if it is not there.
    """
    from gossamer.node.runs.exporting import export_state

    return export_state(_settings(options), directory)


def main(arguments: Sequence[str] | None = None) -> None:
    """Console entry point: runs a command and exits with its status."""
    sys.exit(run_command(sys.argv[1:] if arguments is None else arguments))


def run_command(arguments: Sequence[str]) -> int:
    """Runs one command line and returns the exit status; what went wrong is on stderr."""
    if not arguments:
        arguments = ["--help"]
    try:
        result = app(list(arguments))
    except CycloptsError as error:
        _complain([" ".join(str(error).split()), "`gossamer --help` shows what there is"])
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has gone, as in `gossamer status | head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if not isinstance(error, _errors_for_people()):
            raise
        _complain(getattr(error, "problems", None) or [_explain(error)])
        return 1
    return result if isinstance(result, int) else 0


def _errors_for_people() -> tuple[type[Exception], ...]:
    from gossamer.node.app.client import ClientError
    from gossamer.node.base.disk_health import DiskError
    from gossamer.node.base.settings import ConfigError
    from gossamer.node.machine.trainer_client import TrainerFailedError
    from gossamer.node.network.identity import IdentityError
    from gossamer.node.network.transport import TransportError
    from gossamer.node.peers.run_exchange import JoinError
    from gossamer.node.storage.blocks import BlockError
    from gossamer.node.storage.state_dir import StateDirError
    from gossamer.protocol.errors import ManifestError
    from gossamer.trainer.export import ExportError
    from gossamer.trainer.text.corpus import CorpusError

    return (
        ConfigError,
        CorpusError,
        ExportError,
        JoinError,
        StateDirError,
        DiskError,
        TrainerFailedError,
        ClientError,
        ManifestError,
        BlockError,
        IdentityError,
        TransportError,
        OSError,
    )


def _explain(error: Exception) -> str:
    if type(error).__module__ == "builtins" and isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _complain(problems: list[str]) -> None:
    from gossamer.node.telemetry.logs import printable

    for problem in problems:
        print(f"gossamer: {printable(problem)}", file=sys.stderr)


def _settings(options: StateOptions | None) -> Settings:
    from gossamer.node.base.settings import load_settings

    flags: dict[str, Any] = {} if options is None else asdict(options)
    config: Path | None = flags.pop("config", None)
    return load_settings(flags, os.environ, config)


def _check_founding(manifest: Path | None, preset: str | None, corpus: tuple[Path, ...]) -> None:
    from gossamer.node.base.settings import ConfigError

    problems = []
    if manifest is not None and preset is not None:
        problems.append("--manifest and --preset exclude each other: a manifest says everything")
    for path in (*((manifest,) if manifest else ()), *corpus):
        if not path.exists():
            problems.append(f"{path}: no such file or directory")
        elif not os.access(path, os.R_OK):
            problems.append(f"{path}: you may not read it")
    if problems:
        raise ConfigError(problems)


def _order(order: Order, options: StateOptions | None, done: str) -> int:
    from gossamer.node.app.client import give_order
    from gossamer.node.storage.state_dir import StateDir

    give_order(StateDir(_settings(options).state_dir), order)
    print(done)
    return 0


def _run(settings: Settings, role: Role, ignored: list[str] | None = None) -> int:
    import structlog

    from gossamer.node.app.daemon import run
    from gossamer.node.telemetry.logs import configure_logs

    configure_logs(settings.log_format, settings.log_level)
    if ignored:
        structlog.get_logger().warning(
            "the state directory holds a run already and it goes on; "
            f"{', '.join(ignored)} count only when a run is founded",
            state_dir=str(settings.state_dir),
        )
    return run(settings, role)


if __name__ == "__main__":
    main()
