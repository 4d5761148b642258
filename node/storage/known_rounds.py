"""The committed rounds that this node's disk has, as the choice of a head sees them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from gossamer.node.storage.chain_store import ChainStore
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.policy.head_choice import is_most_of
from gossamer.protocol.standing import STANDING_ROUNDS, Standing, standing_of
from gossamer.protocol.state.chain import Commit, Header, credits_of, decode_header, signers_of

RECORDS_KEPT = 4 * STANDING_ROUNDS
"""Records whose members are remembered, so that the disk is not asked again at every look."""


class _Record(NamedTuple):
    """A commit record, as far as the choice of a head needs it."""

    ring_id: bytes
    num_members: int
    credits: Mapping[PeerId, int]
    signers: frozenset[PeerId]


_NOTHING = _Record(b"", 0, {}, frozenset())


class KnownRounds:
    """The rounds of a chain store (`head_choice.Rounds`)."""

    def __init__(self, chain: ChainStore) -> None:
        self._chain = chain
        self._records: OrderedDict[Digest, _Record] = OrderedDict()

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

    def _read(self, head: Digest) -> _Record:
        """The record of a round, without values if it cannot be read now."""
        found = self._records.get(head)
        if found is None:
            try:
                commit = self._chain.commit(head)
                header = decode_header(commit.header)
            except (KeyError, OSError, RemoteProtocolError):
                return _NOTHING
            found = self._keep(head, commit, header)
        return found

    def remember(self, head: Digest, commit: Commit, header: Header) -> None:
        """Keeps what is known of a round, so that the disk is not asked for it."""
        self._keep(head, commit, header)

    def _keep(self, head: Digest, commit: Commit, header: Header) -> _Record:
        members, credits = len(header.members), credits_of(header)
        record = _Record(header.ring_id, members, credits, signers_of(commit))
        self._records[head] = record
        if len(self._records) > RECORDS_KEPT:
            self._records.popitem(last=False)
        return record
