"""The order in which a pair of peers asks others to relay between them.

Both ends compute the same order, and the pairs of a swarm spread over its relays in proportion to
their lines: weighted rendezvous hashing (Thaler and Ravishankar 1998; the weights by Schindelhauer
and Schomaker 2005).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from gossamer.protocol.ids import PeerId, digest_of
from gossamer.protocol.wire.statements import Announce

RELAY_RATE_MIN = 125_000.0
"""Bytes a second at which a line counts that was not measured yet, or that is slower: 1 Mbit/s."""

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
