"""The signs of life of the peer at the other end of one connection, and its round trip."""

from __future__ import annotations

import math
from collections.abc import Callable

import trio
from libp2p.peer.id import ID

from gossamer.node.network.over_libp2p.liveness import Liveness
from gossamer.node.network.pings import Ping, Pings

# Less than this is an error of rounding in a difference of times, and no time to wait.
ROUNDING_SECONDS = 1e-6


class SignsOfLife:
    """The signs of life of one peer, and the questions whose answers are waited for."""

    def __init__(
        self,
        send: Callable[[int], None],
        liveness: Liveness | None,
        peer_id: ID,
    ) -> None:
        """
        Args:
            send: sends the peer a question with this number, which the answer repeats.
            liveness: says when the peer is to be asked. None: never.
        """
        self._send = send
        self._liveness = liveness
        self._peer_id = peer_id
        self._pings = Pings()
        self.heard_seconds = 0.0
        """Time at which anything last came (local clock)."""
        self.rtt_seconds = 0.0
        """The newest round trip, 0 before the first answer."""

    def ask_at(self, *, was_dialled: bool) -> float:
        """Returns the local time at which the peer is to be asked for a sign of life.

        Args:
            was_dialled: whether this node dialled the connection.
        """
        if self._liveness is None:
            return math.inf
        asked = self._pings.sent_at
        silence = self._liveness.ask_after_seconds(self._peer_id, was_dialled=was_dialled)
        measure_seconds = asked + self._liveness.measure_after_seconds(self._peer_id)
        return min(max(self.heard_seconds, asked) + silence, measure_seconds)

    def ask(self) -> Ping:
        """Asks the peer. Returns the ping whose answer is waited for."""
        ping, is_new = self._pings.new(trio.current_time())
        if is_new:
            self._send(ping.number)
        return ping

    def answered(self, number: int) -> None:
        """The peer has answered the question with this number, if there is one."""
        if (rtt_seconds := self._pings.answered(number, trio.current_time())) is not None:
            self.rtt_seconds = rtt_seconds

    async def answers_within(self, seconds: float) -> bool:
        """Returns whether the peer answers a ping in time, so that the connection is alive.

        A time in which this process stood still does not count: the answer may wait to be read.
        """
        ping, asked_seconds, left = self.ask(), trio.current_time(), seconds
        while left > ROUNDING_SECONDS:
            with trio.move_on_after(left):
                await ping.answered.wait()
                return True
            left = seconds - self._awake_since(asked_seconds)
        return False

    def _awake_since(self, seconds: float) -> float:
        """Seconds since a local time for which this process has run."""
        if self._liveness is None:
            return trio.current_time() - seconds
        return self._liveness.awake_since(seconds)
