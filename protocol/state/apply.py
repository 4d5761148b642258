"""How a function is called for all pieces of a vector: one after the other, or in threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

_Piece = TypeVar("_Piece")
_Result = TypeVar("_Result")


class Apply(Protocol):
    """`map`, or one that works at several pieces at the same time."""

    def __call__(
        self, function: Callable[[_Piece], _Result], pieces: Iterable[_Piece], /
    ) -> Iterable[_Result]:
        """The results of the function for all pieces, in their order. All calls are over when they
        were read."""
