"""How many handshakes strangers may begin and not finish.

A handshake costs this node a key exchange and a signature, some 0.9 ms, and a stranger next to
nothing: it can send a key that it made up, and leave. Nobody knows who it is before the end. So a
handshake that is begun takes a token from three buckets: one of its host, one of its network, and
one of all networks. A handshake that comes to its end gives the tokens back. So a laboratory that
starts at once is not slowed down, and unfinished handshakes are few in all.

Rules
-----
- A newcomer whose host or network has spent its tokens, or has `NETWORK_UNDER_WAY_MAX` handshakes
  under way, takes the place of one of the same host or network that is older than `YIELD_SECONDS`.
  So silent connections keep nobody out.
- A newcomer that finds the bucket of all empty, or `UNDER_WAY_MAX` handshakes under way, takes the
  place of the oldest one of the network that has the most, if its own network has fewer by two,
  and else of any that is older than `YIELD_SECONDS`.
- Otherwise the newcomer is turned away, which costs its host and its network a token each.
- Networks that have spent less than half of their tokens have a bucket of all for themselves. So
  those that begin again and again do not keep newcomers of others out.
- Networks from which a member came lately do not depend on a bucket of all.

This module does no I/O and has no clock.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass

from gossamer.node.network.dial_rules import address_of
from gossamer.node.network.places import network_of
from gossamer.protocol.policy.conduct.throttle import Rate, Throttle

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
"""Of all networks without members: two of these come to 1.5 % of a core in the long run."""

UNDER_WAY_MAX = 64
"""Handshakes under way, those of members' networks among them."""

NETWORK_UNDER_WAY_MAX = UNDER_WAY_MAX // 2
"""Handshakes under way of one network."""

BUCKETS_MAX = 1024
"""Hosts whose buckets are kept, and networks, as many. Beyond that the one goes from which nobody
has come for the longest: after some 80 s its bucket is full and says nothing. The many hosts of one
network take no network's bucket away, so it stays spent."""

KNOWN_MAX = 1024
"""Networks of members that are remembered: as many as a run may have members."""


class TurnedAwayError(Exception):
    """A newcomer's handshake is not begun."""


@dataclass(frozen=True, eq=False)
class Arrival:
    """One handshake that a stranger has begun."""

    host: str
    network: str
    since_seconds: float
    buckets: tuple[Throttle, ...]
    """Buckets that hold one token less until its end: of the host, of the network, and of all."""


class Doorstep:
    """The handshakes under way. Times are the local clock in seconds."""

    def __init__(self) -> None:
        self._total = Throttle(TOTAL)
        self._of_fresh = Throttle(TOTAL)
        """For networks that have spent less than half of their tokens."""
        self._hosts: OrderedDict[str, Throttle] = OrderedDict()
        self._networks: OrderedDict[str, Throttle] = OrderedDict()
        self._known: dict[str, None] = {}
        self.under_way: dict[Arrival, None] = {}
        """In the order in which they began."""

    def know(self, network: str) -> None:
        """A member has come from a network, or answered there."""
        self._known.pop(network, None)
        self._known[network] = None
        if len(self._known) > KNOWN_MAX:
            del self._known[next(iter(self._known))]

    def may_come(self, now: float, host: str) -> bool:
        """Returns whether `arrive` would let a newcomer begin."""
        newcomer = self._newcomer(now, host)
        return self._has_place(now, newcomer) or bool(self._giving_way(now, newcomer))

    def arrive(self, now: float, host: str) -> tuple[Arrival, Arrival | None]:
        """Begins a handshake. Returns it, and another one that must end for it, if there is one.

        Args:
            host: the newcomer's IP address, or another text for what carries it.

        Raises:
            TurnedAwayError: its host, its network or all together have begun too many.
        """
        newcomer, ended = self._newcomer(now, host), None
        if not self._has_place(now, newcomer):
            ended = self._giving_way(now, newcomer)
            if ended is None:
                raise TurnedAwayError
            del self.under_way[ended]
            for each in ended.buckets:
                each.give_back()  # the newcomer takes the place, and its tokens
        for each in newcomer.buckets:
            each.try_take(now)
        self.under_way[newcomer] = None
        return newcomer, ended

    def turned_away(self, now: float, host: str) -> None:
        """A newcomer was turned away, which costs its host and its network a token each."""
        for each in self._newcomer(now, host).buckets[:2]:
            each.try_take(now)

    def end(self, arrival: Arrival, *, is_proven: bool) -> None:
        """A handshake is over, by a key that is welcome here or not. One that has given way to
        another is over already."""
        if arrival in self.under_way:
            del self.under_way[arrival]
            if is_proven:
                for each in arrival.buckets:
                    each.give_back()

    def _has_place(self, now: float, newcomer: Arrival) -> bool:
        return (
            all(each.holds(now) for each in newcomer.buckets)
            and len(self.under_way) < UNDER_WAY_MAX
            and self._num_of(newcomer.network) < NETWORK_UNDER_WAY_MAX
        )

    def _num_of(self, network: str) -> int:
        return sum(each.network == network for each in self.under_way)

    def _giving_way(self, now: float, newcomer: Arrival) -> Arrival | None:
        """The handshake in whose place a newcomer may come."""
        of_host, of_network, *of_all = newcomer.buckets
        num_own = self._num_of(newcomer.network)
        is_host_spent = not of_host.holds(now)
        if is_host_spent or not of_network.holds(now) or num_own >= NETWORK_UNDER_WAY_MAX:
            for each in self.under_way:  # the oldest first
                is_old = now >= each.since_seconds + YIELD_SECONDS
                is_of_host = each.host == newcomer.host or not is_host_spent
                if is_old and is_of_host and each.network == newcomer.network:
                    return each
            return None
        candidates = list(self.under_way)
        if len(candidates) < UNDER_WAY_MAX:  # then the bucket of all is empty
            candidates = [each for each in candidates if each.buckets[2:] == tuple(of_all)]
        per_network = Counter(each.network for each in candidates)
        most = max(per_network.values(), default=0)
        if most < num_own + 2:
            old = now - YIELD_SECONDS
            return next((each for each in candidates if each.since_seconds <= old), None)
        return next(each for each in candidates if per_network[each.network] == most)

    def _newcomer(self, now: float, host: str) -> Arrival:
        network = network_of(host)
        return Arrival(host, network, now, self._buckets_of(now, host, network))

    def _buckets_of(self, now: float, host: str, network: str) -> tuple[Throttle, ...]:
        address = address_of(host)
        is_near = address is not None and not address.is_global
        host_rate, network_rate = (NEAR, NEAR) if is_near else (HOST, NETWORK)
        of_host = _bucket_of(self._hosts, host, host_rate)
        of_network = _bucket_of(self._networks, network, network_rate)
        if network in self._known:
            return (of_host, of_network)
        is_fresh = of_network.holds(now, network_rate.burst / 2)
        return (of_host, of_network, self._of_fresh if is_fresh else self._total)


def _bucket_of(kept: OrderedDict[str, Throttle], key: str, rate: Rate) -> Throttle:
    """The bucket of a host or a network. The one that was asked for least lately makes room."""
    bucket = kept.get(key)
    if bucket is None:
        bucket = kept[key] = Throttle(rate)
        if len(kept) > BUCKETS_MAX:
            kept.popitem(last=False)
    kept.move_to_end(key)
    return bucket
