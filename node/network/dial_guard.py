"""The door for every dial that peers may provoke: the rules of `dial_rules`, and a budget.

A peer can name the address of somebody who has nothing to do with the run. Each node that hears it
dials, and identities cost nothing. So dials to addresses that come from peers are paid out of
buckets: one of the host, one of its network, and one of all. A dial that leads to the peer gives
its token back. So a swarm whose members answer is not slowed down, and dials that lead nowhere are
few in all, however many peers name the addresses, and however often.

This module does no I/O and has no clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gossamer.node.network.dial_rules import address_of, destinations
from gossamer.node.network.places import network_of
from gossamer.node.network.reachability import Neighbourhood
from gossamer.protocol.policy.conduct.throttle import Rate, Throttle, throttle_of

TYPED_MAX = 1024
"""Addresses of the owner that are known: the links of some joins. Later ones are judged like those
of peers when they are announced."""


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
        self._hosts: dict[str, Throttle] = {}
        self._networks: dict[str, Throttle] = {}

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

    def _buckets_of(self, now: float, host: str) -> Sequence[Throttle]:
        # The bucket of all leaves some 400 others that are not full: none of these is dropped.
        machine = machine_of(host)
        of_host = throttle_of(self._hosts, machine, self._rates.host, now)
        of_network = throttle_of(self._networks, domain_of(machine), self._rates.network, now)
        return (of_host, of_network, self._total)


class DialRefusedError(OSError):
    """A dial that does not happen; the text says why."""


class Permit:
    """The permission for the dials of one attempt to reach a peer."""

    def __init__(
        self,
        neighbourhood: Neighbourhood,
        budget_of: Callable[[str], DialBudget],
        clock: Callable[[], float],
    ) -> None:
        self._neighbourhood = neighbourhood
        self._budget_of = budget_of
        self._clock = clock
        self._taken: Counter[str] = Counter()

    def take(self, host: str) -> None:
        """Call it right before each dial of an IP address, and before a name is resolved.

        Raises:
            DialRefusedError: the host must not be dialled, or not now.
        """
        reason = self._neighbourhood.why_not(host)
        if reason:
            raise DialRefusedError(f"a peer may not make this node dial it: {reason}")
        if not self._budget_of(host).try_take(self._clock(), host):
            raise DialRefusedError(
                f"too many dials to {host} or its network have led nowhere; it is dialled later"
            )
        self._taken[host] += 1

    def unused(self, host: str) -> None:
        """The last dial of a host never left this machine."""
        if self._taken[host]:
            self._taken[host] -= 1
            self._budget_of(host).give_back(self._clock(), host)

    def proven(self, *hosts: str) -> None:
        """The peer itself answered at these hosts. Others that were tried stay paid for: a peer may
        name a third party beside its own address."""
        for host in hosts:
            while self._taken[host]:
                self.unused(host)


class DialGuard:
    """Gives permits, and knows the addresses that the owner typed."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._typed: set[tuple[str, int]] = set()
        self._elsewhere = DialBudget(ELSEWHERE)
        self._near = DialBudget(NEAR)
        self._crossing = DialBudget(CROSSING)

    def note_typed(self, host: str, port: int) -> None:
        """The owner of this machine gave this address: it is dialled whatever it is."""
        if len(self._typed) < TYPED_MAX:
            self._typed.add((host, port))

    def is_typed(self, host: str, port: int) -> bool:
        """Returns whether the owner gave this address."""
        return (host, port) in self._typed

    def permit(self, neighbourhood: Neighbourhood) -> Permit:
        """Returns the permit for addresses that a peer announced.

        Args:
            neighbourhood: of this machine, as it is now.
        """

        def budget_of(host: str) -> DialBudget:
            return self._near if neighbourhood.is_near(host) else self._elsewhere

        return Permit(neighbourhood, budget_of, self._clock)

    def permit_to_cross(self, neighbourhood: Neighbourhood) -> Permit:
        """Returns the permit for addresses that a peer named for a crossing of both routers."""
        return Permit(neighbourhood, lambda _host: self._crossing, self._clock)
