"""Counts what is under way with each peer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

Key = TypeVar("Key")


@contextmanager
def counted(counts: Counter[Key], key: Key) -> Iterator[int]:
    """Counts one more for the block, which gets the number with it. A key of which nothing is left
    is forgotten."""
    counts[key] += 1
    try:
        yield counts[key]
    finally:
        counts[key] -= 1
        if not counts[key]:
            del counts[key]
