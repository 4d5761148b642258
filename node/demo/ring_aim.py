"""The moment at which the demo kills a peer: the middle of its ring."""

from __future__ import annotations

from gossamer.node.telemetry.status import Status

SENT_MIN, SENT_MAX = 0.05, 0.45
"""The middle of a ring: the fraction of a round's bytes that the peer to be killed has sent. The
first half of the bytes are partial sums, the second half results."""


class RingAim:
    """Finds the middle of a ring by the counters of one of its members, look by look."""

    def __init__(self) -> None:
        self._before: Status | None = None
        """The newest look between two rings."""

    def is_amid(self, status: Status) -> bool:
        """Returns whether the peer is in the middle of a ring.

        A ring that was under way at the first look does not count. A peer whose round is just
        committed averages for another instant, and passes results on: this is no ring either.
        """
        if status.phase != "averaging":
            self._before = status
            return False
        before, last = self._before, status.last_round
        if before is None or before.round != status.round or last is None:
            return False
        sent = status.bytes_sent_total - before.bytes_sent_total
        return SENT_MIN * last.bytes_sent <= sent <= SENT_MAX * last.bytes_sent
