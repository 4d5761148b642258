"""Frames on a stream: a bounded message and bounded bulk bytes behind it.

    4 bytes   length of the message, big-endian
    4 bytes   length of the payload, big-endian
    ...       message (msgpack)
    ...       payload (raw)

Both lengths are checked before anything is read into memory.
"""

from __future__ import annotations

import struct

from gossamer.protocol import limits
from gossamer.protocol.errors import OversizedError

_LENGTHS = struct.Struct(">II")
PREFIX_BYTES = _LENGTHS.size


def encode_prefix(message_bytes: int, payload_bytes: int) -> bytes:
    """Returns the eight bytes before a frame. A frame over the limits is our own mistake
    (ValueError)."""
    if message_bytes > limits.FRAME_MESSAGE_BYTES_MAX or payload_bytes > limits.BLOCK_BYTES_MAX:
        raise ValueError(f"frame of {message_bytes} + {payload_bytes} bytes is over the limits")
    return _LENGTHS.pack(message_bytes, payload_bytes)


def decode_prefix(
    prefix: bytes | bytearray,
    *,
    message_bytes_max: int = limits.FRAME_MESSAGE_BYTES_MAX,
    payload_bytes_max: int = limits.BLOCK_BYTES_MAX,
) -> tuple[int, int]:
    """(message bytes, payload bytes) that follow.

    A protocol that expects less than the general limits says so in the two arguments.

    Raises:
        OversizedError: more than `message_bytes_max` or `payload_bytes_max`.
    """
    message_bytes, payload_bytes = _LENGTHS.unpack(prefix)
    if message_bytes > message_bytes_max:
        raise OversizedError(f"message of {message_bytes} bytes in a frame")
    if payload_bytes > payload_bytes_max:
        raise OversizedError(f"payload of {payload_bytes} bytes in a frame")
    return message_bytes, payload_bytes
