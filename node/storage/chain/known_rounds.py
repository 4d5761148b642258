"""The committed rounds that this node's disk has, as the choice of a head sees them.

A record has as many votes as its author needed, and a member may prove a round by its own vote, if
it calls all others removed. So the votes that this node hears count as well, whoever brought the
record: otherwise nodes that were shown different records would choose different heads.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from gossamer.node.storage.chain.chain_store import ChainStore
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.policy.auditing.audits import MEMORY_ROUNDS
from gossamer.protocol.policy.heads.head_choice import is_most_of
from gossamer.protocol.standing import STANDING_ROUNDS, Standing, standing_of
from gossamer.protocol.state.chain import Commit, Header, credits_of, decode_header, signers_of
from gossamer.protocol.wire.envelopes import decode_statement
from gossamer.protocol.wire.statements import Ready, Roster, Signed, Vote

RECORDS_KEPT = 4 * STANDING_ROUNDS
"""Records whose members are remembered, so that the disk is not asked again at every look."""


class _Record(NamedTuple):
    """A commit record, as far as the choice of a head needs it."""

    ring_id: bytes
    num_members: int
    credits: Mapping[PeerId, int]
    signers: frozenset[PeerId]
    has_more_votes: bool = False
    """Whether the record on the disk got further votes since it was read."""
    tried_at: int = -1
    """Number of the rounds that were known when these votes could not be read. They are asked for
    again when there are others: a disk that fails takes seconds to say so."""


_NOTHING = _Record(b"", 0, {}, frozenset())


class KnownRounds:
    """The rounds of a chain store (`head_choice.Rounds`)."""

    def __init__(self, chain: ChainStore) -> None:
        self._chain = chain
        self._records: OrderedDict[Digest, _Record] = OrderedDict()
        self._num_joined, _ = chain.joined
        """Further votes of records, of which what is remembered knows."""
        self._more_signers: set[Digest] = set()
        """Rounds that have got further signers since `take_more_signers` was called."""
        self._unread: OrderedDict[Digest, None] = OrderedDict()
        """Rounds whose records could not be read when they were asked for, the newest
        `RECORDS_KEPT`: those who asked remember no more of their answers."""
        self._num_read = 0
        """How often such a record was read later."""
        self.vote_of: Callable[[PeerId, bytes], tuple[Signed, Vote] | None] = lambda *_: None
        """Returns the newest checked vote of a peer in a ring that this node has heard, with its
        envelope."""

    @property
    def num_reshaped(self) -> int:
        """See `Rounds`. What follows from a record that could not be read changes as well when it
        is read again."""
        return self._chain.num_reshaped + self._num_read

    def parent_of(self, head: Digest) -> Digest:
        """See `Rounds`. A round before a gap in the records counts as the run's beginning."""
        parent = self._chain.entry(head).parent
        return parent if parent in self._chain else self._chain.genesis

    def round_of(self, head: Digest) -> int:
        """See `Rounds`."""
        return self._chain.entry(head).round

    def tokens_total_of(self, head: Digest) -> int:
        """See `Rounds`."""
        return self._chain.entry(head).tokens_total

    def credits_of(self, head: Digest) -> Mapping[PeerId, int]:
        """See `Rounds`. A record that is damaged, or forgotten meanwhile, credits no peer."""
        return self._read(head).credits

    def signers_of(self, head: Digest) -> frozenset[PeerId]:
        """See `Rounds`. A record that is damaged, or forgotten meanwhile, has no signers."""
        return self._read(head).signers

    def ring_id_of(self, head: Digest) -> bytes:
        """Returns the id of the ring of a known round; empty if its record cannot be read now."""
        return self._read(head).ring_id

    def is_by_most_of(self, rings: Collection[bytes], head: Digest) -> bool:
        """Returns whether a round is one of these rings', signed by most members (`is_most_of`)."""
        record = self._read(head)
        return record.ring_id in rings and is_most_of(len(record.signers), record.num_members)

    def newest(self, head: Digest) -> Iterator[Digest]:
        """Yields the newest `STANDING_ROUNDS` rounds up to a known head."""
        for _ in range(STANDING_ROUNDS):
            if not self.round_of(head):
                return
            yield head
            head = self.parent_of(head)

    def is_newest(self, head: Digest, number: int, mine: Digest) -> bool:
        """Returns whether a head is that of a round of this number, one of the newest up to the
        known head `mine`."""
        return head in self.newest(mine) and self.round_of(head) == number

    def ring_of(self, number: int, head: Digest) -> bytes:
        """Returns the id of the ring of a round on the chain of a known head; empty if that round
        is not among the newest or cannot be read now."""
        rounds = (each for each in self.newest(head) if self.round_of(each) == number)
        return next((self.ring_id_of(each) for each in rounds), b"")

    def standing_of(self, members: Sequence[PeerId], head: Digest, needed: int) -> Standing:
        """Returns the standing of a ring's members after a known head, see `standing_of`."""
        credited = (self.credits_of(each) for each in self.newest(head))
        return standing_of(members, credited, needed)

    def take_more_signers(self) -> Collection[Digest]:
        """Returns the rounds that have got further signers since the last call."""
        self._note_joined()
        heads, self._more_signers = self._more_signers, set()
        return heads

    def heard_vote(self, signed: Signed, vote: Vote) -> None:
        """Takes a checked vote. A round that is known may have been proven without it: the vote
        counts at once, and goes into the record.

        Nothing is read for a round that is not remembered: any peer may say votes for old ones, and
        would displace the others. When it is asked for, `vote_of` has the vote.
        """
        head, author = Digest(vote.header_digest), PeerId(signed.author)
        record = self._records.get(head, _NOTHING)
        is_more = author in record.credits and author not in record.signers
        if is_more and vote.ring_id == record.ring_id:
            self._records[head] = record._replace(signers=record.signers | {author})
            self._more_signers.add(head)
            self._chain.further_votes.add(head, signed)

    def _note_joined(self) -> None:
        """Notes which records have got further votes."""
        number, joined = self._chain.joined
        num_new, self._num_joined = number - self._num_joined, number
        if num_new:
            changed = joined[-num_new:] if num_new <= len(joined) else [*self._records]
            if len(self._more_signers) < RECORDS_KEPT:  # else nobody asks
                self._more_signers.update(changed)
            for head in changed:
                if head in self._records:
                    record = self._records[head]
                    self._records[head] = record._replace(has_more_votes=True, tried_at=-1)

    def _read(self, head: Digest) -> _Record:
        """The record of a round, without values if it cannot be read now."""
        self._note_joined()
        found = self._records.get(head)
        num_known = len(self._chain)
        if found is None or (found.has_more_votes and found.tried_at != num_known):
            try:
                commit = self._chain.commit(head)
                header = decode_header(commit.header)
            except (KeyError, OSError, RemoteProtocolError):
                if found is not None:
                    self._records[head] = found._replace(tried_at=num_known)
                    return found
                self._unread[head] = None
                if len(self._unread) > RECORDS_KEPT:
                    self._unread.popitem(last=False)
                return _NOTHING
            found = self.remember(head, commit, header)
        return found

    def remember(self, head: Digest, commit: Commit, header: Header) -> _Record:
        """Keeps what is known of a round, so that the disk is not asked for it."""
        members, credits = len(header.members), credits_of(header)
        signers = signers_of(commit) | self._records.get(head, _NOTHING).signers
        votes = (self.vote_of(peer, header.ring_id) for peer in credits.keys() - signers)
        heard = [signed for signed, vote in filter(None, votes) if vote.header_digest == head]
        for signed in heard:
            self._chain.further_votes.add(head, signed)
        signers |= {PeerId(signed.author) for signed in heard}
        record = _Record(header.ring_id, members, credits, signers)
        self._records[head] = record
        if len(self._records) > RECORDS_KEPT:
            self._records.popitem(last=False)
        if head in self._unread:
            self._unread.pop(head, None)
            self._num_read += 1
        return record


