"""The peers with which this node goes into a ring, by what they did in earlier ones."""

from __future__ import annotations

from gossamer.protocol.ids import PeerId
from gossamer.protocol.policy.auditing.poor_work import PoorWork
from gossamer.protocol.policy.conduct.ring_conduct import RingConduct


class RingPartners:
    """What is held against the other peers in the present round."""

    def __init__(self, me: PeerId) -> None:
        self.conduct = RingConduct(me)
        self.poor_work = PoorWork()
        self._next_round = 1
        self._accusers: set[PeerId] = set()
        """Peers that put this node out of a ring on the present head."""

    def begin_round(self, number: int) -> None:
        """There is a new head, and with it new rings: forgets the accusations of this node.

        Where rounds were taken back, the numbers go on from an earlier one. A peer that sat out
        would otherwise do so until the chain is as long as before.
        """
        self._accusers.clear()
        if (num_rounds := self._next_round - number) > 0:
            self.conduct.rounds_back(num_rounds)
            self.poor_work.rounds_back(num_rounds)
        self._next_round = number

    def accused_by(self, peer: PeerId) -> None:
        """Notes that a member put this node out of their ring.

        The line between the two is broken, or the member lies. In either case no ring on this head
        can have both of them in it, so the next attempt does not wait for that peer. A peer that
        accuses all others is alone in the end. It costs the others an attempt and not the round.
        """
        self._accusers.add(peer)

    def is_accuser(self, peer: PeerId) -> bool:
        """Returns whether a peer put this node out of a ring on the present head."""
        return peer in self._accusers

    def found_poor(self, member: PeerId, round_number: int) -> bool:
        """This node and another auditor found the work of a round poor. Returns whether its member
        sits out now."""
        return self.poor_work.confirmed(member, round_number, self._next_round)

    def sits_out(self, peer: PeerId) -> bool:
        """Returns whether a peer is in no ring of this round that this node organises, because of
        its conduct or its work."""
        return self.is_of_bad_conduct(peer) or self.poor_work.sits_out(self._next_round, peer)

    def is_of_bad_conduct(self, peer: PeerId) -> bool:
        """Returns whether a peer sits out because of its conduct."""
        return self.conduct.sits_out(self._next_round, peer)

    def is_avoided(self, peer: PeerId) -> bool:
        """Returns whether a peer is to be no neighbour of this node in the rings of this round."""
        return self.conduct.is_avoided(self._next_round, peer)
