"""`gossamer id`."""

from __future__ import annotations

from gossamer.node.commands.options import State, settings_of
from gossamer.node.network.identity import Identity
from gossamer.node.storage.state_dir import StateDir


def show_id(*, options: State = None) -> int:
    """Show the id of this node, which a founder needs to admit it.

    A node that never ran gets its identity now, and keeps it.
    """
    state_dir = StateDir(settings_of(options).state_dir)
    state_dir.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    print(Identity.load_or_create(state_dir.identity_path).peer_id)
    return 0
