"""The records of a `WorkAccount`: lots of tokens, and offers of them. They are written to disk as
they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from gossamer.protocol.errors import LocalProtocolError
from gossamer.protocol.state.chain import Commit, tokens_taken
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
ABANDONED = "abandoned"
"""Reason of a drop: a round took the work, or may have, and it is not known how much of it."""


class Lot(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Tokens of one local round that no round has, by where they are."""

    head: bytes
    """Digest of the head on which the tokens were trained. It is empty for a lot that joins several
    lots, none of which a round can take on time any more."""
    round: int
    carried: int
    saved: int = 0
    """Carried tokens whose work is also on disk."""
    dropped: int = 0
    lost: int = 0

    def take(self, amount: int) -> tuple[int, int, int]:
        """Takes tokens (fewer if it has fewer) in proportion to where they are.

        Returns those that were carried, dropped, and lost.
        """
        places = [self.carried, self.dropped, self.lost]
        carried, dropped, lost = apportioned(min(amount, sum(places)), places)
        self.take_carried(carried)
        self.dropped -= dropped
        self.lost -= lost
        return carried, dropped, lost

    def take_carried(self, amount: int) -> None:
        """Takes carried tokens, those on disk and those that are not alike."""
        if amount:
            self.saved -= amount * self.saved // self.carried
            self.carried -= amount
            self.saved = min(self.saved, self.carried)


