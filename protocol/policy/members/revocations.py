"""The revocations of a roll: who has put out whom, and how many of them count.

A root may revoke as often as there are members. Of another member those with the lowest targets
stay, so that all nodes keep the same ones in whatever order they come.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from gossamer.protocol import limits
from gossamer.protocol.wire.invitation_messages import Revocation

REVOCATIONS_MAX = 16
"""Revocations of one member that is no root; those with the lowest targets stay. Each puts out a
whole branch, and a root may make `limits.MEMBERS_MAX`."""


class Revocations:
    """The revocations that one node knows. All keys are public keys of 32 bytes."""

    def __init__(self, roots: frozenset[bytes]) -> None:
        self._roots = roots
        self._held: dict[bytes, dict[bytes, Revocation]] = {}
        """By revoker, then by target."""

    def all(self) -> tuple[Revocation, ...]:
        """Returns them sorted by revoker, then by target."""
        return tuple(
            each
            for _, by_target in sorted(self._held.items())
            for _, each in sorted(by_target.items())
        )

    def has(self, revocation: Revocation) -> bool:
        """Returns whether its revoker has revoked its target already."""
        return revocation.target in self._held.get(revocation.revoker, {})

    def is_put_out(self, targets: Collection[bytes], by: Iterable[bytes]) -> bool:
        """Returns whether one of some revokers has revoked one of some targets."""
        return any({*targets} & self._held.get(revoker, {}).keys() for revoker in by)

    def has_room(self, revoker: bytes, targets: Iterable[bytes]) -> bool:
        """Returns whether all revocations of a revoker count with those of more targets. Where they
        do not, the highest target, which may be an earlier one, comes in again."""
        together = self._held.get(revoker, {}).keys() | {*targets}
        return len(together) <= self._most(revoker)

    def keep(self, revocation: Revocation) -> bool:
        """Keeps a revocation among the lowest targets of its revoker; says whether it is kept."""
        held = self._held.setdefault(revocation.revoker, {})
        held[revocation.target] = revocation
        if len(held) > self._most(revocation.revoker):
            del held[max(held)]
        return revocation.target in held

    def keep_of(self, revokers: Collection[bytes]) -> None:
        """Forgets the revocations of all other revokers."""
        self._held = {each: held for each, held in self._held.items() if each in revokers}

    def _most(self, revoker: bytes) -> int:
        return limits.MEMBERS_MAX if revoker in self._roots else REVOCATIONS_MAX
