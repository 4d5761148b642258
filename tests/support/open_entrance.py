"""The entrance of an open run, as far as dials ask it."""

from __future__ import annotations

from gossamer.node.peers.members.entrance import Entrance
from gossamer.protocol.ids import PeerId


class OpenEntrance(Entrance):
    """Nobody is out, and nobody has to be introduced."""

    def __init__(self) -> None:
        pass

    def is_out(self, peer: PeerId) -> bool:
        return False

    async def introduce(self, peer: PeerId) -> None:
        pass
