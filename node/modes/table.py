"""The strategy of each sync mode. A new mode is a module beside this one and a line here."""

from __future__ import annotations

from collections.abc import Mapping

from gossamer.node.modes.pending_work import dense_mode, record_mode, sparse_mode
from gossamer.node.modes.shared import shared_mode
from gossamer.node.modes.sync_mode import MakeMode
from gossamer.protocol.manifest import Manifest, Trust
from gossamer.protocol.sync_modes import SyncMode as SyncModeName

MODES: Mapping[tuple[SyncModeName, Trust], MakeMode] = {
    ("diloco", "members"): dense_mode,
    ("sparse", "members"): sparse_mode,
    ("distro", "members"): shared_mode,
    ("diloco", "open"): record_mode,
    ("sparse", "open"): record_mode,
}
"""A manifest with any other pair is not valid."""


def mode_for(manifest: Manifest) -> MakeMode:
    """The strategy of a run's sync mode."""
    return MODES[manifest.sync, manifest.trust]