class KnownCommitments:
    """The commitments that members of committed rounds have signed in their `Ready`
    (`policy.auditing.sum_audits`).

    They are read when they are asked for, and those of the newest `MEMORY_ROUNDS` remembered: no
    verdict is on an older round.
    """

    def __init__(self, chain: ChainStore) -> None:
        self._chain = chain
        self._known: OrderedDict[Digest, Mapping[PeerId, bytes]] = OrderedDict()

    def of(self, head: Digest) -> Mapping[PeerId, bytes]:
        """Returns the commitment of each member of a known round; none if its record cannot be read
        now."""
        if head not in self._known:
            try:
                found = _commitments_in(self._chain.commit(head).roster.payload)
            except (KeyError, OSError, RemoteProtocolError):
                return {}
            self._known[head] = found
            if len(self._known) > MEMORY_ROUNDS:
                self._known.popitem(last=False)
        return self._known[head]


def _commitments_in(payload: bytes) -> dict[PeerId, bytes]:
    """The commitments in a roster. The record was checked before it was kept."""
    roster = decode_statement(payload)
    assert isinstance(roster, Roster)
    said = {PeerId(each.author): decode_statement(each.payload) for each in roster.members}
    return {peer: ready.commitment for peer, ready in said.items() if isinstance(ready, Ready)}
