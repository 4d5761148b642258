"""How far a message of gossip is passed on. No I/O, no randomness of its own.

A node sends its own messages to every peer that it is connected to, and nearly every pair of peers
is connected. So nearly every copy that a peer passes on is a repetition, and the cost of all
repetitions grows with the square of the number of peers. In a small swarm they are cheap, and spare
a peer that the author cannot reach the wait for the next comparison of statements. In a larger one
that peer asks for what it lacks, and more often (`gossip.APART_SECONDS`).
"""

from __future__ import annotations

PASSED_ON_MAX = 3
"""Copies that one peer passes on: with three, one peer in twenty that the author does not reach is
missed, if all others pass it on (e^-3)."""

PASSING_PEERS_MAX = 8
"""Connected peers with whom a peer still passes messages on: four copies of each message there."""


def num_passed_on(num_peers: int) -> int:
    """Returns to how many of the connected peers a message of another author is passed on."""
    return min(PASSED_ON_MAX, num_peers) if num_peers <= PASSING_PEERS_MAX else 0
