"""Streams and connections of `tests.support.memory_transport`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from gossamer.node.network.transport import Bytes, StreamClosed
from gossamer.protocol.ids import PeerId

if TYPE_CHECKING:
    from tests.support.memory_peer import MemoryPeer

WINDOW_BYTES = 1024 * 1024  # the real transport's first window
PIECE_BYTES = 64 * 1024  # so that small messages get in between, as frames do


class MemoryConnection:
    """The state that two peers share while they are connected."""

    def __init__(
        self, first: MemoryPeer, second: MemoryPeer, relay: MemoryPeer | None = None
    ) -> None:
        """`relay` carries the connection, if no dial brings the two together."""
        self.relay = relay
        if relay is not None:
            relay.carried.append(self)
        self.ends = {first.peer_id: first, second.peer_id: second}
        self.streams: list[MemoryStream] = []
        self.closed = False
        first.connections[second.peer_id] = self
        second.connections[first.peer_id] = self
        first.peers_changed()
        second.peers_changed()
        first.tell_retained(second)
        second.tell_retained(first)

    def end(self, reason: str) -> None:
        """End it on both sides."""
        if self.closed:
            return
        self.closed = True
        (first, one), (second, other) = self.ends.items()
        for peer_id, transport in ((first, other), (second, one)):
            if transport.connections.get(peer_id) is self:
                del transport.connections[peer_id]
                transport.peers_changed()
        for stream in self.streams:
            stream.break_off(reason)
        self.streams.clear()
        if self.relay is not None:
            self.relay.carried.remove(self)
        for relay, gone in ((one, second), (other, first)):
            for circuit in relay.carried.copy():
                if gone in circuit.ends:
                    circuit.end("the relay lost it")


class MemoryStream:
    """One end of a stream."""

    def __init__(
        self, owner: MemoryPeer, connection: MemoryConnection, peer_id: PeerId, protocol: str
    ) -> None:
        self.owner = owner
        self._connection = connection
        self._peer_id = peer_id
        self._protocol = protocol
        self.other: MemoryStream | None = None
        self._pieces: deque[memoryview] = deque()
        self._consumed = 0  # bytes that we read and have not given back as window
        self._under_way = 0  # bytes that we sent and have no window back for
        self._waiting: list[trio.Event] = []
        self._broken: str | None = None
        self._ended = False  # the other side has closed
        self._closed = False  # we have closed
        connection.streams.append(self)

    @property
    def peer_id(self) -> PeerId:
        """The other side."""
        return self._peer_id

    @property
    def protocol(self) -> str:
        """The protocol."""
        return self._protocol

    async def send(self, *parts: Bytes) -> None:
        """See `Stream.send`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            for part in parts:
                view = memoryview(part).cast("B")
                for start in range(0, len(view), PIECE_BYTES):
                    await self._send_piece(memoryview(bytes(view[start : start + PIECE_BYTES])))
        except trio.Cancelled:
            self.reset_now()
            raise

    async def _send_piece(self, piece: memoryview) -> None:
        while True:
            self._check_usable()
            if self._under_way + len(piece) <= WINDOW_BYTES:
                break
            await self.wait_for_change()
        self._under_way += len(piece)
        self.owner.count(self._protocol, sent=len(piece))
        left_at = self._post(lambda: self._reach(lambda other: other.arrive(piece)), len(piece))
        if left_at > trio.current_time():
            await trio.sleep_until(left_at)
        else:  # the same turn of the event loop, without a timer
            await trio.lowlevel.checkpoint()
        self._check_usable()

    async def receive_exactly(self, num_bytes: int) -> bytearray:
        """See `Stream.receive_exactly`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        result = bytearray()
        try:
            while len(result) < num_bytes:
                if self._pieces:
                    piece = self._pieces.popleft()
                    take = num_bytes - len(result)
                    result += piece[:take]
                    if len(piece) > take:
                        self._pieces.appendleft(piece[take:])
                    self._give_credit(min(take, len(piece)))
                elif self._broken or self._ended or self._closed:
                    raise self._gone(self._broken or "the peer has closed the stream")
                else:
                    await self.wait_for_change()
        except BaseException:
            if result:
                self._pieces.appendleft(memoryview(result))
            raise
        return result

    def _give_credit(self, num_bytes: int) -> None:
        self._consumed += num_bytes
        if self._consumed < WINDOW_BYTES // 4:  # not one event for each small read
            return
        num_bytes, self._consumed = self._consumed, 0
        other = self.other
        assert other is not None

        def credit() -> None:
            other._under_way -= num_bytes
            other.wake()

        self._post(credit)

    def _reach(self, effect: Callable[[MemoryStream], None]) -> None:
        """Something has come to the other end, if the peer has taken the stream."""
        if self.other is not None:
            effect(self.other)

    def arrive(self, piece: memoryview) -> None:
        """Bytes reach this end."""
        if self._broken is None:
            self.owner.count(self._protocol, received=len(piece))
            if self._closed:
                self.reset_now()  # no task reads this any more: the peer should stop sending
                return
            self._pieces.append(piece)
            self.wake()

    async def close(self) -> None:
        """See `Stream.close`."""
        await trio.lowlevel.checkpoint()
        if not self._closed and self._broken is None:
            self._closed = True
            self._post(lambda: self._reach(MemoryStream.end))
        self._pieces.clear()
        self.wake()

    def end(self) -> None:
        """The other side has closed."""
        self._ended = True
        self.wake()

    async def reset(self) -> None:
        """See `Stream.reset`."""
        self.reset_now()

    def reset_now(self) -> None:
        """`reset` for places that cannot wait."""
        if self._broken is None:
            self.break_off("reset here")
            self._post(lambda: self._reach(lambda other: other.break_off("reset by the peer")))

    def break_off(self, reason: str) -> None:
        """End both directions of this end. What has arrived stays readable."""
        if self._broken is None:
            self._broken = reason
            self.wake()

    @property
    def broken(self) -> bool:
        """Returns whether the stream was reset or its connection ended."""
        return self._broken is not None

    def wake(self) -> None:
        """Let the waiting tasks look again."""
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            event.set()

    async def wait_for_change(self) -> None:
        """Wait for the next `wake`."""
        event = trio.Event()
        self._waiting.append(event)
        await event.wait()

    def _post(self, action: Callable[[], None], num_bytes: int = 0) -> float:
        if self._connection.closed:
            return trio.current_time()
        return self.owner.network.post(self.owner.peer_id, self._peer_id, action, num_bytes)

    def _check_usable(self) -> None:
        if self._broken is not None:
            raise self._gone(self._broken)
        if self._closed:
            raise self._gone("closed here")

    def _gone(self, reason: str) -> StreamClosed:
        return StreamClosed(f"{self._protocol} with {self._peer_id}: {reason}")
