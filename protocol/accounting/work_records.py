"""The records of a `WorkAccount`: lots of tokens, and offers of them, which are written to disk as
they are; and its answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from gossamer.protocol.decoding import ArrayStruct
from gossamer.protocol.errors import LocalProtocolError
from gossamer.protocol.state.chain import Commit
from gossamer.protocol.wire.envelopes import decode_statement
from gossamer.protocol.wire.statements import Ready, Roster, Span

STALE = "stale"
LATE = "late"
"""Reason of a drop: the shared steps went on without the work. Its gradients stay in the
momentum."""
OUT_OF_RANGE = "out_of_range"
"""Reason of a drop: a value of the work is no number, or far larger than any work can be
(`WORK_MAGNITUDE_MAX`)."""
ROLLED_BACK = "rolled_back"
"""Reason of a drop: rounds were taken back, and the work was done on their parameters."""
EXCESS = "excess"
"""Reason of a drop: no peer takes a `Ready` with so many tokens (`plausible_work`)."""
ABANDONED = "abandoned"
"""Reason of a drop: a round took the work, or may have, and it is not known how much of it."""


Work = dict[int, int]
"""Work of lots, by the lot's number: the mask of the chunks that it is in."""


class Lot(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Tokens of one local round that no round has, by where they are."""

    head: bytes
    """Digest of the head on which the tokens were trained. It is empty for a lot that joins several
    lots, none of which a round can take on time any more."""
    round: int
    carried: int
    saved: int = 0
    """Carried tokens whose work is on disk, in states of versions without `there`; else 0."""
    dropped: int = 0
    lost: int = 0
    there: bytes = b""
    """Mask of the chunks of `pending` that hold its work, big-endian."""
    on_disk: bytes = b""
    """Mask of those of them that hold it on disk too."""

    def take(self, amount: int, offered: int) -> tuple[int, int, int]:
        """Takes tokens (fewer if it has fewer) of an offer, in proportion to where they are.

        Returns those that were carried, dropped, and lost.

        Args:
            offered: the tokens of this lot in the offer. What was dropped or lost before is no part
                of it.
        """
        before = max(0, self.carried + self.dropped + self.lost - offered)
        dropped_since = max(0, self.dropped - before)
        lost_since = max(0, self.lost - max(0, before - self.dropped))
        places = [self.carried, dropped_since, lost_since]
        carried, dropped, lost = apportioned(min(amount, sum(places)), places)
        self.carried -= carried
        self.dropped -= dropped
        self.lost -= lost
        return carried, dropped, lost

    def join(self, other: Lot) -> None:
        """The tokens of another lot, whose work is in the same chunks, become its own."""
        self.round = min(self.round, other.round)
        self.carried += other.carried


class Share(ArrayStruct, frozen=True):
    """Tokens that a header took from one lot, by where they were."""

    lot: int
    carried: int
    dropped: int
    lost: int
    on_time: bool

    @property
    def tokens(self) -> int:
        return self.carried + self.dropped + self.lost


class Taking(ArrayStruct, frozen=True):
    """The part of one offer that a header took."""

    head: bytes
    shares: tuple[Share, ...]
    unknown: int
    """Tokens beyond what is known to have been offered."""
    chunks: bytes
    """Mask of the chunks that the header took, big-endian."""
    counts_spans: bool

    @property
    def on_time(self) -> int:
        return sum(share.tokens for share in self.shares if share.on_time)


class Offered(NamedTuple):
    """The part of a peer's `Ready` that tells its offers on one head from each other."""

    life: int
    tokens: int
    sequence: int = 0
    """`Ready.sequence`; 0: not known."""


def offered_by(peer_id: str, commit: Commit) -> Offered | None:
    """The offer of a peer that went into the ring of a checked commit record; None without one."""
    roster = decode_statement(commit.roster.payload)
    assert isinstance(roster, Roster), "the record was checked"
    for signed in roster.members:
        if signed.author == peer_id:
            ready = decode_statement(signed.payload)
            assert isinstance(ready, Ready), "the record was checked"
            return Offered(ready.incarnation, ready.tokens, ready.sequence)
    return None


class Offer(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The work that one `Ready` offered."""

    number: int
    head: bytes
    round: int
    lots: dict[int, int]
    """Tokens of each lot, by the lot's number."""
    spans: tuple[Span, ...]
    life: int = 0
    """Number of the life that made it (`Ready.incarnation`); 0: not known."""
    sequence: int = 0
    """Number of its `Ready` in that life (`Ready.sequence`); 0: not known, as in files of earlier
    versions."""
    taking: Taking | None = None
    """The part that a header in this peer's chain took; None if no header took any."""
    heads: list[bytes] = msgspec.field(default_factory=list)
    """Digests of the headers that ever took some, in the chain or not."""
    work: dict[int, bytes] = msgspec.field(default_factory=dict)
    """Mask of the chunks in which it has work of a lot, by the lot's number. What was given up or
    lost since is no part of it."""
    void: bytes = b""
    """Mask of the chunks in which its vector has more than this work."""

    @property
    def tokens(self) -> int:
        return sum(self.lots.values())

    @property
    def chunks_taken(self) -> int:
        """Mask of the chunks that a header took; 0: no header took the offer."""
        return 0 if self.taking is None else int.from_bytes(self.taking.chunks)

    def work_in(self, chunks: int) -> Work:
        """Its work in the chunks of a mask."""
        return {number: int.from_bytes(mask) & chunks for number, mask in self.work.items()}


def mask_of(flags: Iterable[bool]) -> int:
    """A mask with bit c set where flag c is true."""
    return sum(1 << chunk for chunk, flag in enumerate(flags) if flag)


def bytes_of(mask: int) -> bytes:
    """A mask of chunks, big-endian, without zeros before it."""
    return mask.to_bytes((mask.bit_length() + 7) // 8)


def apportioned(total: int, weights: Sequence[int]) -> list[int]:
    """`total` in parts in proportion to `weights`, none above its own; rounded for the first.

    LocalProtocolError if all the weights together are less than `total`.
    """
    whole = sum(weights)
    if not 0 <= total <= whole:
        raise LocalProtocolError(f"{total} of {whole} tokens")
    parts: list[int] = []
    given = before = 0
    for weight in weights:
        before += weight
        upto = -(-total * before // whole) if whole else 0
        parts.append(upto - given)
        given = upto
    return parts


@dataclass(frozen=True)
class Settlement:
    """The effect of a header that took work.

    In `pending`, subtract the offer's vector in the chunks `taken`, and make the chunks `zeroed`
    zero.
    """

    offer: int | None
    taken: int
    zeroed: int
    on_time: int
    late: int


@dataclass(frozen=True)
class Reclaim:
    """The work that a lost header gave back: add the vector of the offer behind it to `pending`, in
    these chunks.

    `on_time` and `late` are what it had taken, `carried` is the part that is carried again.
    """

    chunks: int
    on_time: int
    late: int
    carried: int


@dataclass(frozen=True)
class Restart:
    """The part of an earlier life's files that is still valid.

    `pending` is what was saved in the chunks `chunks`, and zero in the others. For each offer in
    `offers` its vector, in the chunks of the mask, is `pending` as restored now.
    """

    chunks: int
    offers: dict[int, int]
