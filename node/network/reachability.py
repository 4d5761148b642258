"""This node as others see it: its address outside, and whether they can reach it there.

A node behind a router does not know its own address. Each peer that it is connected to says from
which address it sees the connection come (libp2p identify, `observedAddr`). Connections leave from
the listening port, so what is seen may be an address that others can dial. From what several peers
see follows the class of the router (RFC 4787, section 4.1):

    open       a peer of another network has dialled this node
    crossable  peers of two networks see one address and port: both sides have to dial at once
    strict     peers of two networks see different ports: no port is known before the dial
    unknown    fewer than two networks see it

One observer alone is not believed: it could make this node announce a stranger's address.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gossamer.node.network.dial_rules import (
    IPNetwork,
    address_of,
    is_loopback,
    is_near,
    is_private,
    why_not_dialled,
)
from gossamer.node.network.places import network_of
from gossamer.protocol.ids import PeerId
from gossamer.protocol.wire.statements import Reach

OBSERVERS_MIN = 2
"""Networks that have to see an address before it is announced."""

OBSERVERS_MAX = 256
"""Observers that are remembered: as many as a ring has members. The oldest ones are forgotten."""


@dataclass(frozen=True)
class Neighbourhood:
    """The networks that this machine is in."""

    outer_hosts: frozenset[str]
    """Global addresses of this machine, or of the router that it is behind."""
    networks: tuple[IPNetwork, ...]
    """Networks of its interfaces, and those that its owner names."""
    is_on_loopback: bool = False
    """Whether this node has no other addresses than loopback ones."""

    def why_not(self, host: str) -> str:
        """The reason why a peer may not make this node dial a host, see `dial_rules`."""
        return why_not_dialled(host, self.networks, is_on_loopback=self.is_on_loopback)

    def is_near(self, host: str) -> bool:
        """Returns whether a host is an IP address in a network of this machine."""
        return is_near(host, self.networks)

    def worth_dialling(self, hosts: Sequence[str]) -> list[bool]:
        """Returns those of one peer's hosts that may be dialled and are worth it.

        An address of another home's network belongs to a stranger here, or to no machine. So a
        private address in a network of this machine is dialled only behind the same outer address,
        or if one of both sides has no outer address. Loopback leads to the peer only if the peer
        has nothing else.

        Args:
            hosts: IP addresses or names; an empty one is not known.
        """
        outer = {host for host in hosts if host and not (address_of(host) and is_private(host))}
        may_be_home = not outer or not self.outer_hosts or bool(outer & self.outer_hosts)
        is_elsewhere = any(host and not is_loopback(host) for host in hosts)
        worth = []
        for host in hosts:
            if self.why_not(host):
                worth.append(False)
            elif is_loopback(host):
                worth.append(not is_elsewhere)
            else:
                worth.append(not host or host in outer or may_be_home)
        return worth


@dataclass(frozen=True)
class Endpoint:
    """An IP address and a TCP port."""

    host: str
    port: int

    @property
    def address(self) -> str:
        """The multiaddr."""
        kind = "ip6" if ":" in self.host else "ip4"
        return f"/{kind}/{self.host}/tcp/{self.port}"


class Reachability:
    """This node's knowledge of its own reach. It does no I/O and has no clock."""

    def __init__(self) -> None:
        self._seen: dict[PeerId, tuple[str, Endpoint]] = {}
        """The host of each observer, and the address at which it saw this node."""
        self._dialled_in: dict[PeerId, str] = {}
        """Peers that have dialled this node, and their hosts."""

    def saw(self, observer: PeerId, observer_host: str, seen: Endpoint) -> None:
        """A peer sees a connection that this node made from its listening port."""
        if is_private(seen.host) or is_private(observer_host):
            return  # in one home there is no router in between
        self._seen.pop(observer, None)
        self._seen[observer] = observer_host, seen
        while len(self._seen) > OBSERVERS_MAX:
            del self._seen[next(iter(self._seen))]

    def dialled_in(self, peer: PeerId, host: str) -> None:
        """A peer has dialled this node's listener, from this host."""
        if is_private(host) or host in self.hosts:
            return
        self._dialled_in[peer] = host
        while len(self._dialled_in) > OBSERVERS_MAX:
            del self._dialled_in[next(iter(self._dialled_in))]

    def moved(self) -> None:
        """This machine has other addresses than before: what was seen says nothing any more."""
        self._seen.clear()
        self._dialled_in.clear()

    @property
    def hosts(self) -> set[str]:
        """Outer addresses under which this node was seen."""
        return {seen.host for _, seen in self._seen.values()}

    @property
    def num_confirmed(self) -> int:
        """Peers of other networks that have dialled this node."""
        return len(self._dialled_in)

    @property
    def reach(self) -> Reach:
        """The class of this node's router."""
        if self._dialled_in:
            return "open"
        if self.addresses():
            return "crossable"
        ports: dict[str, set[int]] = {}
        for seen in self._newest_of_each_network():
            ports.setdefault(seen.host, set()).add(seen.port)
        return "strict" if any(len(each) > 1 for each in ports.values()) else "unknown"

    def addresses(self) -> list[Endpoint]:
        """The addresses that at least `OBSERVERS_MIN` networks see alike, the most seen first."""
        counts = Counter(self._newest_of_each_network())
        believed = [seen for seen, count in counts.most_common() if count >= OBSERVERS_MIN]
        return sorted(believed, key=lambda seen: (-counts[seen], seen.host, seen.port))

    def candidates(self) -> list[Endpoint]:
        """The addresses that any observer sees, the newest first: enough for an attempt to cross a
        router."""
        return list(dict.fromkeys(seen for _, seen in reversed(self._seen.values())))

    def _newest_of_each_network(self) -> list[Endpoint]:
        """Returns what each network has seen last: a machine has as many hosts as it likes in its
        own."""
        return list({network_of(host): seen for host, seen in self._seen.values()}.values())
