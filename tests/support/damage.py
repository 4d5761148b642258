"""Damage to files, as a failing disk does it."""

from __future__ import annotations

from pathlib import Path


def damaged(content: bytes | bytearray | memoryview) -> bytes:
    """Returns a copy with a flipped bit in the middle."""
    changed = bytearray(content)
    changed[len(changed) // 2] ^= 4
    return bytes(changed)


def damage(path: Path) -> None:
    """Flips a bit in the middle of a file."""
    path.write_bytes(damaged(path.read_bytes()))
