"""Which block is asked of whom in a download, and which one is so late that another peer is asked.

A block is late with a peer when one of these holds:

- `HEDGE_SECONDS` have passed since the peer was asked.
- The peer is *quiet*: it was asked, and for `QUIET_SECONDS` no answer has begun to come. So a peer
  that was stopped, or whose line has gone, holds up nobody for long. A long block on a slow line is
  not late by this rule: its answer has begun.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import trio

from gossamer.protocol.ids import Digest, PeerId

COPIES_MAX = 4
"""Peers that are asked for one block at once."""

HEDGE_SECONDS = 5.0
"""A block of 256 KiB takes as long at 0.4 Mbit/s. Of those that take longer some come twice."""

QUIET_SECONDS = 2.0
"""Many round trips of a far line, also of one that is full. What a peer brings that needs longer
comes twice: at most the few blocks that it was asked for, until the first copy is whole."""


@dataclass(eq=False)
class Wanted:
    """A block that is not here yet."""

    digest: Digest
    asked: dict[PeerId, float] = field(default_factory=dict)
    """Peers that were asked, and when."""
    refused: set[PeerId] = field(default_factory=set)
    """Peers that do not have the block."""

    def may_ask(self, quiet: frozenset[PeerId], now: float) -> bool:
        """Returns whether one peer more may be asked. `quiet`: see `quiet_peers`."""
        return len(self.asked) < COPIES_MAX and all(
            peer in quiet or now - since >= HEDGE_SECONDS for peer, since in self.asked.items()
        )


@dataclass(eq=False)
class Worker:
    """One peer that is asked."""

    peer_id: PeerId
    started_at: float
    progress_at: float
    """Time at which the peer last brought a block, or was first asked with nothing under way."""
    heard_at: float
    """Time at which an answer of the peer last ended, or at which it was first asked with nothing
    under way."""
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    num_bytes: int = 0
    """Of the blocks that it brought."""
    cursor: int = 0
    """Place in the list of wanted blocks up to which the worker has looked."""
    opening: bool = True
    is_answering: bool = False
    """Whether an answer has begun to come."""
    under_way: deque[Wanted] = field(default_factory=deque)
    """Blocks that the peer was asked for, the oldest first: the order in which the peer answers."""

    def is_quiet(self, now: float) -> bool:
        """Returns whether the peer owes an answer of which nothing comes."""
        is_asked = self.opening or bool(self.under_way)
        return is_asked and not self.is_answering and now - self.heard_at >= QUIET_SECONDS

    def is_active(self, now: float) -> bool:
        """Returns whether the peer is at work, as far as can be told."""
        is_asked = self.opening or bool(self.under_way)
        return is_asked and now - self.progress_at < HEDGE_SECONDS and not self.is_quiet(now)


def quiet_peers(workers: Iterable[Worker], now: float) -> frozenset[PeerId]:
    """Returns the peers that owe an answer of which nothing comes."""
    return frozenset(worker.peer_id for worker in workers if worker.is_quiet(now))
