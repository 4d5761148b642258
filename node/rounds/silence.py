"""Who in a ring is silent. A machine that froze, or whose line was cut, says nothing of it."""

from __future__ import annotations

from collections.abc import Iterable

from gossamer.node.network.transport import Transport
from gossamer.protocol.ids import PeerId

SILENT_SECONDS = 6.0
"""Of whom nothing at all came for so long has failed: three signs of life that a living peer gives
(`transport.PING_SECONDS`), and less than the 12 s after which a round has to go on."""


class Silence:
    """How long each of some peers has said nothing.

    All members of a ring are listened to, so that of several that fell silent together each is
    known at once. Silence is counted from call to call: while this process was stopped nobody was
    silent.
    """

    def __init__(self, transport: Transport, peers: Iterable[PeerId]) -> None:
        self._transport = transport
        self._heard = {peer: (transport.heard_seconds(peer), 0.0) for peer in peers}
        """When each was last heard, None without a connection, and how long it is silent since."""

    def count(self, seconds: float) -> None:
        """So much of my own time went by since the last call."""
        for peer, (heard_before, silent_seconds) in self._heard.items():
            heard = self._transport.heard_seconds(peer)
            self._heard[peer] = (heard, 0.0 if heard != heard_before else silent_seconds + seconds)

    def is_over(self, peer: PeerId) -> bool:
        """Whether a connected peer has failed. Without a connection its link shows that."""
        heard, silent_seconds = self._heard[peer]
        return heard is not None and silent_seconds >= SILENT_SECONDS
