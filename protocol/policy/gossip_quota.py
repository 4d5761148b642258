"""How much gossip one node takes, and from whom. No I/O, no clock.

Three kinds of bound, because gossip is passed on by honest peers too:

- What a *forwarder* (the peer at the other end of the connection) brings is read no faster than
  `FORWARDER_RATE`: it waits, nothing is lost, and whoever floods stops itself by its full windows.
  All forwarders together share `TOTAL_RATE`, in turn.
- What one connected *author* says beyond `AUTHOR_RATE` is dropped and not passed on. Its signature
  was checked by then, so it is to blame, whoever brought it.
- *Strangers*, authors that are not connected here, share one `STRANGERS_RATE`: identities cost
  nothing. No honest forwarder brings more of them than it may pass on itself, so one that does
  brings them on its own account and is to blame.

What is dropped matters to nobody for long: anti-entropy brings whatever is still true.
"""

from __future__ import annotations

from collections import Counter

from gossamer.protocol.errors import FloodError
from gossamer.protocol.ids import PeerId
from gossamer.protocol.limits import KIB, MEMBERS_MAX, MIB
from gossamer.protocol.policy.throttle import Rate, Throttle

FORWARDER_RATE = Rate(per_second=200, burst=2 * MEMBERS_MAX)
"""New messages. Two hundred members announce 100 a second, and at the end of a round all of them
say a few things at once."""

FORWARDER_BYTES_RATE = Rate(per_second=512 * KIB, burst=8 * MIB)
"""Half a second of a 10 Mbit/s line; a roster of 256 members has some 100 KiB."""

TOTAL_RATE = Rate(per_second=1000, burst=4 * MEMBERS_MAX)
"""New messages, at some 0.4 ms each for two signatures: less than half a processor."""

TOTAL_BYTES_RATE = Rate(per_second=4 * MIB, burst=16 * MIB)
"""Gossipsub keeps what it passed on for five seconds: so that much memory."""

AUTHOR_RATE = Rate(per_second=20, burst=400)
"""A member announces every two seconds, and accuses a whole ring at once at most."""

STRANGERS_RATE = Rate(per_second=50, burst=500)
"""A hundred peers that are connected to others only."""

FORWARDER_STRANGERS_RATE = Rate(per_second=100, burst=1000)
"""Twice what an honest forwarder passes on."""

FLOOD_MESSAGES = 100
"""Messages over a rate that make one offence."""

THROTTLES_MAX = 1024
"""When more are kept, those that are full again go."""


class GossipQuota:
    """The throttles of one node. Events carry the local clock in seconds."""

    def __init__(self) -> None:
        self._forwarders: dict[PeerId, Throttle] = {}
        self._forwarder_bytes: dict[PeerId, Throttle] = {}
        self._forwarder_strangers: dict[PeerId, Throttle] = {}
        self._authors: dict[PeerId, Throttle] = {}
        self._strangers = Throttle(STRANGERS_RATE)
        self._total = Throttle(TOTAL_RATE)
        self._total_bytes = Throttle(TOTAL_BYTES_RATE)
        self._dropped: Counter[PeerId] = Counter()

    def forwarder_wait_seconds(
        self, now: float, forwarder: PeerId, num_messages: float, num_bytes: int
    ) -> float:
        """How long to wait before this forwarder's next message is read."""
        messages = _get(self._forwarders, forwarder, FORWARDER_RATE, now)
        size = _get(self._forwarder_bytes, forwarder, FORWARDER_BYTES_RATE, now)
        return max(messages.take(now, num_messages), size.take(now, num_bytes))

    def total_wait_seconds(self, now: float, num_messages: float, num_bytes: int) -> float:
        """How long to wait before anybody's next message is looked at."""
        return max(self._total.take(now, num_messages), self._total_bytes.take(now, num_bytes))

    def admits(
        self, now: float, forwarder: PeerId, author: PeerId, *, is_connected: bool
    ) -> tuple[bool, PeerId | None]:
        """(whether to take an authentic new message, who has gone on too long or None)."""
        if is_connected:
            if _get(self._authors, author, AUTHOR_RATE, now).try_take(now):
                return True, None
            return False, self._note_dropped(author)
        brought = _get(self._forwarder_strangers, forwarder, FORWARDER_STRANGERS_RATE, now)
        if not brought.try_take(now):
            return False, self._note_dropped(forwarder)
        return self._strangers.try_take(now), None

    def _note_dropped(self, peer: PeerId) -> PeerId | None:
        self._dropped[peer] += 1
        if self._dropped[peer] < FLOOD_MESSAGES:
            if len(self._dropped) > THROTTLES_MAX:
                self._dropped.clear()
            return None
        del self._dropped[peer]
        return peer

    @staticmethod
    def flood() -> FloodError:
        """What the peer that `admits` names did."""
        return FloodError(f"{FLOOD_MESSAGES} gossip messages more than anybody has to say")


def _get(kept: dict[PeerId, Throttle], peer: PeerId, rate: Rate, now: float) -> Throttle:
    throttle = kept.get(peer)
    if throttle is None:
        if len(kept) >= THROTTLES_MAX:
            for idle in [each for each, one in kept.items() if one.is_full(now)]:
                del kept[idle]
        throttle = kept[peer] = Throttle(rate)
    return throttle
