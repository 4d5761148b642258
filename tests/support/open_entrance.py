"""The entrance of an open run, as far as dials ask it."""

from __future__ import annotations

from gossamer.protocol.ids import PeerId


class OpenEntrance:
    """Nobody is out, and nobody has to be introduced."""

    def is_out(self, _peer: PeerId) -> bool:
        return False

    async def introduce(self, _peer: PeerId) -> None:
        pass
