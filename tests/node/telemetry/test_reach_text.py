"""The owner is told how well the node can be reached, and what helps."""

from __future__ import annotations

import pytest

from gossamer.node.telemetry.reach_text import reach_text
from gossamer.node.telemetry.status import PeerStatus

ADDRESS = "/ip4/203.0.113.7/tcp/4610/p2p/12D3KooW"


def _peer(name: str, path: str | None, relay: str | None = None) -> PeerStatus:
    return PeerStatus(peer_id=name, phase="training", round=1, path=path, relay=relay)


DIRECT, CROSSED = _peer("a", "direct"), _peer("b", "crossed")
RELAYED, MISSING = _peer("c", "relayed", "12D3KooWa1b2c3"), _peer("d", None)


@pytest.mark.parametrize(
    ("reach", "confirmed", "peers", "expected"),
    [
        (
            "open",
            2,
            [DIRECT],
            "Reachable at /ip4/203.0.113.7/tcp/4610 (confirmed by 2): 1 of 1 members direct",
        ),
        (
            "crossable",
            0,
            [DIRECT, CROSSED],
            "Behind a router that can be crossed, at /ip4/203.0.113.7/tcp/4610: "
            "2 of 2 members direct",
        ),
        (
            "strict",
            0,
            [DIRECT, RELAYED],
            "Behind a strict router: 1 of 2 members direct, 1 through a1b2c3. Rounds are slower "
            "so: turn on UPnP or open TCP port 4610",
        ),
        (
            "unknown",
            0,
            [],
            "At /ip4/203.0.113.7/tcp/4610; no member has confirmed yet that it can be dialled",
        ),
        (
            "unknown",
            0,
            [MISSING],
            "No member is connected: this node trains alone. Check the network, and open TCP port "
            "4610 on the router",
        ),
        (
            "open",
            1,
            [DIRECT, MISSING],
            "Reachable at /ip4/203.0.113.7/tcp/4610 (confirmed by 1): 1 of 2 members direct, "
            "1 not connected",
        ),
    ],
)
def test_reach_in_words(reach: str, confirmed: int, peers: list[PeerStatus], expected: str) -> None:
    assert reach_text(reach, confirmed, ADDRESS, peers) == expected


def test_without_any_address() -> None:
    assert reach_text("unknown", 0, "", []).startswith("At no address")
