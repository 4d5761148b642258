"""How the known heads lie to the committed one.

The *branch* of a head is the part of its chain that the committed head's does not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import structlog

from gossamer.node.storage.chain.known_rounds import KnownRounds
from gossamer.node.storage.state.committed import CommittedState
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import Digest, PeerId, short
from gossamer.protocol.policy.membership import TRAILING_ROUNDS
from gossamer.protocol.state.chain import Header

log = structlog.get_logger("node")


class RingAtWork(NamedTuple):
    """A ring that this node is about to commit."""

    ring_id: Digest
    proposed_head: Digest | None
    """The head that this node voted for last in it; None: it has not voted."""


class Branches:
    """Knows the branches of heads, and the rings on the committed head that this node followed."""

    def __init__(self, committed: CommittedState, rounds: KnownRounds, me: PeerId) -> None:
        self._committed, self._rounds, self._me = committed, rounds, me
        self._rings: set[bytes] = set()

    def recent(self) -> Sequence[Digest]:
        """The committed head and its ancestors, newest first, as far as `Swarm.awaited` looks."""
        return self._committed.chain.ancestors(self._committed.head, TRAILING_ROUNDS)

    def is_reached(self, head: Digest) -> bool:
        """Returns whether a known head is the committed one or an ancestor of it."""
        return not self._committed.chain.only_in(head, self._committed.head)

    def is_on_mine(self, head: Digest) -> bool:
        """Returns whether a known head descends from the committed head."""
        return not self._committed.chain.only_in(self._committed.head, head)

    def _beginning(self, head: Digest) -> Digest:
        """The first round on the way to a head that is not an ancestor of the committed head."""
        return (self._committed.chain.only_in(head, self._committed.head) or [head])[-1]

    def first_of(self, head: Digest) -> Header | None:
        """The header with which the branch of a head begins; None if the head has no branch, as
        where all rounds after it were taken back, or if the header cannot be read now."""
        if self.is_reached(head):
            return None
        try:
            return self._committed.chain.header(self._beginning(head))
        except (KeyError, OSError, RemoteProtocolError) as error:
            log.warning("a header cannot be read", head=short(head), error=str(error))
            return None

    def is_by_way_of(self, ring: RingAtWork | None, head: Digest) -> bool:
        """Returns whether the branch of a head begins with the round that this ring commits, and
        this node may still commit that round in the ring itself.

        A node that signed that round and stands by another header now has found better averages
        since. It never goes back to the round's own header.
        """
        first = self._beginning(head)
        if ring is None or self._rounds.ring_id_of(first) != ring.ring_id:
            return False
        return ring.proposed_head == first or self._me not in self._rounds.signers_of(first)

    def followed(self, ring_id: Digest) -> None:
        """Notes a ring on the committed head in which this node takes part."""
        self._rings.add(ring_id)

    def forget_rings(self) -> None:
        """The committed head is another one, on which this node has followed no ring yet."""
        self._rings.clear()

    def is_from_my_ring(self, head: Digest) -> bool:
        """Returns whether the branch of a head begins with a round of a ring that this node
        followed."""
        return bool(self._rings) and self._rounds.ring_id_of(self._beginning(head)) in self._rings

    def is_of_my_ring(self, head: Digest) -> bool:
        """Returns whether the branch of a head begins with a round of a ring that this node
        followed, signed by most of the ring's other members."""
        if not self._rings:
            return False
        return self._rounds.is_by_most_of(self._rings, self._beginning(head))
