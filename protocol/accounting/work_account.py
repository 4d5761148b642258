"""The account of one peer's own work: what it trained, in tokens, and where that went.

Every token that a peer trained has exactly one fate, and with every event

    trained = committed on time + committed late + dropped + lost + carried

Rules
-----
- The work of one local round is a *lot*: its tokens, and the head that it was trained on. It is
  *carried*, which means that it lies in `pending`, until a round takes it or it is given up.
- Where its work lies is no matter of its tokens: each lot says which chunks of `pending`, and of
  the vector on disk, hold its work, and each offer says which chunks had work of which lots. So in
  every chunk a header takes just what it was offered. Where this is not the vector behind the
  offer any more, because some of it was given up or lost, other work in the chunk is given up.
- With a `Ready` a peer *offers* all that it carries. The entry of this peer in a committed header
  is about the offer that it made on the header's parent; work that was trained since is no part of
  it. So a ring that commits unheard of takes no more than it was given, however late this becomes
  known.
- Two lives of a peer may offer as much on the same head. The peer's `Ready` in the roster of a
  header's ring says which of these offers the header took. A header that comes back takes the offer
  that it took before.
- A header takes tokens of all lots of its offer alike. They are *on time* if they were trained on
  the header's parent, else *late* (they were carried). Chunks of which it did not take this peer's
  part stay in `pending`, and the rest of the tokens stays carried.
- A header that turns out not to be in the chain gives back what it took. To move to another branch
  is: `branch_left`, then `abandoned` for each header that is left, newest first, then
  `committed_by` for each that comes, oldest first.
- A chunk whose oldest work missed more than `stale_rounds` rounds is dropped, and with it its share
  of the tokens. Work that was reclaimed counts from the round that it was offered in.
- Work that is reclaimed again and again can grow beyond what any peer takes from one member. The
  tokens above that bound are dropped, the oldest first. Their work stays in `pending`, and weighs
  as much less in its round.
- A round may *exchange* some of the chunks only (`fragments`). All tokens of an offer are its own
  nevertheless, and a token has the fate that the first round that takes it decides; its work in the
  other chunks stays in `pending` and goes with whatever round takes these. So work is in every
  chunk at most once in `pending` and the chain together, whichever rounds are missed or left; what
  of it was not on disk when the process died, or was stale, is gone without tokens of its own.
- Work that is carried in memory and was not written (`saved`) is lost with the process, and so are
  steps of a round under way, also where only the trainer died. A header may still turn up that took
  some of it in time: then it was not lost. The same holds for what was dropped.
- A `Ready` names data until the ledger counts it. Data of steps that were skipped have no tokens in
  any lot and are named with the next work: the ledger counts nothing behind a gap.
- Tokens that a header says it took from me and that I know nothing of were trained by an earlier
  life whose records are gone: they count as trained and committed. If this account has the life
  that offered them, they were counted when they were trained, and the offer was forgotten since.

`pending` is the caller's: the answers say which chunks of it change, as bit masks (bit c stands for
chunk c). The vector behind an offer is the caller's too, under the offer's number: `pending` as it
was when offered. To take a chunk is to subtract that vector's, to reclaim it is to add it again.
"""

from __future__ import annotations

from collections.abc import Sequence

from gossamer.protocol.accounting.account_state import AccountState
from gossamer.protocol.accounting.spans import merged, without
from gossamer.protocol.accounting.work_records import (
    ABANDONED,
    STALE,
    Offer,
    Offered,
    Reclaim,
    Restart,
    Settlement,
    Share,
    Taking,
    apportioned,
    bytes_of,
    mask_of,
)
from gossamer.protocol.wire.statements import Span

OFFERS_MAX = 64
"""Offers that are remembered: so many rounds back a branch may turn out to have taken one."""


