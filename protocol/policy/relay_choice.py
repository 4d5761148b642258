"""The order in which a pair of peers asks others to relay between them.

Both ends compute the same order, and the pairs of a swarm spread over its relays in proportion to
their lines: weighted rendezvous hashing (Thaler and Ravishankar 1998; the weights by Schindelhauer
and Schomaker 2005).

What a relay says of its line is its own word. So one that says enough comes first for all pairs. It
can refuse, hand the caller to somebody else, or carry the handshake and then drop what follows. A
peer therefore remembers which relays were of no use to it, and asks these after all others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gossamer.protocol.ids import PeerId, digest_of
from gossamer.protocol.wire.statements import Announce

RELAY_RATE_MIN = 125_000.0
"""Bytes a second at which a line counts that was not measured yet, or that is slower: 1 Mbit/s."""

USEFUL_SECONDS = 600.0
"""Life of a circuit that was of use: after it, its end says nothing against the relay, and what was
said before is forgotten. A relay that drops what it carries so seldom does little harm."""

FAILURES_SECONDS = 3600.0
"""Time for which failures are remembered: a relay may have been short of places, or of a line."""

FAILURES_MAX = 4096
"""Pairs of a peer and a relay whose failures are remembered: three relays and more of a thousand
peers. The oldest are forgotten."""

_HASH_BITS = 48


def relay_order(one: PeerId, other: PeerId, relays: Mapping[PeerId, Announce]) -> list[PeerId]:
    """Returns the relays of a pair, the first to be asked first: those that everybody can reach
    before all others."""
    first, second = sorted((one, other))

    def preference(relay: PeerId) -> tuple[bool, float, PeerId]:
        digest = digest_of(b"gossamer relay:", first.encode(), second.encode(), relay.encode())
        chance = (1 + int.from_bytes(digest[: _HASH_BITS // 8])) / (1 + 2**_HASH_BITS)
        announce = relays[relay]
        rate = max(announce.capacity.bandwidth_bytes_per_second, RELAY_RATE_MIN)
        return announce.reach != "open", -math.log(chance) / rate, relay

    return sorted(relays, key=preference)


@dataclass(frozen=True)
class _Failures:
    """What one relay did to the circuits to one peer."""

    number: int
    seconds: float
    """Local time of the newest one."""


class RelayMemory:
    """The relays that were of use to this peer, and those that were not. Times are the local clock
    in seconds."""

    def __init__(self) -> None:
        self._failures: dict[tuple[PeerId, PeerId], _Failures] = {}
        """By peer and relay, the newest last."""
        self._standing: dict[PeerId, tuple[PeerId, float]] = {}
        """The relay of each peer that is connected through one, and when that circuit was first
        seen."""

    def stands(self, now: float, peer: PeerId, relay: PeerId) -> None:
        """There is a circuit to a peer through a relay."""
        known = self._standing.get(peer)
        if known is None or known[0] != relay:
            self._standing[peer] = relay, now

    def standing(self) -> list[PeerId]:
        """Returns the peers to which there was a circuit."""
        return list(self._standing)

    def ended(self, now: float, peer: PeerId) -> None:
        """A peer that was connected through a relay is not connected any more. The other end may
        have left, so this counts for the order alone."""
        relay, since_seconds = self._standing.pop(peer)
        if now - since_seconds >= USEFUL_SECONDS:
            self._failures.pop((peer, relay), None)
        else:
            self.failed(now, peer, relay)

    def crossed(self, peer: PeerId) -> None:
        """A peer that was connected through a relay has a connection of its own."""
        relay, _ = self._standing.pop(peer)
        self._failures.pop((peer, relay), None)

    def failed(self, now: float, peer: PeerId, relay: PeerId) -> None:
        """A relay did not bring this peer to another one, or soon dropped the circuit."""
        before = self._number(now, peer, relay)
        self._failures.pop((peer, relay), None)
        self._failures[peer, relay] = _Failures(before + 1, now)
        while len(self._failures) > FAILURES_MAX:
            del self._failures[next(iter(self._failures))]

    def in_order(self, now: float, peer: PeerId, relays: Iterable[PeerId]) -> list[PeerId]:
        """Returns the relays for a peer, those with the fewest failures first, and otherwise as
        they stand."""
        return sorted(relays, key=lambda relay: self._number(now, peer, relay))

    def _number(self, now: float, peer: PeerId, relay: PeerId) -> int:
        known = self._failures.get((peer, relay))
        return known.number if known and now - known.seconds < FAILURES_SECONDS else 0
