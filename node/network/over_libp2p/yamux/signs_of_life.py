"""The signs of life of the peer at the other end of one connection, and its round trip."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import trio
from libp2p.peer.id import ID

from gossamer.node.network.over_libp2p.liveness import Liveness

PINGS_MAX = 64
"""Pings that wait for their answers. A silent peer is asked once a second for the 20 s after which
its connection ends; the rest is for probes at the same time. Further ones share the newest."""

# Less than this is an error of rounding in a difference of times, and no time to wait.
ROUNDING_SECONDS = 1e-6


@dataclass(frozen=True)
class Ping:
    """A ping that was sent and not answered yet."""

    number: int
    """The value that the answer repeats."""
    sent_seconds: float
    """Local clock."""
    answered: trio.Event = field(default_factory=trio.Event)


class SignsOfLife:
    """The signs of life of one peer, and the questions whose answers are waited for. Each question
    has a number and an event of its own, so probes do not disturb each other."""

    def __init__(self, send: Callable[[int], None], liveness: Liveness, peer_id: ID) -> None:
        """
        Args:
            send: sends the peer a question with this number, which the answer repeats.
            liveness: says when the peer is to be asked.
        """
        self._send = send
        self._liveness = liveness
        self._peer_id = peer_id
        self._waiting: deque[Ping] = deque()  # oldest first
        self._number = 0
        self._asked_seconds = 0.0
        """Time of the newest question (local clock)."""
        self.heard_seconds = 0.0
        """Time at which anything last came (local clock)."""
        self.rtt_seconds = 0.0
        """The newest round trip, 0 before the first answer."""

    def ask_at(self, *, was_dialled: bool) -> float:
        """Returns the local time at which the peer is to be asked for a sign of life.

        Args:
            was_dialled: whether this node dialled the connection.
        """
        asked = self._asked_seconds
        silence = self._liveness.ask_after_seconds(self._peer_id, was_dialled=was_dialled)
        measure_seconds = asked + self._liveness.measure_after_seconds(self._peer_id)
        return min(max(self.heard_seconds, asked) + silence, measure_seconds)

    def ask(self) -> Ping:
        """Asks the peer. Returns the ping whose answer is waited for."""
        if len(self._waiting) < PINGS_MAX:
            self._number = (self._number + 1) & 0xFFFFFFFF
            self._asked_seconds = trio.current_time()
            self._waiting.append(Ping(self._number, self._asked_seconds))
            self._send(self._number)
        return self._waiting[-1]

    def answered(self, number: int) -> None:
        """The peer has answered the question with this number, if there is one. That answers the
        earlier ones too: the peer lived after they were sent."""
        if not any(ping.number == number for ping in self._waiting):
            return
        while True:
            ping = self._waiting.popleft()
            ping.answered.set()
            if ping.number == number:
                self.rtt_seconds = trio.current_time() - ping.sent_seconds
                return

    async def answers_within(self, seconds: float) -> bool:
        """Returns whether the peer answers a ping in time, so that the connection is alive.

        A time in which this process stood still does not count: the answer may wait to be read.
        """
        ping, asked_seconds, left = self.ask(), trio.current_time(), seconds
        while left > ROUNDING_SECONDS:
            with trio.move_on_after(left):
                await ping.answered.wait()
                return True
            left = seconds - self._liveness.awake.awake_since(asked_seconds)
        return False
