"""Looks whether the state directory is there: its disk may be unplugged, or its server may be away.

The trainer finds neither text nor its folder then. It would be started in vain, until it counts as
failed and does not go on when the disk is back.
"""

from __future__ import annotations

import contextlib

from gossamer.node.base.disk_health import DiskError
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.storage.state_dir import StateDir


class StatePlace:
    """The place of one node's state. `problem` blocks for as long as the disk needs: one thread
    asks at a time."""

    def __init__(self, state_dir: StateDir, store: BlockStore) -> None:
        self._state_dir = state_dir
        self._store = store
        self._was_gone = False

    def problem(self) -> str:
        """Returns why the state directory is gone; empty if it is there. Blocks that were missing
        meanwhile are found again, also where they were away between two looks."""
        try:
            self._state_dir.require_ours()
        except DiskError as error:
            self._was_gone = True
            return str(error)
        if self._was_gone or self._store.has_lost:
            with contextlib.suppress(OSError):  # it has gone again
                self._store.find_again()
                self._was_gone = False
        return ""
