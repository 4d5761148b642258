"""How the known heads lie to the committed one.

The *branch* of a head is the part of its chain that the committed head's does not have.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from gossamer.node.storage.chain.known_rounds import KnownRounds
from gossamer.node.storage.state.committed import CommittedState
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import Digest, short
from gossamer.protocol.policy.membership import TRAILING_ROUNDS
from gossamer.protocol.state.chain import Header

log = structlog.get_logger("node")


class Branches:
    """Knows the branches of heads, and the rings on the committed head that this node followed."""

    def __init__(self, committed: CommittedState, rounds: KnownRounds) -> None:
        self._committed, self._rounds = committed, rounds
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

    def is_by_way_of(self, ring_id: Digest | None, head: Digest) -> bool:
        """Returns whether the branch of a head begins with the round that this ring commits."""
        return ring_id is not None and self._rounds.ring_id_of(self._beginning(head)) == ring_id

    def followed(self, ring_id: Digest) -> None:
        """Notes a ring on the committed head in which this node takes part."""
        self._rings.add(ring_id)

    def forget_rings(self) -> None:
        """The committed head is another one, on which this node has followed no ring yet."""
        self._rings.clear()

    def is_of_my_ring(self, head: Digest) -> bool:
        """Returns whether the branch of a head begins with a round of a ring that this node
        followed, signed by most of the ring's other members."""
        if not self._rings:
            return False
        return self._rounds.is_by_most_of(self._rings, self._beginning(head))
