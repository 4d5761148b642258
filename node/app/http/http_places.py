"""The connections that one HTTP server has open at once, and how long each lasts.

Symptoms
--------
- Hypercorn takes as many as come. Each takes a file descriptor for 15 s, also if its client says
  nothing. A process has 1,024 of them by default, and a daemon that has none left can read neither
  blocks nor its own processes: 1,000 silent connections to the status page ended it.
- Hypercorn keeps the task of a connection for its whole idle time, 15 s, also when its client has
  gone. Clients that came and went made a daemon grow by some 13 kB each.
- Hypercorn waits without an end for a client that reads some bytes of its answer now and then. Of
  200 such clients 128 had all connections.
"""

from __future__ import annotations

from contextlib import suppress

import hypercorn.trio.run
import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.trio.tcp_server import TCPServer

CONNECTIONS_MAX = 128
"""A browser opens six, and monitoring one or two. With the connections of peers and the blocks that
are served to them a daemon stays below 1,024 file descriptors."""

SENT_SECONDS_MAX = 10.0
READ_BYTES_PER_SECOND_MIN = 32_768
"""Longest wait for a client that takes a piece of an answer: so long, and longer for a large piece.
The page has some 60 KB, so a browser behind a line of 0.1 Mbit/s gets it."""

_GONE = (trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError)
"""Errors of a send to a client that has gone, or whose connection another task is closing.
Hypercorn does not expect the last one, which ended the whole server."""


class PlacedConfig(Config):
    """The configuration of one server, with its places."""

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[_PlacedServer, None] = {}
        """The open connections, in the order in which they began to wait for a request or to answer
        one."""


class _PlacedServer(TCPServer):
    """One connection, in the place of one that waits for a request for the longest if all are
    taken.

    A request that is being answered keeps its place. Where all are, the newcomer is turned away.
    """

    config: PlacedConfig
    is_asked = False
    """Whether a whole request has come that is not answered yet."""
    _has_gone = False
    """Whether nothing more comes of the client."""

    async def run(self) -> None:
        """Serves the connection until it ends."""
        places = self.config.places
        if len(places) >= CONNECTIONS_MAX:
            waiting = next((each for each in places if not each.is_asked), None)
            if waiting is None:
                _socket_of(self).close()
                return
            del places[waiting]
            # Its tasks find it closed wherever they are, also in a send that cannot be cancelled.
            _socket_of(waiting).close()
        places[self] = None
        try:
            await super().run()
        finally:
            places.pop(self, None)

    async def protocol_send(self, event: Event) -> None:
        """Sends, and notes whether the connection waits for a request."""
        if isinstance(event, RawData):
            await self._send(event.data)
            return
        if isinstance(event, Updated):
            if self in self.config.places:
                self.is_asked = not event.idle
                del self.config.places[self]
                self.config.places[self] = None
            if self._has_gone:
                return  # there is nothing to wait for
        await super().protocol_send(event)

    async def _send(self, data: bytes) -> None:
        seconds = SENT_SECONDS_MAX + len(data) / READ_BYTES_PER_SECOND_MIN
        async with self.send_lock:
            with suppress(*_GONE):
                with trio.move_on_after(seconds) as scope:
                    scope.shield = True
                    await self.stream.send_all(data)
                    return
            _socket_of(self).close()
            await self.protocol.handle(Closed())

    async def _read_data(self) -> None:
        await super()._read_data()
        self._has_gone = True
        await self.idle_task.stop()


def _socket_of(connection: TCPServer) -> trio.socket.SocketType:
    stream = connection.stream
    assert isinstance(stream, trio.SocketStream), "these servers speak no TLS"
    return stream.socket


# The class that Hypercorn takes for each new connection (tested over a socket).
hypercorn.trio.run.TCPServer = _PlacedServer  # type: ignore[attr-defined]
