"""Connections that begin and end, and signs of life of the peers behind them.

A peer that has lost its connection counts this node as living only when this node says something
new. So peers that come back are greeted with an announcement.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

import structlog
import trio

from gossamer.node.base.awake_clock import AwakeClock
from gossamer.node.base.ticks import tick_after
from gossamer.node.network.transport import Transport
from gossamer.node.peers.announcer import Announcer
from gossamer.node.peers.statements.listeners import SwarmListener
from gossamer.protocol.ids import PeerId, short
from gossamer.protocol.policy.conduct.ring_conduct import RingConduct
from gossamer.protocol.policy.membership import Membership

WATCH_SECONDS = 0.1
"""Least interval of the looks for broken connections and news of this node. There is none while
nothing has happened."""

SIGNS_SECONDS = 2.0
"""Interval of the looks for signs of life: half of the time in which a living peer gives one."""

GREET_SECONDS = 0.5
"""Peers that were lost and are connected again are greeted with an announcement at most this often.
All peers receive it, and a peer that comes and goes could make this node repeat it without end."""

log = structlog.get_logger("swarm")


class ConnectionWatch:
    """Watches the connections of one node, and makes the announcements that wait.

    It has more than 12 attributes: the parts that it tells, and what it knew of the connections at
    its last look.
    """

    def __init__(
        self,
        transport: Transport,
        membership: Membership,
        conduct: RingConduct,
        announcer: Announcer,
        awake: AwakeClock,
        told: Callable[[], SwarmListener],
    ) -> None:
        """
        Args:
            awake: the silence of others is measured with it, so that no peer is held to be silent
                for the time in which this process did not run.
            told: returns the part of the node that is told of peers that come and go.
        """
        self._transport = transport
        self._membership = membership
        self._conduct = conduct
        self._announcer = announcer
        self._awake = awake
        self._told = told
        self._connected: set[PeerId] = set()
        self._lost: set[PeerId] = set()
        """Known peers whose connection has ended in this life of the node."""
        self._greeted_seconds = -math.inf
        self._greets = False
        """Whether a lost peer was connected again since the last greeting."""
        self._news = trio.Event()
        """Is set when there is something to look at before the next look for signs of life."""
        self._signs_due = -math.inf
        """Local time of the next look for signs of life."""
        self._heard: dict[PeerId, float] = {}
        """Local time of the newest sign of life of each connected peer, at that look."""

    def changed(self) -> None:
        """A connection has begun or ended."""
        self._announcer.note_connections()
        self.wake()

    def wake(self) -> None:
        """There is something to look at, such as an announcement that waits."""
        self._news.set()

    async def run(self) -> None:
        """Watches until cancelled."""
        while True:
            self._news = trio.Event()
            connected = set(self._transport.peers())
            self._note_changes(connected)
            now = trio.current_time()
            if self._greets and now >= self._greeted_seconds + GREET_SECONDS:
                self._greeted_seconds, self._greets = now, False
                self._announcer.announce()
                self.wake()
            if now >= self._signs_due:
                self._signs_due = tick_after(SIGNS_SECONDS)
                self._note_signs_of_life(connected)
            self._announcer.announce_news()
            if not (self._greets or self._announcer.has_news):
                with trio.move_on_at(self._signs_due) as signs:
                    await self._news.wait()
                if signs.cancelled_caught:
                    continue
            await trio.sleep(WATCH_SECONDS)

    def _note_changes(self, connected: set[PeerId]) -> None:
        for peer in sorted(self._connected - connected):
            log.info("disconnected", peer=short(peer))
            self._membership.disconnected(peer)
            self._conduct.disconnected(peer)
            self._told().disconnected(peer)
            self._lost = {*filter(self._membership.is_known, self._lost), peer}
        came, self._connected = connected - self._connected, connected
        for peer in sorted(came):
            log.info("connected", peer=short(peer))
        if came:
            self._told().members_changed()
        # Others that come are sent the newest announcement by the transport.
        self._greets = self._greets or bool(came & self._lost)
        self._lost -= came

    def _note_signs_of_life(self, connected: Collection[PeerId]) -> None:
        awake_seconds = self._awake.awake_seconds()
        self._membership.signs_come_every(self._transport.signs_seconds())
        before, self._heard = self._heard, {}
        for peer in sorted(connected):
            heard_seconds = self._transport.heard_seconds(peer)
            if heard_seconds is None:
                continue
            self._heard[peer] = heard_seconds
            if heard_seconds > before.get(peer, -math.inf):
                self._membership.heard(awake_seconds, peer)
