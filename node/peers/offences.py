"""Counts and reports the offences of peers that break the protocol, and bans such peers after a
while."""

from __future__ import annotations

from collections.abc import Iterable

import structlog
import trio

from gossamer.node.network.transport import Transport
from gossamer.node.telemetry.metrics import Metrics
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import PeerId, short
from gossamer.protocol.policy.conduct.bans import Bans
from gossamer.protocol.policy.members.roll import Roll

SAY_SECONDS = 60.0
"""The same of the same peer is a warning this often; in between it is only counted. Else a log
would be one more thing that a rogue could fill."""

SAID_MAX = 1024

log = structlog.get_logger("peers")


class Offences:
    """One node's; everything that finds a peer at fault tells `note`."""

    def __init__(self, transport: Transport, metrics: Metrics) -> None:
        self._transport = transport
        self._metrics = metrics
        self._bans = Bans()
        self._said: dict[tuple[PeerId, str], float] = {}
        self._shared: dict[PeerId, float] = {}
        """Ends of the bans that newcomers share with others, see `share`. Only members of the roll
        are in it, so they are at most `limits.MEMBERS_MAX`."""
        self.roll: Roll | None = None
        """Bans hold for all whom a peer has let in; None where nobody lets in anybody."""
        transport.on_offence(self.note)

    def note(self, peer: PeerId, error: RemoteProtocolError) -> None:
        """A peer broke the protocol."""
        now = trio.current_time()
        if peer == self._transport.peer_id or self._bans.is_banned(now, peer):
            return
        self._metrics.offences.add(error.reason)
        self._say(now, peer, error)
        ban = self._bans.offence(now, peer, error.reason)
        if ban is None:
            return
        self._transport.ban(peer, ban.seconds)
        below = self.roll.below(peer) if self.roll is not None else frozenset[PeerId]()
        for each in sorted(below - {self._transport.peer_id}):
            self._transport.ban(each, ban.seconds, is_offender=False)
        self._metrics.bans.add(error.reason)
        log.warning(
            "a peer is banned for a while",
            peer=peer,
            seconds=ban.seconds,
            ban=ban.number,
            with_those_it_let_in=len(below),
            last_offence=error.reason,
            error=str(error),
        )

    def is_banned(self, peer: PeerId) -> bool:
        """Returns whether a peer is banned now, or somebody through whom it came in."""
        return self._seconds_left(peer) > 0

    def share(self, newcomer: PeerId, others: Iterable[PeerId]) -> None:
        """A newcomer has come in by an invitation of others: while one of them is banned, so is
        the newcomer."""
        now = trio.current_time()
        seconds = max(map(self._seconds_left, others), default=0.0)
        if seconds > 0:
            self._shared = {peer: until for peer, until in self._shared.items() if until > now}
            self._shared[newcomer] = now + seconds
            self._transport.ban(newcomer, seconds, is_offender=False)
            log.info("a newcomer shares the ban of its invitation", peer=newcomer, seconds=seconds)

    def _seconds_left(self, peer: PeerId) -> float:
        now = trio.current_time()
        above = self.roll.sponsors(peer) if self.roll is not None else ()
        return max(
            max(self._bans.seconds_left(now, each), self._shared.get(each, 0.0) - now)
            for each in (peer, *above)
        )

    def num_banned(self) -> int:
        return self._bans.num_banned(trio.current_time())

    def _say(self, now: float, peer: PeerId, error: RemoteProtocolError) -> None:
        key = (peer, error.reason)
        if now < self._said.get(key, 0.0):
            log.debug("a peer broke the protocol", peer=short(peer), error=str(error))
            return
        if len(self._said) >= SAID_MAX:
            self._said = {one: until for one, until in self._said.items() if until > now}
        if len(self._said) < SAID_MAX:
            self._said[key] = now + SAY_SECONDS
            log.warning("a peer broke the protocol", peer=short(peer), error=str(error))
