"""Statements that this node does not hold, and that others are not to send it now.

They are named beside what this node holds when it compares stores. Else a neighbour would send them
again at each comparison: it has not dropped them yet, or it took what this node refuses, because
the two are connected to different peers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

import trio

from gossamer.protocol import limits
from gossamer.protocol.ids import PeerId
from gossamer.protocol.policy.statement_store import StatementStore
from gossamer.protocol.wire.statements import TAG_BYTES, Signed

DROPPED_SECONDS = 5.0
"""Time for which this node does not take again what it dropped at a new head. Others drop it when
they get there; meanwhile they would send back a whole round's statements, the roster among them."""

REFUSED_SECONDS = 10.0
"""Time for which this node does not take again what it refused. It may well take it later, as it
takes a roster once it is connected to more of its members, and most rounds last longer than this.
There is a comparison each second, so what is refused for good costs a tenth of what it would."""

REFUSED_MAX = 1024
"""Refused statements that are named: 8 KiB of each request. The oldest are forgotten first."""

REFUSED_FREE_BYTES = 8 * limits.KIB
"""Bytes of refused statements of one comparison that the next one may bring again, the smallest
first. A few statements may come before their author is known or let in here, and matter within
seconds. So little costs nobody much."""


class _Refused(NamedTuple):
    until_seconds: float
    """Local time."""
    far_author: PeerId | None
    """The author, if it had no connection to this node. What it says counts as soon as it has."""


class Unwanted:
    """The statements of one node that others are not to send."""

    def __init__(self, store: StatementStore, connected: Callable[[], Collection[PeerId]]) -> None:
        """`connected`: the peers that have a connection to this node."""
        self._store = store
        self._connected = connected
        self._dropped: dict[bytes, float] = {}
        """Tags of statements that were dropped lately, and the local time until which they count.
        The oldest first."""
        self._refused: dict[bytes, _Refused] = {}
        """By tag, the oldest first."""

    def note_refused(self, statements: Iterable[Signed]) -> None:
        """One comparison brought these statements, and this node did not take them."""
        connected = {*self._connected()}
        until_seconds = trio.current_time() + REFUSED_SECONDS
        num_bytes = 0
        for signed in sorted(statements, key=_bytes_of):
            num_bytes += _bytes_of(signed)
            if num_bytes <= REFUSED_FREE_BYTES:
                continue
            author, tag = PeerId(signed.author), signed.digest[:TAG_BYTES]
            self._refused.pop(tag, None)
            self._refused[tag] = _Refused(until_seconds, None if author in connected else author)
        for tag in list(self._refused)[:-REFUSED_MAX]:
            del self._refused[tag]

    def tags(self) -> list[bytes]:
        """Returns the tags of what is not to be sent now."""
        now, connected = trio.current_time(), {*self._connected()}
        for tag in self._store.take_dropped():
            self._dropped.pop(tag, None)
            self._dropped[tag] = now + DROPPED_SECONDS
        self._dropped = {tag: until for tag, until in self._dropped.items() if until > now}
        self._refused = {
            tag: refused
            for tag, refused in self._refused.items()
            if refused.until_seconds > now and refused.far_author not in connected
        }
        return [*self._dropped, *self._refused]


def _bytes_of(signed: Signed) -> int:
    return len(signed.author) + len(signed.payload) + len(signed.signature)
