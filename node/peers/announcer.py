"""This node's announcements: when they are made, what is in them, and the versions they carry."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import structlog
import trio

from gossamer.node.network.transport import Transport
from gossamer.node.peers.statements.gossip import Gossip
from gossamer.node.storage.incarnation import Incarnation
from gossamer.protocol.limits import ADDRESSES_MAX
from gossamer.protocol.policy.conduct.throttle import Rate, Throttle
from gossamer.protocol.policy.membership import ANNOUNCE_SECONDS
from gossamer.protocol.wire.statements import Announce

ANNOUNCE_RATE = Rate(per_second=10, burst=200)
"""Rate of this node's announcements, a part of `gossip_quota.OWN_RATE`. The rest is left for the
statements of a round. A round has one announcement or two, and one each time that shards are
claimed."""

QUIET_SECONDS = 6 * ANNOUNCE_SECONDS
"""Time between two announcements that say the same, of a peer that is connected to all living ones
that it knows: none of these lives by its announcements. Each repetition has to be verified by all
others, which took a tenth of the time of one of 64 waiting nodes. A peer that is not known here,
and that knows this one by others, announces itself within `FAR_SECONDS`, and is answered then."""

OWN_SECONDS = 60.0
"""Interval between two answers, each with a warning, to a higher incarnation of this node. Two
nodes of one identity would otherwise answer each other without end."""

log = structlog.get_logger("swarm")


class Announcer:
    """Makes the announcements of one life of this node."""

    def __init__(self, transport: Transport, gossip: Gossip, incarnation: Incarnation) -> None:
        self._transport = transport
        self._gossip = gossip
        self.incarnation = incarnation
        self._standing: Callable[[], Announce] | None = None
        self._sequence = 0
        self._rate = Throttle(ANNOUNCE_RATE)
        self.has_news = False
        """Whether an announcement waits for the next `announce_news`, or for `ANNOUNCE_RATE`."""
        self._newest: Announce | None = None
        """The newest announcement, without its number in this life."""
        self._newest_seconds = float("-inf")
        """Time at which it was made."""
        self._has_new_connection = False
        """Whether connections have begun or ended since the newest announcement was made."""
        self._own_seconds = float("-inf")
        """Time at which a higher incarnation of this node was last answered."""

    def start(self, standing: Callable[[], Announce]) -> None:
        """Sets the source of what this node says of itself, to which the announcer adds the numbers
        of its life, its addresses and its reach. Call once, before the first announcement."""
        self._standing = standing

    def new_sequence(self) -> int:
        """Returns a sequence number above all numbers that this life has used."""
        self._sequence += 1
        return self._sequence

    def announce(self) -> None:
        """Announces this node's standing now, or in `announce_news` when `ANNOUNCE_RATE` allows
        it."""
        self.announce_soon()
        self.announce_news()

    def announce_soon(self) -> None:
        """Announces this node's standing at the next `announce_news`: several pieces of news of one
        moment, such as a head and the claims after it, are one announcement."""
        self.has_news = True

    def announce_news(self) -> None:
        """Makes the announcement that waits, if there is one and `ANNOUNCE_RATE` allows it. Call
        often."""
        if not self.has_news or not self._rate.try_take(trio.current_time()):
            return
        self.has_news = False
        self._gossip.say(self._present())

    def note_connections(self) -> None:
        """A connection has begun or ended. The other end may have seen an earlier one end, of which
        nothing is known here. It counts this node as living when it says something new."""
        self._has_new_connection = True

    def renew(self, *, is_apart: bool) -> None:
        """Puts this node's standing where others take it when they compare statements. That is
        slower than an announcement, and costs a fraction of it. Nothing is done where all others
        have it already, see `QUIET_SECONDS`.

        A peer without a connection to this node, or one that has lost it, lives by what is said
        here. It compares often, and what it compares with has to be there by then. So this node
        publishes its standing to all others in that case.

        Args:
            is_apart: whether a living peer is not connected to this node.
        """
        if is_apart or self._has_new_connection:
            self._gossip.repeat(self._present())
            return
        is_due = trio.current_time() >= self._newest_seconds + QUIET_SECONDS
        if is_due or self._standing_now() != self._newest:
            self._gossip.keep(self._present())

    def _present(self) -> Announce:
        self._newest, self._newest_seconds = self._standing_now(), trio.current_time()
        self._has_new_connection = False
        return msgspec.structs.replace(self._newest, sequence=self.new_sequence())

    def _standing_now(self) -> Announce:
        """Returns an announcement that has no number yet."""
        assert self._standing is not None
        return msgspec.structs.replace(
            self._standing(),
            incarnation=self.incarnation.number,
            addresses=tuple(self._transport.addresses()[:ADDRESSES_MAX]),
            reach=self._transport.reach().reach,
        )

    def heard_own(self, announce: Announce) -> None:
        """Raises the incarnation above that of an announcement which another life of this node has
        signed. That life was forgotten here, or it goes on."""
        if not self.incarnation.raise_above(announce.incarnation):
            return
        now = trio.current_time()
        if now >= self._own_seconds + OWN_SECONDS:
            self._own_seconds = now
            log.warning(
                "others know this node by a higher number: its state directory was put back, or "
                "another node has the same identity. If one has, give it a state directory of its "
                "own"
            )
            self.announce()
