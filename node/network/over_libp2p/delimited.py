"""Messages of libp2p's own protocols: a length, and so many bytes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from libp2p.io.abc import Reader
from libp2p.io.exceptions import ConnectionClosedError

from gossamer.protocol.errors import OversizedError

_LENGTH_BYTES_MAX = 3
"""Bytes of the varint of a length. It says 2 MiB at most, twice the longest message here."""


async def read_delimited(
    receive: Callable[[int], Awaitable[bytes | bytearray]], bytes_max: int, what: str
) -> bytes:
    """The next message.

    Args:
        receive: receives exactly so many bytes. What it raises goes through.
        what: is read, for the error.

    Raises:
        OversizedError: it is longer than `bytes_max`; nothing of it was read.
    """
    size = shift = 0
    while True:
        (byte,) = await receive(1)
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80 and size <= bytes_max:
            return bytes(await receive(size))
        if byte < 0x80 or shift == 7 * _LENGTH_BYTES_MAX:
            raise OversizedError(f"{what} of {size} bytes or more")


async def read_exactly(reader: Reader, num_bytes: int, what: str) -> bytes:
    """So many bytes, from what gives fewer at a time.

    py-libp2p's function of this name gives up after a hundred small reads.

    Args:
        what: is read, for the error.

    Raises:
        ConnectionClosedError: the other end hung up before.
    """
    data = b""
    while len(data) < num_bytes:
        more = await reader.read(num_bytes - len(data))
        if not more:
            raise ConnectionClosedError(f"the other end hung up in {what}")
        data += more
    return data
