"""Peers of other runs that this node has met.

Two runs may meet on one network: a machine changes its run and keeps its id, or an address that led
to a member leads to a node of another run now. Such a peer breaks no rule. What its statements say
is signed for its own run, so in this one it looks forged.

Rules
-----
- A peer that has not announced itself in this run, and that hands on a statement which its author
  did not sign for this run, is of another run. No member hands on such statements, because it
  checks the signatures of what it keeps. Nor has the author announced itself here.
- It is disconnected, not compared with, and not dialled for `ELSEWHERE_SECONDS`. It is not banned:
  it may come over to this run, and counts as one of it as soon as it announces itself here.
- A member that does the same has forged the statement, and so has a peer that makes up what a
  member says. That is an offence.

So a peer that forges without having announced itself gets as far with it as the end of its
connection, and is not asked again for so long.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import structlog
import trio

from gossamer.protocol.ids import PeerId, short

ELSEWHERE_SECONDS = 600.0
"""Time for which a peer of another run is left alone: few change their run more often."""

PEERS_MAX = 1024
"""Peers of other runs that are remembered. One that was forgotten is met again, at the price of one
comparison of statements."""

log = structlog.get_logger("peers")


class OtherRuns:
    """The knowledge of one node about peers of other runs."""

    def __init__(self, is_member: Callable[[PeerId], bool]) -> None:
        """`is_member`: whether a peer has announced itself in this run, and lives."""
        self._is_member = is_member
        self._until_seconds: OrderedDict[PeerId, float] = OrderedDict()

    def note_forged(self, peer: PeerId, author: PeerId) -> None:
        """A peer has handed on a statement that its author did not sign for this run."""
        if self._is_member(peer) or self._is_member(author):
            return
        self._until_seconds[peer] = trio.current_time() + ELSEWHERE_SECONDS
        self._until_seconds.move_to_end(peer)
        if len(self._until_seconds) > PEERS_MAX:
            self._until_seconds.popitem(last=False)
        log.info("a peer is in another run: it is left alone for a while", peer=short(peer))

    def __contains__(self, peer: PeerId) -> bool:
        """Returns whether a peer is to be left alone."""
        until_seconds = self._until_seconds.get(peer)
        return (
            until_seconds is not None
            and trio.current_time() < until_seconds
            and not self._is_member(peer)
        )
