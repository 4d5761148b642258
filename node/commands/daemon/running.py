"""The common part of `gossamer start` and `gossamer join`, which become the daemon."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Sequence

from gossamer.node.base.roles import Resume, Role
from gossamer.node.base.settings.settings import Settings
from gossamer.node.base.terminal.early_stop import stopped_in_order
from gossamer.node.storage.daemon_files import DaemonFiles
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.storage.state_names import require_kinds

LOADS = "it loads its modules"


@contextlib.contextmanager
def held(settings: Settings, does: str = LOADS) -> Iterator[StateDir]:
    """Takes the state directory and leaves a word there, before anything that takes seconds.

    So `gossamer status` finds the node at once, and a second node on the directory is refused at
    once.

    Args:
        does: what comes first, for people.

    Raises:
        ConfigError: `log_to` names a place whose package is not installed.
        StateDirError, DiskError: the state directory is another node's, or cannot be used.
    """
    if settings.log_to:
        from gossamer.node.telemetry.log_places import require_packages

        require_packages(settings.log_to)
    state_dir = StateDir(settings.state_dir)
    require_kinds(state_dir.root)
    with state_dir.locked():
        DaemonFiles(state_dir).write_starting(does)
        yield state_dir


def run_held(
    settings: Settings, role: Role, state_dir: StateDir, ignored: Sequence[str] = ()
) -> int:
    """Runs the daemon on a state directory that is `held`, until it has left. Returns its exit
    status.

    Args:
        ignored: flags that have no effect, because the state directory holds a run already.
    """
    with stopped_in_order():
        import structlog  # here, and the daemon with libp2p: see `held`

        from gossamer.node.app.daemon import run
        from gossamer.node.machine.torch_probe import require_device
        from gossamer.node.telemetry.logs import configure_logs

        if not isinstance(role, Resume):  # a run that is here is followed and served without it
            require_device(settings.device, confined=settings.confine_trainer == "on")
    search_for_garbage_again()
    configure_logs(settings.log_format, settings.log_level)
    if ignored:
        structlog.get_logger().warning(
            "the state directory holds a run already, and the node goes on with it; "
            f"only the founding of a run reads {', '.join(ignored)}",
            state_dir=str(settings.state_dir),
            fields={"event": "options have no effect: there is a run already", "options": ignored},
        )
    return run(settings, role, state_dir)


def search_for_garbage_again() -> None:
    """Starts the search for garbage, if `cli.main` has stopped it for the time of loading.

    What is loaded stays for the life of the process, so no search looks at it: a look at all of it
    would stop the event loop for a tenth of a second.
    """
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
