"""This node's reach, in words for its owner."""

from __future__ import annotations

from collections.abc import Sequence

from gossamer.node.telemetry.status import PeerStatus


def reach_text(reach: str, num_confirmed: int, address: str, peers: Sequence[PeerStatus]) -> str:
    """Returns the text for the owner about the ways to and from this node, with a remedy where one
    helps.

    Args:
        reach: the class of this node's router (`wire.statements.Reach`).
        num_confirmed: peers of other networks that have dialled this node.
        address: the first address that this node announces; empty if there is none.
        peers: the other members of the run that announce themselves.
    """
    connected = [peer for peer in peers if peer.path is not None]
    relayed = [peer for peer in connected if peer.path == "relayed"]
    num_direct = len(connected) - len(relayed)
    missing = len(peers) - len(connected)
    where = address.partition("/p2p/")[0] or "no address"
    if peers and not connected:
        return (
            "No member is connected: this node trains alone. Check the network, and open TCP port "
            f"{port_of_text(address)} on the router"
        )
    parts: list[str] = []
    if reach == "open":
        parts.append(f"Reachable at {where} (confirmed by {num_confirmed})")
    elif reach == "crossable":
        parts.append(f"Behind a router that can be crossed, at {where}")
    elif reach == "strict":
        parts.append("Behind a strict router")
    else:
        parts.append(f"At {where}; no member has confirmed yet that it can be dialled")
    if peers:
        ways = [f"{num_direct} of {len(peers)} members direct"]
        if relayed:
            relays = sorted({(peer.relay or "")[-6:] for peer in relayed})
            ways.append(f"{len(relayed)} through {', '.join(relays)}")
        if missing:
            ways.append(f"{missing} not connected")
        parts.append(", ".join(ways))
    text = ": ".join(parts)
    if relayed:
        text += f". Rounds are slower so: turn on UPnP or open TCP port {port_of_text(address)}"
    return text


def port_of_text(address: str) -> str:
    """Returns the TCP port of an address of this node; the default one if it names none."""
    _, _, rest = address.partition("/tcp/")
    return rest.partition("/")[0] or "4610"
