"""Messages as frames of a byte stream: a length, and msgpack behind it."""

from __future__ import annotations

import struct

import msgspec

from gossamer.trainer.ipc.messages import FromWorker, ToWorker

# The largest messages are Shared with its update, which has to fit a block with those of others,
# and Evaluate and Finished with some thousand short entries. Anything longer is not ours.
MESSAGE_BYTES_MAX = 4 * 1024 * 1024

_LENGTH = struct.Struct(">I")
LENGTH_BYTES = _LENGTH.size

_encoder = msgspec.msgpack.Encoder()
_to_worker: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
_from_worker: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)


class MessageError(ValueError):
    """Bytes between daemon and worker that are not a message: a bug, or a broken pipe."""


def encode(message: ToWorker | FromWorker) -> bytes:
    """The whole frame of a message.

    Raises:
        MessageError: longer than `MESSAGE_BYTES_MAX`.
    """
    body = _encoder.encode(message)
    if len(body) > MESSAGE_BYTES_MAX:
        raise MessageError(
            f"{type(message).__name__} of {len(body)} bytes; {MESSAGE_BYTES_MAX} is the limit"
        )
    return _LENGTH.pack(len(body)) + body


def decode_length(prefix: bytes | bytearray | memoryview) -> int:
    """Length of the message behind a prefix of `LENGTH_BYTES`.

    Raises:
        MessageError: longer than `MESSAGE_BYTES_MAX`.
    """
    (length,) = _LENGTH.unpack(prefix)
    if length > MESSAGE_BYTES_MAX:
        raise MessageError(f"message of {length} bytes; {MESSAGE_BYTES_MAX} is the limit")
    return int(length)


def decode_to_worker(body: bytes | bytearray | memoryview) -> ToWorker:
    """Raises MessageError if the bytes are not a message to the worker."""
    try:
        return _to_worker.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MessageError(f"not a message to the trainer: {error}") from error


def decode_from_worker(body: bytes | bytearray | memoryview) -> FromWorker:
    """Raises MessageError if the bytes are not a message from the worker."""
    try:
        return _from_worker.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MessageError(f"not a message from the trainer: {error}") from error


class MessageSplitter:
    """Cuts a byte stream into message bodies. Holds at most one unfinished message."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes | bytearray) -> list[bytes]:
        """Bodies that are complete now.

        Raises:
            MessageError: a length over the limit; the stream is of no use afterwards.
        """
        self._buffer += data
        bodies = []
        while len(self._buffer) >= LENGTH_BYTES:
            end = LENGTH_BYTES + decode_length(self._buffer[:LENGTH_BYTES])
            if len(self._buffer) < end:
                break
            bodies.append(bytes(self._buffer[LENGTH_BYTES:end]))
            del self._buffer[:end]
        return bodies
