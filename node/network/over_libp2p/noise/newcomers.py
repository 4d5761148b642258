"""Connections that others open, from the accept to the proof of a key, and who is refused then.

`node/network/doorstep.py` has the rules for handshakes, `protocol/policy/conduct/network_bans.py`
those for networks.
"""

from __future__ import annotations

import logging
from collections import OrderedDict

import trio
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID

from gossamer.node.network.dial_rules import address_of, destinations
from gossamer.node.network.doorstep import Arrival, Doorstep, TurnedAwayError
from gossamer.node.network.places import network_of
from gossamer.protocol.ids import PeerId
from gossamer.protocol.policy.conduct.network_bans import NetworkBans

logger = logging.getLogger(__name__)

# A handshake is four round trips; a newcomer that needs longer can dial again.
HANDSHAKE_SECONDS_MAX = 10.0
# Bans of peers that are kept; beyond that those that have ended go, or else the next one to end.
BANS_KEPT = 1024
# Peers whose network is remembered after their connection is gone: an offence may be found later.
NETWORKS_KEPT = 1024
# One network is told of this often.
SAY_SECONDS = 60.0
SAID_MAX = 256


class ArrivingConnection(RawConnection):
    """A connection that another peer has opened."""

    is_proven = False
    """Whether the handshake of noise is over, so that its peer owns its key."""
    is_refused = False
    """Whether its peer, once known, was refused because of a ban."""


class Newcomers:
    """The handshakes under way."""

    def __init__(self) -> None:
        self.num_unfinished = 0
        """Handshakes that were begun here and not finished."""
        self.num_turned_away = 0
        """Connections that ended before a handshake began."""
        self._doorstep = Doorstep()
        self._scopes: dict[Arrival, trio.CancelScope] = {}
        self._said: dict[str, float] = {}

    def may_come(self, host: str) -> bool:
        """Returns whether a newcomer from an IP address may begin. This is asked before anything is
        done for it."""
        if self._doorstep.may_come(trio.current_time(), host):
            return True
        self._turned_away(host)
        return False

    def begin(self, host: str) -> tuple[Arrival, trio.CancelScope] | None:
        """Begins a handshake, to be run in the scope; ends another one for it if need be. None: the
        newcomer is turned away."""
        now = trio.current_time()
        try:
            arrival, ended = self._doorstep.arrive(now, host)
        except TurnedAwayError:
            self._turned_away(host)
            return None
        if ended is not None:
            self._scopes[ended].cancel()
        self._scopes[arrival] = trio.CancelScope(deadline=now + HANDSHAKE_SECONDS_MAX)
        return arrival, self._scopes[arrival]

    def end(self, arrival: Arrival, *, is_proven: bool) -> None:
        """A handshake is over; `is_proven`: by a key that is welcome here."""
        del self._scopes[arrival]
        self._doorstep.end(arrival, is_proven=is_proven)
        self.num_unfinished += not is_proven

    def know(self, network: str) -> None:
        """A peer with standing has come from a network, or answered there."""
        self._doorstep.know(network)

    def _turned_away(self, host: str) -> None:
        self.num_turned_away += 1
        network, now = network_of(host), trio.current_time()
        self._doorstep.turned_away(now, host)
        if now < self._said.get(network, 0.0):
            return
        if len(self._said) >= SAID_MAX:
            self._said = {one: until for one, until in self._said.items() if until > now}
        if len(self._said) < SAID_MAX:
            self._said[network] = now + SAY_SECONDS
            logger.warning(
                "connections from %s are turned away: too many of its handshakes, or of all, were "
                "not finished. New peers of this network come in more slowly",
                network,
            )


class Refusals:
    """The peers and the networks that are refused for a while."""

    def __init__(self) -> None:
        self._banned: dict[ID, float] = {}  # until when, by trio's clock
        self._networks = NetworkBans()
        self._network_of: OrderedDict[ID, str] = OrderedDict()

    def came_from(self, peer_id: ID, host: str) -> None:
        """Notes the address of a peer that is connected directly."""
        network = _bannable(host)
        if network is None:
            return
        self._network_of[peer_id] = network
        self._network_of.move_to_end(peer_id)
        if len(self._network_of) > NETWORKS_KEPT:
            self._network_of.popitem(last=False)

    def ban(self, peer_id: ID, seconds: float, *, is_offender: bool) -> None:
        """Refuses a peer from now on; a ban that ends later stays as it is.

        Args:
            is_offender: the peer is banned for what it did itself, which counts for its network.
        """
        now = trio.current_time()
        if len(self._banned) >= BANS_KEPT:
            self._banned = {peer: until for peer, until in self._banned.items() if until > now}
        if len(self._banned) >= BANS_KEPT and peer_id not in self._banned:
            del self._banned[min(self._banned, key=self._banned.__getitem__)]
        self._banned[peer_id] = max(now + seconds, self._banned.get(peer_id, now))
        network = self._network_of.get(peer_id)
        if not is_offender or network is None:
            return
        length = self._networks.key_banned(now, network, PeerId(peer_id.to_base58()), seconds)
        if length is not None:
            logger.warning(
                "several peers from %s were banned: for %d s no stranger comes in from there",
                network,
                length,
            )

    def is_banned(self, peer_id: ID) -> bool:
        """Returns whether a ban of a peer holds now."""
        until = self._banned.get(peer_id)
        if until is not None and until <= trio.current_time():
            del self._banned[peer_id]
            return False
        return until is not None

    def is_network_banned(self, host: str) -> bool:
        """Returns whether a ban of an address's network holds now."""
        network = _bannable(host)
        return network is not None and self._networks.is_banned(trio.current_time(), network)


def _bannable(host: str) -> str | None:
    """The network of an address; None for one that is not global. A private address may be that of
    a proxy, of a container engine's router, or of a machine in this home."""
    address = address_of(host)
    if address is None or not destinations(address)[-1].is_global:
        return None
    return network_of(host)