class Share(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Tokens that a header took from one lot, by where they were."""

    lot: int
    carried: int
    dropped: int
    lost: int
    on_time: bool

    @property
    def tokens(self) -> int:
        return self.carried + self.dropped + self.lost


class Taking(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
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


def offered_by(peer_id: str, commit: Commit) -> Offered | None:
    """The offer of a peer that went into the ring of a checked commit record; None without one."""
    roster = decode_statement(commit.roster.payload)
    assert isinstance(roster, Roster), "the record was checked"
    for signed in roster.members:
        if signed.author == peer_id:
            ready = decode_statement(signed.payload)
            assert isinstance(ready, Ready), "the record was checked"
            return Offered(ready.incarnation, ready.tokens)
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
    taking: Taking | None = None
    """The part that a header in this peer's chain took; None if no header took any."""
    void: bytes = b""
    """Mask of the chunks in which its work is not in `pending` any more, as it was given up."""

    @property
    def tokens(self) -> int:
        return sum(self.lots.values())

    @property
    def chunks_taken(self) -> int:
        """Mask of the chunks that a header took; 0: no header took the offer."""
        return 0 if self.taking is None else int.from_bytes(self.taking.chunks)


class AccountState(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """All of a `WorkAccount`.

    Each sum of the account is a field, and each change of several sums at once is a method, so that
    the account stays balanced. So there are more than 12 fields and 15 methods.
    """

    head: bytes = b""
    """Committed head up to which the account is true."""
    trained: int = 0
    committed_on_time: int = 0
    committed_late: int = 0
    dropped: dict[str, int] = msgspec.field(default_factory=dict)
    """Dropped tokens by reason."""
    lost: int = 0
    under_way: int = 0
    """Tokens of the local round that runs: not yet `trained`."""
    first_life: int = 0
    """Number of the first life whose offers are all in this account; 0: not known yet."""
    lots: dict[int, Lot] = msgspec.field(default_factory=dict)
    """Lots by number, the oldest first."""
    offers: list[Offer] = msgspec.field(default_factory=list)
    """Offers, the oldest first."""
    next_number: int = 1
    """Number of the next lot or offer."""
    spans: list[Span] = msgspec.field(default_factory=list)
    """Data that this peer trained on, or skipped, and that no committed round has counted."""
    since: list[int] = msgspec.field(default_factory=list)
    """Round of the oldest work in each chunk of `pending`; 0 for a chunk without work."""
    saved_chunks: bytes = b""
    """Mask of the chunks of the vector on disk that are still in `pending`."""
    has_grown: bool = False
    """Whether work came into `pending` that is not in the vector on disk."""

    def end_local_round(self, tokens: int) -> None:
        """A local round ended with so many tokens; what was stepped beyond them is lost."""
        died = max(0, self.under_way - tokens)
        self.under_way = 0
        self.trained += tokens + died
        self.lost += died

    def count_rounds_back(self, num_back: int) -> None:
        """The rounds of all that is known have numbers that are lower by so many."""
        for lot in self.lots.values():
            lot.round = max(1, lot.round - num_back)
        for offer in self.offers:
            offer.round -= num_back
        self.since = [max(1, since - num_back) if since else 0 for since in self.since]

    def add_lot(self, head: bytes, round_number: int, tokens: int) -> None:
        """A new lot. Those that no known offer holds become one: they need no telling apart."""
        held = {number for offer in self.offers for number in offer.lots}
        free = [number for number in self.lots if number not in held]
        loose = [lot for number in free if (lot := self.lots.pop(number)).carried]
        same = [lot for lot in loose if lot.head == head]
        other = [lot for lot in loose if lot.head != head]
        if other:
            together = Lot(
                head=b"",
                round=min(lot.round for lot in other),
                carried=sum(lot.carried for lot in other),
                saved=sum(lot.saved for lot in other),
            )
            self.lots = {free[0]: together, **self.lots}
        self.lots[self.new_number()] = Lot(
            head=head,
            round=round_number,
            carried=tokens + sum(lot.carried for lot in same),
            saved=sum(lot.saved for lot in same),
        )

    def new_number(self) -> int:
        self.next_number += 1
        return self.next_number - 1

    def open_offers_on(self, parent: bytes) -> list[Offer]:
        """The offers to the round after a head of which no header in my chain took anything."""
        return [o for o in self.offers if o.head == parent and o.taking is None]

    def offer_taken_by(
        self,
        parent: bytes,
        tokens: int,
        chunks: int | None,
        num_synced: int,
        offered: Offered | None,
    ) -> Offer | None:
        """The offer that a header on `parent` took: of several the newest that fits what my `Ready`
        said, or else the header's tokens."""
        found = self.open_offers_on(parent)
        for offer in reversed(found):
            if offered is not None and (offer.life, offer.tokens) == offered:
                return offer
        if chunks is not None:
            num_in = chunks.bit_count()
            for offer in reversed(found):
                if tokens_taken(offer.tokens, num_in, num_synced) == tokens:
                    return offer
        return next((offer for offer in reversed(found) if offer.tokens >= tokens), None)

    def take(self, number: int, amount: int, parent: bytes) -> Share:
        """Takes tokens of a lot for a header that follows `parent`; fewer if it has fewer."""
        lot = self.lots[number]
        carried, dropped, lost = lot.take(amount)
        self.lost -= lost
        self._undo_dropped(dropped)
        return Share(number, carried, dropped, lost, lot.head == parent)

    def take_forgotten(self, tokens: int) -> int:
        """Takes tokens of an offer that is no longer remembered. Its work was lost or dropped long
        ago. Returns how many tokens were found among these."""
        lost = min(tokens, self.lost)
        self.lost -= lost
        return lost + self._undo_dropped(tokens - lost)

    def _undo_dropped(self, tokens: int) -> int:
        """So many tokens were not dropped after all. Returns how many of them were dropped."""
        left = tokens
        for reason in sorted(self.dropped):  # which of them it had is not remembered
            undone = min(left, self.dropped[reason])
            self.dropped[reason] -= undone
            left -= undone
        return tokens - left

    def give_back(self, share: Share, carried: int, dropped: int, reason: str) -> None:
        """A share goes to its lot again: so much is carried, so much dropped, the rest is lost."""
        lot = self.lots[share.lot]
        lost = share.tokens - carried - dropped
        lot.carried += carried
        lot.dropped += dropped
        lot.lost += lost
        self.lost += lost
        self.count_dropped(reason, dropped)

    def drop(self, amounts: Mapping[int, int], reason: str) -> int:
        """Drops so many tokens of each lot, or as many as it carries; returns how many it were."""
        total = 0
        for number, wanted in amounts.items():
            lot = self.lots[number]
            amount = min(wanted, lot.carried)
            lot.take_carried(amount)
            lot.dropped += amount
            total += amount
        self.count_dropped(reason, total)
        return total

    def give_up(self, chunks: int, reason: str) -> int:
        """The work in some chunks is dropped, with its share of the tokens. Returns the mask."""
        with_work = self.with_work
        if not chunks:
            return 0
        is_all = not with_work & ~chunks
        num_given, num_with_work = (chunks & with_work).bit_count(), with_work.bit_count()
        amounts = {
            number: lot.carried if is_all else tokens_taken(lot.carried, num_given, num_with_work)
            for number, lot in self.lots.items()
        }
        self.drop(amounts, reason)
        if is_all:
            self.spans = []
        self.clear(chunks)
        return chunks

    def count_dropped(self, reason: str, tokens: int) -> None:
        if tokens:
            self.dropped[reason] = self.dropped.get(reason, 0) + tokens

    @property
    def with_work(self) -> int:
        """Mask of the chunks of `pending` that hold work."""
        return mask_of(since > 0 for since in self.since)

    def clear(self, chunks: int) -> None:
        """The chunks of a mask become zero in `pending`."""
        self.set_since(chunks, 0)
        self.unsave(chunks)
        for offer in self.offers:
            self.void(offer, chunks & ~offer.chunks_taken)

    def void(self, offer: Offer, chunks: int) -> None:
        """The work of an offer is no longer in the chunks of a mask."""
        offer.void = self.mask_bytes(int.from_bytes(offer.void) | chunks)

    def set_since(self, chunks: int, since: int) -> None:
        """The oldest work in the chunks of a mask is of the round `since`."""
        self.since = [since if chunks >> chunk & 1 else old for chunk, old in enumerate(self.since)]

    def unsave(self, chunks: int) -> None:
        """The vector on disk no longer holds the chunks of a mask."""
        self.saved_chunks = self.mask_bytes(int.from_bytes(self.saved_chunks) & ~chunks)

    def mask_bytes(self, mask: int) -> bytes:
        """A mask of chunks, big-endian, as long as the chunk plan needs."""
        return mask.to_bytes((len(self.since) + 7) // 8)


def mask_of(flags: Iterable[bool]) -> int:
    """A mask with bit c set where flag c is true."""
    return sum(1 << chunk for chunk, flag in enumerate(flags) if flag)


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
