"""What the ring of a round wants done (`ring.RingReduce`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.rounds.inventory import Payload, SignedDigest


@dataclass(frozen=True)
class Contribute:
    """Add this member's part to a payload, then call `contributed` or `rejected`.

    A payload of None means that the sum begins with this part.
    """

    chunk: int
    payload: Payload | None
    sender: PeerId | None = None
    """The member that sent the payload; None: this member starts the chunk."""
    mask: int = 0
    """The members that are in the payload; 0 without one."""


@dataclass(frozen=True)
class FinishAverage:
    """Divide the sum by the weights of its contributors, then call `average_finished`."""

    chunk: int
    payload: Payload
    mask: int


@dataclass(frozen=True)
class Send:
    """Send a chunk to a member, unless its inventory says that it has no use for it."""

    peer: PeerId
    chunk: int
    mask: int
    finisher: int | None
    """Ring position of the member that made the average; None: a partial sum."""
    payload: Payload = field(repr=False)
    digest: Digest | None = None
    """Digest of the average's bytes; None: a partial sum."""
    signature: bytes = field(default=b"", repr=False)
    """The finisher's under the average, or this member's under a partial sum. Empty where records
    are signed, and under the partial sums of sets."""


@dataclass(frozen=True)
class Contradicted:
    """A member has signed two averages of one chunk."""

    chunk: int
    finisher: int
    one: SignedDigest
    other: SignedDigest


Action: TypeAlias = Contribute | FinishAverage | Send | Contradicted

SignChunk: TypeAlias = Callable[[int, int, Digest], bytes]
"""(chunk, mask, digest) -> this member's signature under an average that it finished, or under a
partial sum that it passes on."""


def unsigned(_chunk: int, _mask: int, _digest: Digest) -> bytes:
    """Signs nothing, for rings whose chunks need no signature (`SignChunk`)."""
    return b""
