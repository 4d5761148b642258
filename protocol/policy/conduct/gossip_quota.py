"""Bounds on the gossip that one node accepts, from all peers together and from each.

There are three kinds of bound, because honest peers pass on the gossip of others:

- A *forwarder* is the peer at the other end of the connection. Its messages are read no faster than
  `FORWARDER_RATE`. It waits and nothing is lost: a peer that floods fills its own windows. All
  forwarders together share `TOTAL_RATE`, in turn.
- Messages of one connected *author* beyond `AUTHOR_RATE` are dropped and not passed on. The
  signature was checked by then, so the author is to blame, whichever peer forwarded them.
- *Strangers* are authors that are not connected here. They share one `STRANGERS_RATE`: identities
  cost nothing. A forwarder that brings many of their messages is to blame.
- A node passes on the messages of others at `PASSED_ON_RATE` at most. Some of their authors may be
  strangers to the next peer. Otherwise many identities, each within the rate of an author, could
  make an honest forwarder look like one that floods.

A dropped message is not missed for long: anti-entropy brings every statement that is still true.

Nor does a node answer every comparison of statements (`AnswerQuota`). The question has a few bytes,
the answer up to 256 KiB, and to choose them takes milliseconds.
"""

from __future__ import annotations

from gossamer.protocol.errors import FloodError
from gossamer.protocol.ids import PeerId
from gossamer.protocol.limits import KIB, MEMBERS_MAX, MIB
from gossamer.protocol.policy.conduct.throttle import Rate, Throttle, throttle_of

FORWARDER_RATE = Rate(per_second=200, burst=2 * MEMBERS_MAX)
"""Rate of the new messages that one forwarder brings. Two hundred members announce 100 a second,
and at the end of a round each of them publishes a few statements at once."""

FORWARDER_BYTES_RATE = Rate(per_second=512 * KIB, burst=8 * MIB)
"""Rate of the bytes that one forwarder brings: half a second of a 10 Mbit/s line, while a roster of
256 members has some 100 KiB."""

TOTAL_RATE = Rate(per_second=1000, burst=4 * MEMBERS_MAX)
"""Rate of the new messages of all forwarders: at some 0.4 ms each for two signatures, less than
half a processor."""

TOTAL_BYTES_RATE = Rate(per_second=4 * MIB, burst=16 * MIB)
"""Rate of the bytes of all forwarders: those of a line of 34 Mbit/s. It does not bound what is kept
of them, for which the node's message cache has a bound of its own."""

AUTHOR_RATE = Rate(per_second=60, burst=600)
"""Rate of one connected author's messages. A round has some five from each member (its `Ready`, a
roster, votes, the commit), besides announcements, and an accusation of a whole ring at most."""

OWN_RATE = Rate(0.75 * AUTHOR_RATE.per_second, 0.75 * AUTHOR_RATE.burst)
"""Rate of a node's own messages: rounds that are quicker than this allows wait. The rest of
`AUTHOR_RATE` is for messages that waited on a line and come together."""

STRANGERS_RATE = Rate(per_second=50, burst=500)
"""Rate of the statements of all authors without a connection to this node: a hundred such peers."""

PASSED_ON_RATE = Rate(per_second=50, burst=600)
"""Rate of the messages of all other authors that this node passes on: two hundred members that each
publish three statements at the end of a round."""

FORWARDER_STRANGERS_RATE = Rate(per_second=2 * PASSED_ON_RATE.per_second, burst=1000)
"""Rate of strangers' statements that one forwarder brings: twice what an honest forwarder passes
on, since messages that wait on a line come together."""

FLOOD_MESSAGES = 100
"""Messages over a rate that make one offence."""

DROPPED_RATE = Rate(per_second=FLOOD_MESSAGES / 600, burst=FLOOD_MESSAGES - 1)
"""Rate of dropped messages that are no offence. A hundred are forgotten in ten minutes, so that a
machine which sleeps once an hour, and says all at once when it wakes, never adds up to a flood. A
peer that floods has a hundred in seconds."""

