"""A ring's link with the scope in which it runs, as the dispatcher of a round wants it."""

from __future__ import annotations

import trio

from gossamer.node.rounds.effects import LinkFullError
from gossamer.node.rounds.ring_link import RingLink
from gossamer.protocol.rounds.ring import Send


class ScopedLink:
    """Run `run` in `scope`. The rest: see `OutgoingLink`."""

    def __init__(self, link: RingLink) -> None:
        self._link = link
        self.scope = trio.CancelScope()
        self.run = link.run
        self.finish = link.finish

    def send(self, frame: Send) -> None:
        """See `OutgoingLink`."""
        try:
            self._link.send(frame)
        except trio.WouldBlock:
            raise LinkFullError from None

    def close(self) -> None:
        """See `OutgoingLink`."""
        self.scope.cancel()
