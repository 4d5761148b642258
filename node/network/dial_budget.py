"""How many dials peers may cost this node, and through it a third party.

A peer can name the address of somebody who has nothing to do with the run. Each node that hears it
dials, and identities cost nothing. So dials to addresses that come from peers are paid out of
buckets: one of the host, one of its network, and one of all. A dial that leads to the peer gives
its token back. So a swarm whose members answer is not slowed down, and dials that lead nowhere are
few in all, however many peers name the addresses, and however often.

This module does no I/O and has no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gossamer.node.network.dial_rules import address_of, destinations
from gossamer.node.network.places import network_of
from gossamer.protocol.policy.throttle import Rate, Throttle

BUCKETS_MAX = 1024
"""Hosts and networks whose buckets are kept. A full bucket says nothing and goes. The bucket of all
dials leaves some 400 others that are not full."""


@dataclass(frozen=True)
class DialRates:
    """Dials that may lead nowhere."""

    host: Rate
    """Per IP address, or name."""
    network: Rate
    """Per IPv4 /24 or IPv6 /64, or per domain for names."""
    total: Rate


ELSEWHERE = DialRates(Rate(0.2, 16.0), Rate(0.5, 32.0), Rate(4.0, 128.0))
"""To other networks. A peer announces up to eight addresses, mostly of two hosts, and a lost one is
dialled every five seconds at first: so a peer that has gone is dialled as `Redial` says, and ten
that have gone from one host share its rate."""

NEAR = DialRates(Rate(2.0, 64.0), Rate(4.0, 256.0), Rate(8.0, 256.0))
"""In this machine's own networks, where one host may have a daemon for each of its devices, and a
laboratory may lose its switch: all are to be back within 20 s."""

CROSSING = DialRates(Rate(0.5, 48.0), Rate(1.0, 96.0), Rate(4.0, 192.0))
"""For the crossing of routers, which dials one address ten times a second for five seconds where a
router answers early dials with a reset."""


def machine_of(host: str) -> str:
    """The host that is dialled in the end, in one spelling: the IPv4 address in an IPv6 one."""
    address = address_of(host)
    return host.lower().rstrip(".") if address is None else str(destinations(address)[-1])


def domain_of(host: str) -> str:
    """The network of an IP address; the last two labels of a name, whose servers are asked."""
    if address_of(host) is not None:
        return network_of(host)
    return ".".join(host.split(".")[-2:])


class DialBudget:
    """The buckets. Times are the local clock in seconds."""

    def __init__(self, rates: DialRates) -> None:
        self._rates = rates
        self._total = Throttle(rates.total)
        self._buckets: dict[str, Throttle] = {}

    def try_take(self, now: float, host: str) -> bool:
        """Takes a token for one dial from all three buckets, or from none. Returns whether it
        did."""
        buckets = self._buckets_of(now, host)
        if not all(bucket.holds(now) for bucket in buckets):
            return False
        for bucket in buckets:
            bucket.try_take(now)
        return True

    def give_back(self, now: float, host: str) -> None:
        """The dial led to a peer, or never left this machine."""
        for bucket in self._buckets_of(now, host):
            bucket.give_back()

    def __len__(self) -> int:
        return len(self._buckets)

    def _buckets_of(self, now: float, host: str) -> Sequence[Throttle]:
        if len(self._buckets) >= BUCKETS_MAX:
            self._buckets = {key: b for key, b in self._buckets.items() if not b.is_full(now)}
        machine = machine_of(host)
        of_host = self._buckets.setdefault(f"host {machine}", Throttle(self._rates.host))
        of_network = self._buckets.setdefault(
            f"network {domain_of(machine)}", Throttle(self._rates.network)
        )
        return (of_host, of_network, self._total)