ASKER_RATE = Rate(per_second=8, burst=64)
"""Rate of the comparisons of one peer. An honest one asks the same peer twice a second at most, and
once more for its rosters."""

STRANGE_ASKERS_RATE = Rate(per_second=32, burst=256)
"""Rate of the comparisons of all peers without standing together. Each of a thousand newcomers asks
one peer a second, so a node among a hundred members is asked by ten of them."""


class GossipQuota:
    """The throttles of one node. Events carry the local clock in seconds."""

    def __init__(self) -> None:
        self._forwarders: dict[PeerId, Throttle] = {}
        self._forwarder_bytes: dict[PeerId, Throttle] = {}
        self._forwarder_strangers: dict[PeerId, Throttle] = {}
        self._authors: dict[PeerId, Throttle] = {}
        self._strangers = Throttle(STRANGERS_RATE)
        self._passed_on = Throttle(PASSED_ON_RATE)
        self._total = Throttle(TOTAL_RATE)
        self._total_bytes = Throttle(TOTAL_BYTES_RATE)
        self._dropped: dict[PeerId, Throttle] = {}

    def forwarder_wait_seconds(
        self, now: float, forwarder: PeerId, num_messages: float, num_bytes: int
    ) -> float:
        """Seconds to wait before the next message of this forwarder is read."""
        messages = throttle_of(self._forwarders, forwarder, FORWARDER_RATE, now)
        size = throttle_of(self._forwarder_bytes, forwarder, FORWARDER_BYTES_RATE, now)
        return max(messages.take(now, num_messages), size.take(now, num_bytes))

    def total_wait_seconds(self, now: float, num_messages: float, num_bytes: int) -> float:
        """Seconds to wait before the next message of any peer is handled."""
        return max(self._total.take(now, num_messages), self._total_bytes.take(now, num_bytes))

    def admits(
        self, now: float, forwarder: PeerId, author: PeerId, *, is_connected: bool
    ) -> tuple[bool, PeerId | None]:
        """Returns whether to accept an authentic new message, and the peer that floods (None: no
        peer)."""
        if is_connected:
            if throttle_of(self._authors, author, AUTHOR_RATE, now).try_take(now):
                return True, None
            return False, self._note_dropped(now, author)
        brought = throttle_of(self._forwarder_strangers, forwarder, FORWARDER_STRANGERS_RATE, now)
        if not brought.try_take(now):
            return False, self._note_dropped(now, forwarder)
        return self._strangers.try_take(now), None

    def passes_on(self, now: float) -> bool:
        """Returns whether to pass on a message of another author that was accepted."""
        return self._passed_on.try_take(now)

    def _note_dropped(self, now: float, peer: PeerId) -> PeerId | None:
        """Counts a dropped message. Returns the peer to blame for it if that makes an offence."""
        if throttle_of(self._dropped, peer, DROPPED_RATE, now).try_take(now):
            return None
        del self._dropped[peer]
        return peer

    @staticmethod
    def flood() -> FloodError:
        """The offence of a peer that `admits` names."""
        return FloodError(f"{FLOOD_MESSAGES} gossip messages over the rate")


class AnswerQuota:
    """The comparisons of statements that one node answers. A refused peer asks another one."""

    def __init__(self) -> None:
        self._askers: dict[PeerId, Throttle] = {}
        self._strangers = Throttle(STRANGE_ASKERS_RATE)

    def admits(self, now: float, peer: PeerId, *, has_standing: bool) -> bool:
        """Returns whether a peer is answered.

        Args:
            now: local clock in seconds.
            has_standing: whether a round of the newest ones took work of the peer.
        """
        if not throttle_of(self._askers, peer, ASKER_RATE, now).try_take(now):
            return False
        return has_standing or self._strangers.try_take(now)
