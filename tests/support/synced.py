"""What a program makes durable: the files and folders that it syncs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


class Synced:
    """The files and folders that were synced since this was made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._fsync = os.fsync
        self._found: set[tuple[int, int]] = set()
        monkeypatch.setattr(os, "fsync", self._noted)

    def _noted(self, descriptor: int) -> None:
        self._found.add(_place_of(os.fstat(descriptor)))
        self._fsync(descriptor)

    def missing(self, paths: set[Path]) -> set[Path]:
        """Returns those of the paths that would not survive a power cut, with their folders."""
        all_paths = {*paths, *(path.parent for path in paths)}
        return {path for path in all_paths if _place_of(path.stat()) not in self._found}


def _place_of(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
