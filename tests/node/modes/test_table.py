"""Each sync mode of the manifest has its strategy."""

from __future__ import annotations

from typing import get_args

from gossamer.node.modes.table import MODES
from gossamer.protocol.manifest import SyncMode


def test_each_sync_mode_of_the_manifest_has_a_strategy() -> None:
    assert set(MODES) == set(get_args(SyncMode))
