"""Payloads small enough for thousands of worlds, from which everything can be checked.

A partial sum is, for a ring of N members: N bytes that count how often each member is in it, the
weighted sum as a number, and a digest of the order in which it was added up. The last makes the
bytes depend on the way that a chunk took, as sums of floats do.
"""

from __future__ import annotations

from gossamer.protocol.ids import PeerId, digest_of
from gossamer.protocol.ring import Payload

_SUM_BYTES = 16
_PATH_BYTES = 8


class WrongSumError(AssertionError):
    """Somebody is in a sum twice, or not at all although the mask says so."""


def value_of(peer: PeerId, head: bytes, chunk: int) -> int:
    """The pseudo-gradient of a peer in one chunk: a number that identifies it."""
    return int.from_bytes(digest_of(peer.encode(), head, bytes([chunk]))[:4], "big")


def add(
    payload: Payload | None, members: tuple[PeerId, ...], me: PeerId, weight: int, value: int
) -> bytes:
    """The partial sum with one member more."""
    num = len(members)
    data = bytes(payload) if payload is not None else bytes(num + _SUM_BYTES + _PATH_BYTES)
    counts = bytearray(data[:num])
    counts[members.index(me)] += 1
    total = int.from_bytes(data[num : num + _SUM_BYTES], "big") + weight * value
    path = digest_of(data, me.encode())[:_PATH_BYTES]
    return bytes(counts) + total.to_bytes(_SUM_BYTES, "big") + path


def check(
    payload: Payload,
    mask: int,
    members: tuple[PeerId, ...],
    weights: dict[PeerId, int],
    head: bytes,
    chunk: int,
) -> None:
    """Raises WrongSumError unless exactly the members of `mask` are in the sum, once each."""
    num = len(members)
    data = bytes(payload)
    counts = [mask >> position & 1 for position in range(num)]
    if list(data[:num]) != counts:
        raise WrongSumError(f"chunk {chunk}: counts {list(data[:num])}, mask says {counts}")
    total = sum(
        weights[member] * value_of(member, head, chunk)
        for member, count in zip(members, counts, strict=True)
        if count
    )
    if int.from_bytes(data[num : num + _SUM_BYTES], "big") != total:
        raise WrongSumError(f"chunk {chunk}: the sum is not that of its contributors")
