"""How many handshakes strangers may begin and not finish.

A handshake costs this node a key exchange and a signature, some 0.9 ms, and a stranger next to
nothing: it can send a key that it made up, and leave. Nobody knows who it is before the end. So a
handshake that is begun takes a token from three buckets: one of its host, one of its network, and
one of all networks. A handshake that comes to its end gives the tokens back. So a laboratory that
starts at once is not slowed down, and unfinished handshakes are few, whoever begins them.

Rules
-----
- A newcomer that finds a bucket empty takes the place of an unfinished handshake that is older than
  `YIELD_SECONDS`: one of the same host or network if that bucket is empty, or one of the network
  that has the most. So silent connections keep nobody out. If there is none, it is turned away.
- Networks from which a member came lately do not depend on the bucket of all. So strangers of many
  networks do not keep members out.

This module does no I/O and has no clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from gossamer.node.network.dial_rules import address_of
from gossamer.node.network.places import network_of
from gossamer.protocol.policy.throttle import Rate, Throttle

YIELD_SECONDS = 1.0
"""Age at which an unfinished handshake gives way. A handshake is four round trips."""

HOST = Rate(0.2, 16.0)
"""Unfinished handshakes of one IP address: a machine whose line breaks again and again begins one
every five seconds."""

NETWORK = Rate(1.0, 32.0)
"""Per IPv4 /24 or IPv6 /64."""

NEAR = Rate(4.0, 48.0)
"""Per host and per network where an address is private: a proxy or the router of a container
engine shows many strangers under one."""

TOTAL = Rate(8.0, 56.0)
"""Of all networks without members: at most 1 % of a core in the long run."""

UNDER_WAY_MAX = 64
"""Handshakes under way, those of members' networks among them."""

BUCKETS_MAX = 1024
"""Hosts and networks whose buckets are kept. A full bucket says nothing and goes. The bucket of all
leaves some 500 others that are not full."""

KNOWN_MAX = 1024
"""Networks of members that are remembered: as many as a run may have members."""


class TurnedAwayError(Exception):
    """A newcomer's handshake is not begun; the text says why."""


@dataclass(frozen=True, eq=False)
class Arrival:
    """One handshake that a stranger has begun."""

    host: str
    network: str
    since_seconds: float
    buckets: tuple[Throttle, ...]
    """Buckets that hold one token less until its end."""


class Doorstep:
    """The handshakes under way. Times are the local clock in seconds."""

    def __init__(self) -> None:
        self._total = Throttle(TOTAL)
        self._buckets: dict[str, Throttle] = {}
        self._known: dict[str, None] = {}
        self._under_way: dict[Arrival, None] = {}
        """In the order in which they began."""

    def __len__(self) -> int:
        return len(self._under_way)

    @property
    def under_way(self) -> Iterable[Arrival]:
        """The handshakes under way, the oldest first."""
        return tuple(self._under_way)

    def know(self, network: str) -> None:
        """A member has come from a network, or answered there."""
        self._known.pop(network, None)
        self._known[network] = None
        if len(self._known) > KNOWN_MAX:
            del self._known[next(iter(self._known))]

    def may_come(self, now: float, host: str) -> bool:
        """Returns whether `arrive` would let a newcomer begin."""
        network = network_of(host)
        buckets = self._buckets_of(now, host, network)
        return self._has_place(now, buckets) or bool(self._giving_way(now, host, network, buckets))

    def arrive(self, now: float, host: str) -> tuple[Arrival, Arrival | None]:
        """Begins a handshake. Returns it, and another one that must end for it, if there is one.

        Args:
            host: the newcomer's IP address, or another text for what carries it.

        Raises:
            TurnedAwayError: its host, its network or all together have begun too many.
        """
        network = network_of(host)
        buckets = self._buckets_of(now, host, network)
        ended = None
        if not self._has_place(now, buckets):
            ended = self._giving_way(now, host, network, buckets)
            if ended is None:
                raise TurnedAwayError(f"too many handshakes from {network} were not finished")
            del self._under_way[ended]
            for each in ended.buckets:
                each.give_back()  # the newcomer takes the place, and with it the token
        for each in buckets:
            each.try_take(now)
        arrival = Arrival(host, network, now, buckets)
        self._under_way[arrival] = None
        return arrival, ended

    def finished(self, arrival: Arrival) -> None:
        """A newcomer has proven its key."""
        if self._leave(arrival):
            for each in arrival.buckets:
                each.give_back()

    def broke_off(self, arrival: Arrival) -> None:
        """A handshake has ended without a key that is welcome here; its tokens stay away."""
        self._leave(arrival)

    def _has_place(self, now: float, buckets: tuple[Throttle, ...]) -> bool:
        has_tokens = all(each.holds(now) for each in buckets)
        return has_tokens and len(self._under_way) < UNDER_WAY_MAX

    def _leave(self, arrival: Arrival) -> bool:
        if arrival not in self._under_way:
            return False
        del self._under_way[arrival]
        return True

    def _giving_way(
        self, now: float, host: str, network: str, buckets: tuple[Throttle, ...]
    ) -> Arrival | None:
        """The oldest handshake in whose place a newcomer may come."""
        old = [each for each in self._under_way if now >= each.since_seconds + YIELD_SECONDS]
        of_host, of_network, *_ = buckets
        if not of_host.holds(now):
            old = [each for each in old if each.host == host]
        elif not of_network.holds(now):
            old = [each for each in old if each.network == network]
        elif len(self._under_way) < UNDER_WAY_MAX:
            # The bucket of all is empty. Members' networks have no token of it.
            old = [each for each in old if self._total in each.buckets]
        if not old:
            return None
        per_network = Counter(each.network for each in old)
        most = max(per_network.values())
        return next(each for each in old if per_network[each.network] == most)

    def _buckets_of(self, now: float, host: str, network: str) -> tuple[Throttle, ...]:
        if len(self._buckets) >= BUCKETS_MAX:
            self._buckets = {key: b for key, b in self._buckets.items() if not b.is_full(now)}
        address = address_of(host)
        is_near = address is not None and not address.is_global
        of_host = self._buckets.setdefault(f"host {host}", Throttle(NEAR if is_near else HOST))
        of_network = self._buckets.setdefault(
            f"network {network}", Throttle(NEAR if is_near else NETWORK)
        )
        if network in self._known:
            return (of_host, of_network)
        return (of_host, of_network, self._total)
