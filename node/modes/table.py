"""The strategy of each sync mode. A new mode is a module beside this one and a line here."""

from __future__ import annotations

from collections.abc import Mapping

from gossamer.node.modes.pending_work import PendingWork
from gossamer.node.modes.shared import shared_mode
from gossamer.node.modes.sync_mode import MakeMode
from gossamer.protocol.manifest import Manifest, Trust
from gossamer.protocol.sync_modes import SyncMode as SyncModeName

MODES: Mapping[tuple[SyncModeName, Trust], MakeMode] = {
    ("diloco", "members"): PendingWork,
    ("sparse", "members"): PendingWork,
    ("distro", "members"): shared_mode,
    ("diloco", "open"): PendingWork,
    ("sparse", "open"): PendingWork,
    ("distro", "open"): shared_mode,
}
"""A manifest with any other pair is not valid."""


def mode_for(manifest: Manifest) -> MakeMode:
    """The strategy of a run's sync mode."""
    return MODES[manifest.sync, manifest.trust]
