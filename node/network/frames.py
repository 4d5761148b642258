"""The whole I/O bridge between frames and streams: three small functions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from gossamer.node.network.transport import Stream, Transport
from gossamer.protocol import limits
from gossamer.protocol.ids import PeerId
from gossamer.protocol.wire import framing

PIECE_BYTES = 256 * 1024
"""A tenth of a second on a line of 20 Mbit/s, and copied in a fraction of a millisecond."""


async def send_frame(
    stream: Stream, message: bytes, *payload: bytes | bytearray | memoryview
) -> None:
    """Sends one frame. Cancelled or failed midway, the stream is reset (see `Stream.send`)."""
    payload_bytes = sum(memoryview(part).nbytes for part in payload)
    await stream.send(framing.encode_prefix(len(message), payload_bytes) + message, *payload)


async def receive_frame(
    stream: Stream,
    *,
    message_bytes_max: int = limits.FRAME_MESSAGE_BYTES_MAX,
    payload_bytes_max: int = limits.BLOCK_BYTES_MAX,
    on_progress: Callable[[int], Awaitable[None]] | None = None,
) -> tuple[bytearray, bytearray]:
    """(message, payload) of the next frame.

    A protocol that expects less than the general limits says so in the two arguments.
    `on_progress` is called with the number of payload bytes so far, in between.

    Raises:
        StreamClosed: the stream ended.
        OversizedError: the frame announces more than the limits allow; nothing of it was read.
    """
    prefix = await stream.receive_exactly(framing.PREFIX_BYTES)
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
        stream = await transport.open_stream(peer, protocol)
        try:
            await send_frame(stream, request)
            message, _ = await receive_frame(stream, payload_bytes_max=0)
        finally:
            with trio.CancelScope(shield=True):
                await stream.reset()
    return message
