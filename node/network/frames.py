"""The whole I/O bridge between frames and streams: two small functions."""

from __future__ import annotations

from gossamer.node.network.transport import Stream
from gossamer.protocol import framing, limits


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
) -> tuple[bytearray, bytearray]:
    """(message, payload) of the next frame.

    A protocol that expects less than the general limits says so in the two arguments.

    Raises:
        StreamClosed: the stream ended.
        OversizedError: the frame announces more than the limits allow; nothing of it was read.
    """
    prefix = await stream.receive_exactly(framing.PREFIX_BYTES)
    message_bytes, payload_bytes = framing.decode_prefix(
        prefix, message_bytes_max=message_bytes_max, payload_bytes_max=payload_bytes_max
    )
    message = await stream.receive_exactly(message_bytes)
    payload = await stream.receive_exactly(payload_bytes) if payload_bytes else bytearray()
    return message, payload
