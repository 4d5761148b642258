"""The offences for which the nodes of a test blame peers."""

from __future__ import annotations

from typing import TypeAlias

import pytest

from gossamer.node.peers.offences import Offences
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import PeerId

NotedOffences: TypeAlias = list[tuple[PeerId, RemoteProtocolError]]


def noted_offences(monkeypatch: pytest.MonkeyPatch) -> NotedOffences:
    """Returns a list that gets each offence for which any node blames any peer, from now on."""
    noted: NotedOffences = []
    note = Offences.note

    def watched(self: Offences, peer: PeerId, error: RemoteProtocolError) -> None:
        noted.append((peer, error))
        note(self, peer, error)

    monkeypatch.setattr(Offences, "note", watched)
    return noted
