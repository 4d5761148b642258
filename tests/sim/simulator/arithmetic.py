"""Work that can be counted: vectors and sums small enough for thousands of worlds.

The work that a peer has in one chunk is an integer whose digit u (base 256) says how often unit u
is in it; a unit is the result of one local round of that peer. So work adds and subtracts as the
real vectors do, and shows what is in it twice, or less than not at all.

A `Sum` on its way round a ring lists who added what, in that order, beside the bytes of the real
payload (`modes`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

from gossamer.protocol.ids import Digest, digest_of
from tests.sim.simulator.scenario import CHUNK_BYTES

_DIGIT_BITS = 8


def unit_of(number: int) -> int:
    """The work of one local round."""
    return 1 << (_DIGIT_BITS * number)


@cache
def _all_once(num_units: int) -> int:
    return int.from_bytes(b"\x01" * num_units)


def all_units(num_units: int) -> int:
    """Every unit of a peer, once."""
    return _all_once(num_units)


def is_counted_once(work: int, num_units: int) -> bool:
    """Whether every unit is in it once or not at all."""
    return work >= 0 and not work & ~_all_once(num_units)


def units_in(work: int) -> list[int]:
    """The units that some work contains, each as often as it does."""
    digits = work.to_bytes((work.bit_length() + 7) // 8, "little")
    return [unit for unit, times in enumerate(digits) for _ in range(times)]


def describe(work: int) -> str:
    """For messages: how often it contains which units."""
    if work < 0:
        return f"minus ({describe(-work)})"
    digits = work.to_bytes((work.bit_length() + 7) // 8, "little")
    return ", ".join(f"unit {u}" + f" x{n}" * (n != 1) for u, n in enumerate(digits) if n) or "none"


@dataclass(frozen=True)
class Sum:
    """A partial sum of one chunk."""

    parts: tuple[tuple[int, int], ...]
    """(position in the ring, work) in the order of adding."""
    encoded: bytes
    """What travels in this world's way of averaging."""

    def __len__(self) -> int:
        """The bytes that it takes of a line, whatever is encoded."""
        return CHUNK_BYTES

    @cached_property
    def digest(self) -> Digest:
        return digest_of(self.encoded)


class WrongSumError(AssertionError):
    """A member is in a sum twice, or not at all although the mask says so."""


def add(payload: Sum | None, position: int, work: int, encoded: bytes) -> Sum:
    """The partial sum with one member more; `encoded` is the real one."""
    before = () if payload is None else payload.parts
    return Sum((*before, (position, work)), encoded)


def check(payload: Sum, mask: int, chunk: int) -> None:
    """Raises WrongSumError unless exactly the members of `mask` are in the sum, once each."""
    found = 0
    for position, _ in payload.parts:
        if found >> position & 1:
            raise WrongSumError(f"chunk {chunk}: member {position} is in the sum twice")
        found |= 1 << position
    if found != mask:
        raise WrongSumError(f"chunk {chunk}: the sum is of {found:b}, its mask says {mask:b}")
