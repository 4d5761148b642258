"""The strategy of each sync mode. A new mode is a module beside this one and a line here."""

from __future__ import annotations

from collections.abc import Mapping

from gossamer.node.modes.dense import dense_mode
from gossamer.node.modes.shared import shared_mode
from gossamer.node.modes.sparse import sparse_mode
from gossamer.node.modes.sync_mode import MakeMode
from gossamer.protocol.manifest import SyncMode as SyncModeName

MODES: Mapping[SyncModeName, MakeMode] = {
    "diloco": dense_mode,
    "sparse": sparse_mode,
    "distro": shared_mode,
}
