"""The places for circuits that this node carries: few for a pair of peers, and shared out.

Identities cost nothing, and an idle circuit costs its ends next to nothing. Addresses of many
networks are dear. A circuit counts for the network of its caller.

A circuit that begins takes one of the streams that the target lets this node open, of which there
are so many a second (`yamux.connection.OPEN_RATE`). So callers that begin circuits without end
would leave this node no streams of its own to the target.

Rules
-----
- Callers of one network begin circuits at `NETWORK_RATE`, and all callers circuits to one target at
  `TARGET_RATE`. What comes beyond is refused, and no circuit ends for it.
- Two peers have `CIRCUITS_PER_PAIR_MAX` circuits. A further one takes the place of their oldest:
  one of both has lost its connection, and this node has not noticed.
- While a place is free, no other circuit ends.
- When all are taken, the circuit ends that has carried nothing for the longest, if that is longer
  than `IDLE_SECONDS`.
- Else the oldest one of the network that has the most ends, if the newcomer's has fewer by two. The
  oldest and not the idlest: a byte now and then makes an attacker's circuit look busy.
- Else, within the newcomer's network, the oldest one of the caller that has the most ends, if the
  newcomer has fewer by two.
- Otherwise the newcomer is refused.

Circuits that are being opened count. This module does no I/O and has no clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from gossamer.node.network.places import NoPlaceError, oldest_of_most
from gossamer.protocol.ids import PeerId
from gossamer.protocol.policy.conduct.throttle import Rate, Throttle, throttle_of

CIRCUITS_MAX = 32
"""Circuits that this node carries at a time: two for each of 16 members without another way."""

CIRCUITS_PER_PAIR_MAX = 2
"""Circuits of the same two peers: each may ask for one at the same time."""

NETWORK_RATE = Rate(per_second=2, burst=2 * CIRCUITS_MAX)
"""Rate of the circuits that callers of one network begin: all places twice, for peers behind one
router that have lost their connections together. A peer tries again after seconds."""

TARGET_RATE = Rate(per_second=8, burst=64)
"""Rate of the circuits to one target: a sixth of the streams that this node may open to it, so that
the rest is for its own."""

IDLE_SECONDS = 60.0
"""Time without a byte after which a circuit is of no use. On a connection that lives, its peer is
asked for a sign of life every 20 s or more often."""


@dataclass(eq=False)
class Circuit:
    """One circuit of others."""

    caller: PeerId
    target: PeerId
    network: str
    """The caller's network."""
    moved_seconds: float
    """Local time at which it began, or last carried something."""
    end: Callable[[], None] = field(repr=False)
    """Ends it."""
    left_bytes: float = math.inf
    """Payload bytes that it may still carry, both directions together."""

    @property
    def pair(self) -> frozenset[PeerId]:
        """Both ends."""
        return frozenset((self.caller, self.target))


class CircuitPlaces:
    """The circuits that this node carries. Times are the local clock in seconds."""

    def __init__(self) -> None:
        self.taken: dict[Circuit, None] = {}
        """In the order in which they began."""
        self._networks: dict[str, Throttle] = {}
        self._targets: dict[PeerId, Throttle] = {}

    def take(self, now: float, newcomer: Circuit) -> None:
        """A circuit begins. Another one ends for it if need be.

        Raises:
            NoPlaceError: none gives way, or too many have begun lately.
        """
        if not (
            throttle_of(self._networks, newcomer.network, NETWORK_RATE, now).try_take(now)
            and throttle_of(self._targets, newcomer.target, TARGET_RATE, now).try_take(now)
        ):
            raise NoPlaceError("this peer was asked for too many circuits a moment ago")
        own = [circuit for circuit in self.taken if circuit.pair == newcomer.pair]
        if len(own) >= CIRCUITS_PER_PAIR_MAX:
            self._end(own[0])
        elif len(self.taken) >= CIRCUITS_MAX:
            giving = self._giving_way(now, newcomer)
            if giving is None:
                raise NoPlaceError(f"this peer carries {CIRCUITS_MAX} circuits already")
            self._end(giving)
        self.taken[newcomer] = None

    def leave(self, circuit: Circuit) -> None:
        """A circuit has ended."""
        self.taken.pop(circuit, None)

    def _end(self, circuit: Circuit) -> None:
        self.leave(circuit)  # its place is free at once
        circuit.end()

    def _giving_way(self, now: float, newcomer: Circuit) -> Circuit | None:
        idlest = min(self.taken, key=lambda each: each.moved_seconds, default=None)
        if idlest is not None and now - idlest.moved_seconds > IDLE_SECONDS:
            return idlest
        neighbours = [each for each in self.taken if each.network == newcomer.network]
        return oldest_of_most(self.taken, newcomer, lambda each: each.network) or oldest_of_most(
            neighbours, newcomer, lambda each: each.caller
        )
