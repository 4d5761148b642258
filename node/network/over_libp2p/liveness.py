"""Looks after the silence of all connections, in one task.

With a task and a timer for each connection the event loop wakes up for each of them. Here it wakes
up for all that are due in a quarter of a second, and a question is written at once
(`YamuxWriter.add_sign_of_life`).
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Collection
from typing import Protocol

import trio
from libp2p.peer.id import ID

from gossamer.node.base.awake_clock import AwakeClock
from gossamer.node.base.ticks import TICK_SECONDS
from gossamer.node.network.transport import PING_SECONDS

logger = logging.getLogger(__name__)

ASK_SECONDS, ASK_BACK_SECONDS = 5.0, 5.25
"""Silence after which a peer is asked for a sign of life: by the end that dialled, and by the other
end only where that does not do it. So one question serves both ends, which hear something every
five and a half seconds (`transport.PING_SECONDS`)."""

QUESTIONS_PER_SECOND_MAX = 3.0
"""Rate of the questions of a node that is connected to many peers: it asks each of them more seldom
than every `ASK_SECONDS`. Otherwise questions and answers grow with the swarm, and are most of what
a waiting node does (decisions 120 and 127)."""

ASK_SECONDS_MAX = 20.0
"""The longest silence after which a peer is asked, however many there are. A hung process is the
only thing that these questions find, and no ring has it: a ring listens closely to its members."""

RING_ASK_SECONDS, RING_ASK_BACK_SECONDS = 1.5, 1.75
"""The same for a peer that is in a ring with this node: both ends hear something every two seconds
(`transport.RING_PING_SECONDS`)."""

RTT_SECONDS = 60.0
"""A connection on which something comes is still asked this often, to know its round trip."""

RING_RTT_SECONDS = 10.0
"""The same for a peer that is in a ring with this node: its line is in use."""

SILENCE_SECONDS_MAX = 20.0
"""TCP_USER_TIMEOUT notices dead links in 10 s; this notices a stopped or hung process behind a live
kernel, and leaves a machine that swaps for a while its connection. A node that asks more seldom
than every `ASK_SECONDS` waits for as much longer."""

LOOK_SECONDS = TICK_SECONDS
"""Looks happen at multiples of this, so this is how late one is at most."""


class Watched(Protocol):
    """A connection."""

    def look(self, now: float, *, after_stall: bool) -> float:
        """Asks a silent peer for a sign of life, or drops it. Returns when to look again (local
        time). `after_stall`: this process stood still, so what came has yet to be read."""

    def drop(self, reason: str) -> None:
        """Ends the connection."""


class Liveness:
    """The connections that live, and when each is looked at."""

    def __init__(self, awake: AwakeClock) -> None:
        """`awake`: a clock that runs. Without it a stop of this process counts as the silence of
        others."""
        self.awake = awake
        self._look_at: dict[Watched, float] = {}
        self._added = trio.Event()
        self._listened: Counter[ID] = Counter()
        """Peers of which a sign of life is wanted more often, and the number of those who want
        it."""

    def listen(self, peers: Collection[ID]) -> None:
        """Asks these peers more often (`RING_ASK_SECONDS`), from now on and until `end_listening`
        was called as often."""
        self._listened.update(peers)
        for connection in self._look_at:
            self._look_at[connection] = -math.inf
        self._added.set()

    def end_listening(self, peers: Collection[ID]) -> None:
        """Ends what `listen` began with the same peers."""
        self._listened -= Counter(peers)

    def is_listened(self, peer: ID) -> bool:
        """Returns whether a peer is in a ring with this node now: `listen` asks for its signs."""
        return peer in self._listened

    def ask_after_seconds(self, peer: ID, *, was_dialled: bool) -> float:
        """Returns the silence after which a peer is asked for a sign of life.

        Args:
            was_dialled: whether this node dialled the connection.
        """
        if peer in self._listened:
            return RING_ASK_SECONDS if was_dialled else RING_ASK_BACK_SECONDS
        return self._ask_seconds() + (0.0 if was_dialled else ASK_BACK_SECONDS - ASK_SECONDS)

    def measure_after_seconds(self, peer: ID) -> float:
        """Returns the time after a question until the round trip to a peer is measured again."""
        return RING_RTT_SECONDS if peer in self._listened else RTT_SECONDS

    def signs_seconds(self) -> float:
        """Returns the longest time between two signs of life of a peer that is in no ring with this
        node."""
        return self._ask_seconds() + PING_SECONDS - ASK_SECONDS

    def silence_seconds_max(self) -> float:
        """Returns the silence after which a connection is dropped."""
        return SILENCE_SECONDS_MAX + self._ask_seconds() - ASK_SECONDS

    def _ask_seconds(self) -> float:
        return min(ASK_SECONDS_MAX, max(ASK_SECONDS, len(self._look_at) / QUESTIONS_PER_SECOND_MAX))

    def add(self, connection: Watched) -> None:
        """Looks at a connection at once, and from now on."""
        self._look_at[connection] = -math.inf
        self._added.set()

    def remove(self, connection: Watched) -> None:
        """Forgets a connection, if it is there."""
        self._look_at.pop(connection, None)

    async def run(self) -> None:
        """Looks at the connections until cancelled."""
        looked_seconds = trio.current_time()
        while True:
            self._added = trio.Event()
            now = trio.current_time()
            after_stall = bool(self.awake.stalls_since(looked_seconds))
            looked_seconds = now
            for connection in [each for each, at in self._look_at.items() if now >= at]:
                try:
                    self._look_at[connection] = connection.look(now, after_stall=after_stall)
                except Exception:  # a bug here ends one connection and not the node
                    logger.exception("a connection is dropped")
                    connection.drop("an error here")
                    self.remove(connection)
            with trio.move_on_at(_look_after(min(self._look_at.values(), default=math.inf), now)):
                await self._added.wait()


def _look_after(due_seconds: float, now: float) -> float:
    """Returns the first moment for looks at or after the one when something is due, and after
    now."""
    if due_seconds == math.inf:
        return due_seconds
    next_look = math.floor(now / LOOK_SECONDS) + 1
    return max(next_look, math.ceil(due_seconds / LOOK_SECONDS)) * LOOK_SECONDS