class WorkAccount:
    """One peer's account.

    It has more than 15 public methods: each kind of event of the account is one.
    """

    def __init__(
        self, num_chunks: int, stale_rounds: int, state: AccountState | None = None
    ) -> None:
        """
        Args:
            num_chunks: of the run's chunk plan.
            stale_rounds: of the manifest.
            state: of an earlier life; then `restarted` has to be the first event.
        """
        self._all_chunks = (1 << num_chunks) - 1
        self._stale_rounds = stale_rounds
        self.state = AccountState() if state is None else state
        if len(self.state.since) != num_chunks:
            self.state.since = [0] * num_chunks

    # The account's sums

    @property
    def carried(self) -> int:
        return sum(lot.carried for lot in self.state.lots.values())

    @property
    def late(self) -> int:
        """Returns the carried tokens that a round can take late only: they were not trained on the
        present head. Before the first head there are none."""
        head = self.state.head
        return sum(lot.carried for lot in self.state.lots.values() if head and lot.head != head)

    @property
    def has_work(self) -> bool:
        """Returns whether a chunk has work in it, also work of no tokens."""
        return any(self.state.since)

    @property
    def dropped(self) -> int:
        return sum(self.state.dropped.values())

    # Training

    def stepped(self, tokens: int) -> None:
        """Counts an inner step of the local round that runs."""
        self.state.under_way += tokens

    def trained(self, head: bytes, round_number: int, tokens: int, spans: Sequence[Span]) -> None:
        """Notes that a local round on `head`, for the round `round_number`, ended with its work in
        `pending`.

        Tokens that `stepped` counted beyond `tokens` are lost: the trainer died over them.
        """
        state = self.state
        state.end_local_round(tokens)
        state.spans = merged([*state.spans, *spans])
        if tokens:
            state.add_lot(head, round_number, tokens)
            state.since = [since or round_number for since in state.since]
            state.has_grown = True

    def spoilt(self, tokens: int, reason: str) -> None:
        """Notes that a local round ended, and that its work was dropped before it came into
        `pending`."""
        self.state.end_local_round(tokens)
        self.state.count_dropped(reason, tokens)

    # Rounds

    def offer(
        self,
        head: bytes,
        round_number: int,
        spans: Sequence[Span] | None = None,
        life: int = 0,
        sequence: int = 0,
    ) -> Offer | None:
        """Offers all carried work to the round after `head`. None if nothing is carried.

        Args:
            spans: the data that the `Ready` named; None: all that is not in the ledger.
            life: the present life; 0: not known.
            sequence: of the `Ready`; 0: it is not signed yet.
        """
        state = self.state
        lots = {number: lot.carried for number, lot in state.lots.items() if lot.carried}
        if not lots:
            return None
        offer = Offer(
            number=state.new_number(),
            head=head,
            round=round_number,
            lots=lots,
            spans=tuple(state.spans if spans is None else spans),
            life=life,
            sequence=sequence,
            work={number: lot.there for number, lot in state.lots.items() if lot.there},
        )
        state.offers.append(offer)
        del state.offers[:-OFFERS_MAX]
        state.first_life = state.first_life or life
        return offer

    def withdraw(self, number: int) -> None:
        """Removes an offer of which no header can have taken anything: no ring with it was
        followed."""
        self.state.offers = [offer for offer in self.state.offers if offer.number != number]

    def committed_by(
        self,
        head: bytes,
        parent: bytes,
        tokens: int,
        chunks: int | None,
        *,
        counts_spans: bool,
        exchanged: int | None = None,
        offered: Offered | None = None,
    ) -> Settlement:
        """A header that is now the newest in my chain took `tokens` of mine (0: nothing).

        Args:
            head: the header's digest.
            parent: the head that it follows.
            chunks: mask of the chunks that contain my part; None if that cannot be known. Then
                all that is carried in its chunks is given up, so that nothing of it can count
                twice.
            counts_spans: whether the ledger counted my spans.
            exchanged: mask of the header's chunks; None: all.
            offered: the offer by my `Ready` in the roster of the header's ring; None: not known. It
                matters if there are several.
        """
        state = self.state
        state.head = head
        if tokens == 0:
            return Settlement(None, 0, 0, 0, 0)
        if exchanged is None:
            exchanged = self._all_chunks
        num_exchanged = exchanged.bit_count()
        offer = state.offer_taken_by(head, parent, tokens, chunks, num_exchanged, offered)
        if offer is None:
            state.take_forgotten(tokens, offered)
            return Settlement(None, 0, 0, 0, tokens)

        shares = self._shares(offer, tokens, parent)
        if chunks is None:
            zeroed, taken = state.give_up(exchanged, ABANDONED), 0
        else:
            taken, alone, mixed = state.parts_of(offer, chunks)
            # In the others some of the work behind the offer's vector is gone: it cannot be
            # subtracted.
            state.clear(alone)
            zeroed = alone | state.give_up(mixed, ABANDONED)
        unknown = tokens - sum(share.tokens for share in shares)
        offer.taking = Taking(head, shares, unknown, bytes_of(taken), counts_spans)
        if head not in offer.heads:
            offer.heads.append(head)
        on_time = offer.taking.on_time
        state.trained += unknown
        state.committed_on_time += on_time
        state.committed_late += tokens - on_time
        if counts_spans:
            state.spans = without(state.spans, offer.spans)
        state.take_work(offer, taken)
        state.lose_without_work()
        return Settlement(offer.number, taken, zeroed, on_time, tokens - on_time)

    def vector_missing(self, chunks: int) -> None:
        """The vector behind an offer is gone, which a header took in these chunks: all that is
        carried in them is given up, so that nothing of it can count twice. They have to be zero in
        `pending`. Comes right after `committed_by`."""
        self.state.give_up(chunks, ABANDONED)

    def _shares(self, offer: Offer, tokens: int, parent: bytes) -> tuple[Share, ...]:
        """Takes tokens of an offer from its lots for a header that follows `parent`."""
        amounts = apportioned(min(tokens, offer.tokens), list(offer.lots.values()))
        return tuple(
            self.state.take(offer, number, amount, parent)
            for number, amount in zip(offer.lots, amounts, strict=True)
        )

    def branch_left(self, left_round: int, next_round: int) -> None:
        """Another branch is followed from now on; comes before `abandoned`.

        Work does not become younger by a branch with fewer rounds, on which their numbers go on.

        Args:
            left_round: the newest round of the branch that is left.
            next_round: the one to come on the other one.
        """
        num_back = left_round + 1 - next_round
        if num_back > 0:
            self.state.count_rounds_back(num_back)

    def abandoned(
        self,
        head: bytes,
        parent: bytes,
        tokens: int,
        next_round: int,
        *,
        has_vector: bool = True,
        reason: str = "",
    ) -> Reclaim:
        """A header is not in my chain after all: what it took of mine is carried again.

        Args:
            parent: what it followed.
            tokens: what it said that it took of mine.
            next_round: the one to come in the chain that is followed now: what is stale by then is
                dropped instead.
            has_vector: False if the vector behind its offer is gone: then the work is lost.
            reason: why the header is not in the chain, where that is the reason of what is dropped.
        """
        state = self.state
        state.head = parent
        if tokens == 0:
            return Reclaim(0, 0, 0, 0)
        offer = self.offer_behind(head)
        if offer is None or offer.taking is None:
            # An earlier life's, or longer ago than offers are remembered.
            late = state.lose_forgotten(tokens)
            return Reclaim(0, tokens - late, late, 0)

        taking, offer.taking = offer.taking, None
        mask = int.from_bytes(taking.chunks)
        is_stale = next_round - offer.round > self._stale_rounds
        is_back = has_vector and mask > 0 and not is_stale
        for share in taking.shares:
            state.give_back(
                share,
                share.carried if is_back else 0,
                share.dropped + (share.carried if is_stale else 0),
                reason or (STALE if is_stale else ABANDONED),
            )
        state.committed_on_time -= taking.on_time
        state.committed_late -= tokens - taking.on_time
        state.lost += taking.unknown
        if not is_back:
            state.forget(offer.work_in(mask))
            return Reclaim(0, taking.on_time, tokens - taking.on_time, 0)
        if taking.counts_spans:
            state.spans = merged([*state.spans, *offer.spans])
        state.put_back(offer, mask)
        back = sum(share.carried for share in taking.shares)
        return Reclaim(mask, taking.on_time, tokens - taking.on_time, back)

    def offer_behind(self, head: bytes) -> Offer | None:
        """The offer of which a header took work; None: it is an earlier life's, or longer ago than
        offers are remembered."""
        return next((o for o in self.state.offers if o.taking and o.taking.head == head), None)

    # Giving up

    def drop(self, reason: str, spans: Sequence[Span] = ()) -> int:
        """All that is carried will not be taken; `pending` has to be zero. Returns its tokens.

        Args:
            spans: the data of work that rounds took, and that is not in the ledger yet.
        """
        tokens = self.carried
        self.state.give_up(self._all_chunks, reason)
        self.state.spans = list(spans)
        return tokens

    def drop_stale(self, next_round: int) -> tuple[int, int]:
        """Gives up what is too old for the next round.

        Returns the mask of the chunks that have to be zero in `pending`, and the dropped tokens.
        """
        carried = self.carried
        oldest = next_round - self._stale_rounds
        stale = self.state.give_up(mask_of(0 < since < oldest for since in self.state.since), STALE)
        return stale, carried - self.carried

    # The process

    def saved(self) -> None:
        """`pending` is on disk as it is now, and this account with it."""
        state = self.state
        for lot in state.lots.values():
            lot.on_disk = lot.there
        state.saved_chunks = bytes_of(self._all_chunks)
        state.has_grown = False

    def restarted(self, *, has_saved: bool = True) -> Restart:
        """The first event of a new life, with the state as it was last written.

        Args:
            has_saved: False if what was saved is gone or damaged: then all that was carried is
                lost.
        """
        state = self.state
        state.place_work()
        if not has_saved:
            state.unsave(self._all_chunks)
        state.end_local_round(0)
        offers = state.lose_unsaved()
        if not any(offer.head == state.head and offer.taking is None for offer in state.offers):
            # The earlier life may have offered it and not come to write that down.
            last = self.offer(state.head, max(state.since))
            if last is not None:
                offers[last.number] = self._all_chunks
        return Restart(int.from_bytes(state.saved_chunks), offers)
