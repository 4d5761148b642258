"""The state of a `WorkAccount`: its sums, and the changes of several of them at once. It is written
to disk as it is."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gossamer.protocol.accounting.work_records import (
    EXCESS,
    Lot,
    Offer,
    Offered,
    Share,
    mask_of,
)
from gossamer.protocol.state.chain import tokens_taken
from gossamer.protocol.wire.statements import Span


class AccountState(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """All of a `WorkAccount`.

    Each sum of the account is a field, and each change of several sums at once is a method, so that
    the account stays balanced. So there are more than 12 attributes and 15 public methods.
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

    def take(self, offer: Offer, number: int, amount: int, parent: bytes) -> Share:
        """Takes tokens of a lot of an offer for a header that follows `parent`; fewer if it has
        fewer."""
        lot = self.lots[number]
        carried, dropped, lost = lot.take(amount, offer.lots[number])
        self.lost -= lost
        self._undo_dropped(dropped)
        return Share(number, carried, dropped, lost, lot.head == parent)

    def take_forgotten(self, tokens: int, offered: Offered | None) -> None:
        """A header took tokens of an offer that is not remembered. If this account has the life
        that made it, they are among those that were lost or dropped long ago; else they were
        trained by a life whose records are gone."""
        found = 0
        if offered is not None and 0 < self.first_life <= offered.life:
            found = min(tokens, self.lost)
            self.lost -= found
            found += self._undo_dropped(tokens - found)
        self.trained += tokens - found
        self.committed_late += tokens

    def lose_forgotten(self, tokens: int) -> int:
        """A header that took tokens of such an offer is not in the chain after all. Returns how
        many of them had counted as late."""
        late = min(tokens, self.committed_late)
        self.committed_late -= late
        self.committed_on_time -= tokens - late
        self.lost += tokens
        return late

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

    def drop_excess(self, tokens_max: int) -> None:
        """Drops the carried tokens above `tokens_max`, the oldest first. `pending` stays."""
        excess = sum(lot.carried for lot in self.lots.values()) - tokens_max
        for number, lot in self.lots.items():
            if excess <= 0:
                break
            excess -= self.drop({number: min(excess, lot.carried)}, EXCESS)

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
    def oldest_round(self) -> int:
        """The round of the oldest carried work; 0 if there is none."""
        return min((since for since in self.since if since), default=0)

    @property
    def is_saved(self) -> bool:
        """Whether all work in `pending` is on disk."""
        is_there = not self.with_work & ~int.from_bytes(self.saved_chunks)
        return is_there and not (self.with_work and self.has_grown)

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

    def void_all_like(self, offer: Offer, chunks: int) -> None:
        """The work of an offer is lost in the chunks of a mask, and with it that of all offers that
        share some: two lives offered the same round what waited for its fragment, which has no lot.
        """
        for other in self.offers:
            if other.head == offer.head or not offer.lots.keys().isdisjoint(other.lots):
                self.void(other, chunks & ~other.chunks_taken)

    def set_since(self, chunks: int, since: int) -> None:
        """The oldest work in the chunks of a mask is of the round `since`."""
        self.since = [since if chunks >> chunk & 1 else old for chunk, old in enumerate(self.since)]

    def unsave(self, chunks: int) -> None:
        """The vector on disk no longer holds the chunks of a mask."""
        self.saved_chunks = self.mask_bytes(int.from_bytes(self.saved_chunks) & ~chunks)

    def mask_bytes(self, mask: int) -> bytes:
        """A mask of chunks, big-endian, as long as the chunk plan needs."""
        return mask.to_bytes((len(self.since) + 7) // 8)
