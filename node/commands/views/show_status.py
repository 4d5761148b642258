"""`gossamer status`, and `gossamer page`."""

from __future__ import annotations

import sys

from gossamer.node.app.http.client import page_link
from gossamer.node.commands.options import NO_OPTIONS, State, state_dir_of
from gossamer.node.commands.views.status_line import StatusLine, show_status


def status(*, json: bool = False, options: State = NO_OPTIONS) -> int:
    """Show what the node does and what the swarm does.

    Parameters
    ----------
    json
        Print the whole status as JSON.
    """
    return show_status(StatusLine(json, options.state_dir, options.config))


def page(*, options: State = NO_OPTIONS) -> int:
    """Print the link of the page that steers this node.

    The link holds the node's secret for orders. Open it in a browser on this machine. Without the
    secret the same page only shows.
    """
    print(page_link(state_dir_of(options)))
    if sys.stdout.isatty():
        print(
            "Open it on this machine, and keep it to yourself: it steers the node.",
            file=sys.stderr,
        )
    return 0
