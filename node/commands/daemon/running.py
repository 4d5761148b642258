"""The common part of `gossamer start` and `gossamer join`, which become the daemon."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from gossamer.node.base.settings import Role, Settings
from gossamer.node.telemetry.log_places import require_packages
from gossamer.node.telemetry.logs import configure_logs


def run_node(settings: Settings, role: Role, ignored: Sequence[str] = ()) -> int:
    """Runs the daemon until it has left, and returns its exit status.

    Args:
        ignored: flags that have no effect, because the state directory holds a run already.

    Raises:
        ConfigError: `log_to` names a place whose package is not installed.
    """
    require_packages(settings.log_to)
    # The daemon brings libp2p, which takes seconds: a mistake in the options is told before that.
    from gossamer.node.app.daemon import run

    configure_logs(settings.log_format, settings.log_level)
    if ignored:
        structlog.get_logger().warning(
            "the state directory holds a run already, and the node goes on with it; "
            f"{', '.join(ignored)} take effect only when a run is founded",
            state_dir=str(settings.state_dir),
            fields={"event": "options have no effect: there is a run already", "options": ignored},
        )
    return run(settings, role)
