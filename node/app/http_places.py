"""The connections that one HTTP server has open at once.

Symptom: Hypercorn takes as many as come. Each takes a file descriptor for 15 s, also if its client
says nothing. A process has 1,024 of them by default, and a daemon that has none left can read
neither blocks nor its own processes: 1,000 silent connections to the status page ended it.
"""

from __future__ import annotations

import hypercorn.trio.run
import trio
from hypercorn.config import Config
from hypercorn.events import Event, Updated
from hypercorn.trio.tcp_server import TCPServer

CONNECTIONS_MAX = 128
"""A browser opens six, and monitoring one or two. With the connections of peers and the blocks that
are served to them a daemon stays below 1,024 file descriptors."""


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
        if isinstance(event, Updated) and self in self.config.places:
            self.is_asked = not event.idle
            del self.config.places[self]
            self.config.places[self] = None
        await super().protocol_send(event)


def _socket_of(connection: TCPServer) -> trio.socket.SocketType:
    stream = connection.stream
    assert isinstance(stream, trio.SocketStream), "these servers speak no TLS"
    return stream.socket


# The class that Hypercorn takes for each new connection (tested over a socket).
hypercorn.trio.run.TCPServer = _PlacedServer  # type: ignore[attr-defined]
