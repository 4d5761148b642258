"""`gossamer status`, and `gossamer page`."""

from __future__ import annotations

import sys

import msgspec

from gossamer.node.app.client import StartingError, fetch_status, page_link
from gossamer.node.base.printable import printable
from gossamer.node.base.terminal import open_console
from gossamer.node.commands.options import State, settings_of
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.telemetry.status import encode_status


def status(*, json: bool = False, options: State = None) -> int:
    """Show what the node does and what the swarm does.

    Parameters
    ----------
    json
        Print the whole status as JSON.
    """
    try:
        answer = fetch_status(StateDir(settings_of(options).state_dir))
    except StartingError as error:
        if json:
            raise
        print(printable(str(error)))
        return 0
    if json:
        print(msgspec.json.format(encode_status(answer), indent=2).decode())
    else:
        from gossamer.node.commands.views.status_view import (
            print_status,  # with rich, for its tables
        )

        print_status(answer, open_console())
    return 0


def page(*, options: State = None) -> int:
    """Print the link of the page that steers this node.

    The link holds the node's secret for orders. Open it in a browser on this machine. Without the
    secret the same page only shows.
    """
    print(page_link(StateDir(settings_of(options).state_dir)))
    if sys.stdout.isatty():
        print(
            "Open it on this machine, and keep it to yourself: it steers the node.",
            file=sys.stderr,
        )
    return 0
