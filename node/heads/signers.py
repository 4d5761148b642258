"""The peers that signed the rounds of this node's chain.

Identities cost nothing, and a header costs its author nothing either. Peers that signed rounds
which this node has committed itself have worked with it. Their word is worth a pause, and the word
of a stranger is not.
"""

from __future__ import annotations

from collections import OrderedDict

from gossamer.node.storage.chain_store import ChainStore
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import Digest, PeerId

STANDING_ROUNDS = 64
"""A peer that signed one of so many newest rounds has standing. In rounds of a minute that is an
hour: the time for which somebody closes a laptop."""

RECORDS_KEPT = 4 * STANDING_ROUNDS
"""Records whose signers are remembered, so that the disk is not asked again at every look."""


class Signers:
    """The signers of committed rounds, as this node's chain has them."""

    def __init__(self, chain: ChainStore) -> None:
        self._chain = chain
        self._signers: OrderedDict[Digest, frozenset[PeerId]] = OrderedDict()
        self._standing: tuple[Digest, frozenset[PeerId]] | None = None

    def of(self, head: Digest) -> frozenset[PeerId]:
        """The peers whose votes committed a known head; empty where the record is damaged."""
        if head not in self._signers:
            try:
                votes = self._chain.commit(head).votes
            except (KeyError, OSError, RemoteProtocolError):
                votes = ()
            self._signers[head] = frozenset(PeerId(vote.author) for vote in votes)
            if len(self._signers) > RECORDS_KEPT:
                self._signers.popitem(last=False)
        return self._signers[head]

    def with_standing(self, head: Digest) -> frozenset[PeerId]:
        """The signers of the newest `STANDING_ROUNDS` rounds up to a known head."""
        if self._standing is None or self._standing[0] != head:
            rounds = self._chain.ancestors(head, STANDING_ROUNDS - 1)
            signed = [self.of(each) for each in rounds if each != self._chain.genesis]
            self._standing = (head, frozenset().union(*signed))
        return self._standing[1]
