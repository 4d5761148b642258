"""The whole I/O bridge between frames and streams."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from gossamer.node.network.transport import OffenceHandler, Stream, Transport
from gossamer.protocol import limits
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import PeerId
from gossamer.protocol.wire import framing

PIECE_BYTES = 256 * 1024
"""A tenth of a second on a line of 20 Mbit/s, and copied in a fraction of a millisecond."""

COPIED_BYTES_MAX = 16 * 1024
"""Length of a message that is copied behind its prefix. A copy of a longer one would stay in memory
beside it for as long as the reader takes."""


async def send_frame(
    stream: Stream, message: bytes, *payload: bytes | bytearray | memoryview
) -> None:
    """Sends one frame. Cancelled or failed midway, the stream is reset (see `Stream.send`)."""
    payload_bytes = sum(memoryview(part).nbytes for part in payload)
    prefix = framing.encode_prefix(len(message), payload_bytes)
    if len(message) > COPIED_BYTES_MAX:
        await stream.send(prefix, message, *payload)
    else:
        await stream.send(prefix + message, *payload)


async def receive_frame(
    stream: Stream,
    *,
    message_bytes_max: int = limits.FRAME_MESSAGE_BYTES_MAX,
    payload_bytes_max: int = limits.BLOCK_BYTES_MAX,
    on_progress: Callable[[int], Awaitable[None]] | None = None,
    on_begun: Callable[[], None] | None = None,
) -> tuple[bytearray, bytearray]:
    """(message, payload) of the next frame.

    A protocol that expects less than the general limits says so in the two arguments.
    `on_progress` is called with the number of payload bytes so far, in between, and `on_begun` when
    the first bytes of the frame are here.

    Raises:
        StreamClosed: the stream ended.
        OversizedError: the frame announces more than the limits allow; nothing of it was read.
    """
    prefix = await stream.receive_exactly(framing.PREFIX_BYTES)
    if on_begun is not None:
        on_begun()
    message_bytes, payload_bytes = framing.decode_prefix(
        prefix, message_bytes_max=message_bytes_max, payload_bytes_max=payload_bytes_max
    )
    message = await stream.receive_exactly(message_bytes)
    if on_progress is None or payload_bytes <= PIECE_BYTES:
        payload = await stream.receive_exactly(payload_bytes) if payload_bytes else bytearray()
        return message, payload
    payload = bytearray(payload_bytes)
    for start in range(0, payload_bytes, PIECE_BYTES):
        if start:
            await on_progress(start)
        stop = min(start + PIECE_BYTES, payload_bytes)
        payload[start:stop] = await stream.receive_exactly(stop - start)
    return message, payload


async def receive_message(
    stream: Stream, bytes_max: int = limits.FRAME_MESSAGE_BYTES_MAX
) -> bytearray:
    """The message of the next frame, which has no payload. Raises as `receive_frame`."""
    message, _ = await receive_frame(stream, message_bytes_max=bytes_max, payload_bytes_max=0)
    return message


@asynccontextmanager
async def asked(
    transport: Transport,
    peer: PeerId,
    protocol: str,
    request: bytes,
    *payload: bytes | bytearray | memoryview,
    at_once: bool = False,
) -> AsyncIterator[Stream]:
    """A stream of its own on which a request was sent. It is reset at the end.

    Args:
        at_once: does not wait for the answer to the protocol, see `Transport.open_stream`.

    Raises:
        TransportError: the peer cannot be reached, or the stream ended.
    """
    stream = await transport.open_stream(peer, protocol, at_once=at_once)
    try:
        await send_frame(stream, request, *payload)
        yield stream
    finally:
        with trio.CancelScope(shield=True):
            await stream.reset()


async def ask(
    transport: Transport, peer: PeerId, protocol: str, request: bytes, seconds_max: float
) -> bytearray:
    """Sends a request on a stream of its own. Returns the answer, which has no payload.

    Raises:
        TransportError: the peer cannot be reached, or the stream ended.
        trio.TooSlowError: there is no answer within `seconds_max`.
        OversizedError: the answer is longer than the general limits allow, or has a payload.
    """
    with trio.fail_after(seconds_max):
        async with asked(transport, peer, protocol, request) as stream:
            message = await receive_message(stream)
    return message


@asynccontextmanager
async def answering(
    stream: Stream, seconds_max: float, on_offence: OffenceHandler
) -> AsyncIterator[None]:
    """The block answers what a peer asks on its stream, which is closed at the end. It is reset
    where the peer breaks the protocol, which is its offence, and where the answer takes longer than
    `seconds_max`."""
    with trio.move_on_after(seconds_max):
        try:
            yield
        except RemoteProtocolError as error:
            on_offence(stream.peer_id, error)
        else:
            await stream.close()
            return
    await stream.reset()
