"""What a node says of the members of its rings."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest
import structlog

from gossamer.node.rounds.opening import _NodeHost
from gossamer.protocol.ids import PeerId
from gossamer.protocol.rounds.actions import Removed

ME, OTHER = PeerId("me"), PeerId("other")


@pytest.mark.parametrize(("peer", "level"), [(ME, "warning"), (OTHER, "info")])
def test_the_owner_is_warned_of_what_concerns_the_own_node(peer: PeerId, level: str) -> None:
    """In a swarm at home some member always sleeps or leaves: nobody can do anything about it."""
    context = MagicMock()
    context.me = ME
    host = _NodeHost(context, MagicMock(), MagicMock())
    removed = Removed(peer, "broken", "its connection ended", OTHER, (ME, OTHER))
    with structlog.testing.capture_logs() as lines:
        host._removed(removed)
    assert [(line["log_level"], line["reason"]) for line in lines] == [(level, "broken")]
    assert ("this node" in lines[0]["event"]) == (peer == ME)
