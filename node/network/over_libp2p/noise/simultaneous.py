"""The noise handshake of two ends that have both dialled.

When two peers dial each other from their listening ports at the same time, TCP makes one connection
of the two dials (simultaneous open, RFC 9293, section 3.5), and both ends begin the handshake as
its initiator. That is how two peers behind routers reach each other, and it also happens by chance
between neighbours. Each end notices: where the answer of a responder has some 200 bytes, the first
message of an initiator is a bare key of 32 bytes. The end with the smaller key becomes the
responder of the other one's message; the other end goes on.
"""

from __future__ import annotations

from typing import Any

from libp2p.abc import IRawConnection

from gossamer.node.network.over_libp2p.delimited import read_exactly

_LENGTH_BYTES = 2
KEY_BYTES = 32
"""The first message of the XX pattern: an ephemeral X25519 key (Noise specification, 7.5)."""

ANSWER_BYTES_MAX = 8192
"""The longest second message: two keys, a signature, and extensions of a few names."""


class SimultaneousOpen(Exception):
    """Both ends began the handshake, and this one has to be the responder."""

    def __init__(self, message: bytes) -> None:
        super().__init__("both ends began the handshake")
        self.message = message
        """The other end's first message, with its length."""


class Replayed:
    """A raw connection on which bytes that were read already are read first."""

    is_initiator = False

    def __init__(self, conn: IRawConnection, first: bytes = b"") -> None:
        self.conn = conn
        self._first = first

    async def read(self, n: int | None = None) -> bytes:
        if not self._first:
            return await self.conn.read(n)
        taken, self._first = self._first[:n], self._first[n:] if n is not None else b""
        return taken

    async def write(self, data: bytes) -> None:
        await self.conn.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.conn, name)


class FirstAnswer(Replayed):
    """A raw connection that looks at the first message that comes in answer to this end's first.

    It ends with the handshake: what follows reads from the socket.
    """

    is_initiator = True
    _mine: bytes | None = None
    _has_looked = False

    async def write(self, data: bytes) -> None:
        """See `IRawConnection`; the first message is remembered."""
        if self._mine is None:
            self._mine = data[-KEY_BYTES:]
        await super().write(data)

    async def read(self, n: int | None = None) -> bytes:
        """See `IRawConnection`.

        Raises:
            SimultaneousOpen: the other end began as well, and this one is the responder.
        """
        if not self._has_looked:
            self._has_looked = True
            answer = await self._message()
            if len(answer) == _LENGTH_BYTES + KEY_BYTES:
                if self._mine is None or self._mine < answer[_LENGTH_BYTES:]:
                    raise SimultaneousOpen(answer)
                answer = await self._message()
            self._first = answer
        return await super().read(n)

    async def _message(self) -> bytes:
        length = await read_exactly(self.conn, _LENGTH_BYTES, "the handshake")
        size = int.from_bytes(length, "big")
        if size > ANSWER_BYTES_MAX:
            raise ValueError(f"a handshake message of {size} bytes")
        return length + await read_exactly(self.conn, size, "the handshake")
