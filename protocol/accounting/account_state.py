"""The state of a `WorkAccount`: its sums, and the changes of several of them at once. It is written
to disk as it is."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_

import msgspec

from gossamer.protocol.accounting.work_records import (
    EXCESS,
    Lot,
    Offer,
    Offered,
    Share,
    Work,
    bytes_of,
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
    """Mask of the chunks of the vector on disk of which all work is still in `pending`."""
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
        """A new lot, with work in all chunks. Lots that no known offer holds, and whose work is in
        the same chunks, become one: they need no telling apart."""
        held = {number for offer in self.offers for number in [*offer.lots, *offer.work]}
        pooled: dict[tuple[bytes, bytes, bytes], Lot] = {}
        for number, lot in list(self.lots.items()):
            if number in held:
                continue
            kind = (lot.head if lot.head == head else b"", lot.there, lot.on_disk)
            if kind not in pooled and (lot.carried or lot.there):
                pooled[kind] = lot
                lot.head = kind[0]
                continue
            del self.lots[number]
            if kind in pooled:
                pooled[kind].join(lot)
        self.lots[self.new_number()] = Lot(
            head=head,
            round=round_number,
            carried=tokens,
            there=bytes_of((1 << len(self.since)) - 1),
        )

    def new_number(self) -> int:
        self.next_number += 1
        return self.next_number - 1

    def open_offers_on(self, parent: bytes) -> list[Offer]:
        """The offers to the round after a head of which no header in my chain took anything."""
        return [o for o in self.offers if o.head == parent and o.taking is None]

    def offer_taken_by(
        self,
        head: bytes,
        parent: bytes,
        tokens: int,
        chunks: int | None,
        num_synced: int,
        offered: Offered | None,
    ) -> Offer | None:
        """The offer that the header `head` on `parent` took: the one that it took before, or that
        of my `Ready` in its roster. Where the number of that is not known, it is the newest that
        fits what my `Ready` said, or else the header's tokens."""
        found = self.open_offers_on(parent)
        for offer in found:
            if head in offer.heads:
                return offer
        if offered is not None and offered.sequence:
            for offer in found:
                if (offer.life, offer.sequence) == (offered.life, offered.sequence):
                    return offer
        for offer in reversed(found):
            if offered is not None and (offer.life, offer.tokens) == offered[:2]:
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
            lot.carried -= amount
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

    # The work in the chunks

    @property
    def work(self) -> Work:
        """The work in `pending`."""
        return {number: int.from_bytes(lot.there) for number, lot in self.lots.items()}

    @property
    def with_work(self) -> int:
        """Mask of the chunks of `pending` that hold work."""
        return union(self.work)

    def parts_of(self, offer: Offer, chunks: int) -> tuple[int, int, int]:
        """The chunks of a mask in which `pending` holds work of an offer, as three masks: those in
        which the offer's vector is this work; of those in which it is not, the ones in which
        `pending` holds no other work; and the rest."""
        offered, there = offer.work_in(chunks), self.work
        shared = union({number: mask & there[number] for number, mask in offered.items()})
        gone = union({number: mask & ~there[number] for number, mask in offered.items()})
        other = union({number: mask & ~offered.get(number, 0) for number, mask in there.items()})
        unclear = shared & (gone | int.from_bytes(offer.void))
        return shared & ~unclear, unclear & ~other, unclear & other

    def take_work(self, offer: Offer, chunks: int) -> None:
        """The work of an offer in the chunks of a mask is no longer in `pending`."""
        for number, mask in offer.work_in(chunks).items():
            lot = self.lots[number]
            lot.there = bytes_of(int.from_bytes(lot.there) & ~mask)
        self.unsave(chunks)
        work = [(self.lots[number].round, mask) for number, mask in self.work.items() if mask]
        for chunk, since in enumerate(self.since):
            if chunks >> chunk & 1:
                left = [round_number for round_number, mask in work if mask >> chunk & 1]
                self.since[chunk] = max(since, min(left)) if left else 0

    def put_back(self, offer: Offer, chunks: int) -> None:
        """The work of an offer in the chunks of a mask is in `pending` again. It is as old as the
        offer."""
        for number, mask in offer.work_in(chunks).items():
            lot = self.lots[number]
            lot.there = bytes_of(int.from_bytes(lot.there) | mask)
        round_number = max(1, offer.round)
        self.since = [
            min(since or round_number, round_number) if chunks >> chunk & 1 else since
            for chunk, since in enumerate(self.since)
        ]
        self.has_grown = True

    def clear(self, chunks: int) -> None:
        """The chunks of a mask become zero in `pending`."""
        self.forget({number: mask & chunks for number, mask in self.work.items()})
        for lot in self.lots.values():
            lot.there = bytes_of(int.from_bytes(lot.there) & ~chunks)
        self.set_since(chunks, 0)
        self.unsave(chunks)

    def forget(self, gone: Work) -> None:
        """Some work is in `pending` and the chain no more, and never again."""
        for offer in self.offers:
            cut = {number: mask & gone.get(number, 0) for number, mask in offer.work_in(-1).items()}
            for number, mask in cut.items():
                offer.work[number] = bytes_of(int.from_bytes(offer.work[number]) & ~mask)
            offer.work = {number: mask for number, mask in offer.work.items() if mask}
            offer.void = bytes_of(int.from_bytes(offer.void) | union(cut))

    def lose_unsaved(self) -> dict[int, int]:
        """The work that is not on disk is lost. Returns offers with the chunks, as masks, in which
        their vectors were more than what is left of them, and this is what `pending` is now."""
        gone: Work = {}
        lost = self.tokens_not_on_disk()
        for number, lot in self.lots.items():
            gone[number] = int.from_bytes(lot.there) & ~int.from_bytes(lot.on_disk)
            tokens = lost[number]
            lot.there = lot.on_disk
            lot.carried -= tokens
            lot.lost += tokens
            self.lost += tokens
        self.forget(gone)
        self.set_since(~self.with_work, 0)
        self.has_grown = False
        renewed: dict[int, int] = {}
        for offer in self.offers:
            offered = offer.work_in(-1)
            other = union({n: mask ^ offered.get(n, 0) for n, mask in self.work.items()})
            void = int.from_bytes(offer.void)
            same = void & ~other
            if same & union(offered):
                offer.void = bytes_of(void & ~same)
                renewed[offer.number] = same
        return renewed

    def lose_without_work(self) -> None:
        """Tokens that are carried while no chunk holds work are lost: their work was lost, and a
        header took others of the same lots in their place."""
        if self.with_work:
            return
        for lot in self.lots.values():
            self.lost += lot.carried
            lot.lost += lot.carried
            lot.carried = 0

    def tokens_not_on_disk(self) -> dict[int, int]:
        """The carried tokens of each lot whose work in `pending` is not on disk. A lot whose work
        is taken in all its chunks may have some left over, as a header takes tokens of all lots
        alike: they share the fate of all that is in `pending`."""
        lost: dict[int, int] = {}
        on_disk = union({n: int.from_bytes(lot.on_disk) for n, lot in self.lots.items()})
        for number, lot in self.lots.items():
            there, kept = int.from_bytes(lot.there), int.from_bytes(lot.on_disk)
            if not there:
                there, kept = self.with_work, on_disk
            num_there, num_gone = there.bit_count(), (there & ~kept).bit_count()
            lost[number] = tokens_taken(lot.carried, num_gone, num_there) if there else lot.carried
        return lost

    def place_work(self) -> None:
        """The state may be of a version that did not know which chunks have which work. Then work
        of all carried lots is taken to be in all chunks that have some. What is on disk of other
        lots is given up: a round may have it."""
        chunks = mask_of(since > 0 for since in self.since)
        if self.with_work or not chunks:
            return
        saved = bytes_of(chunks & int.from_bytes(self.saved_chunks))
        carried = [lot for lot in self.lots.values() if lot.carried]
        for lot in carried or list(self.lots.values())[-1:]:
            lot.there = bytes_of(chunks)
            lot.on_disk = saved if lot.saved or not self.has_grown else b""
            lot.saved = 0
        on_disk = union({n: int.from_bytes(lot.on_disk) for n, lot in self.lots.items()})
        self.unsave(chunks & ~on_disk)
        for offer in self.offers:
            mask = chunks & ~int.from_bytes(offer.void) | offer.chunks_taken
            offer.work = {number: bytes_of(mask) for number in offer.lots} if mask else {}

    def set_since(self, chunks: int, since: int) -> None:
        """The oldest work in the chunks of a mask is of the round `since`."""
        self.since = [since if chunks >> chunk & 1 else old for chunk, old in enumerate(self.since)]

    def unsave(self, chunks: int) -> None:
        """The vector on disk no longer holds the chunks of a mask."""
        self.saved_chunks = bytes_of(int.from_bytes(self.saved_chunks) & ~chunks)
        for lot in self.lots.values():
            lot.on_disk = bytes_of(int.from_bytes(lot.on_disk) & ~chunks)


def union(work: Work) -> int:
    """Mask of the chunks that have any of some work."""
    return reduce(or_, work.values(), 0)
