"""The messages of daemon and worker as bytes: a frame (`pipe`) with msgpack in it."""

from __future__ import annotations

import msgspec

from gossamer.protocol.model_config import ModelConfig
from gossamer.protocol.state.shared_step import step_codec
from gossamer.trainer.ipc.messages import FromWorker, SharedSteps, ToWorker
from gossamer.trainer.ipc.pipe import LENGTH_BYTES, MessageError, decode_length, frame

MESSAGE_BYTES_MAX = 4 * 1024 * 1024
"""Bound on a message without what a run's shared steps add. The largest are Evaluate and Finished,
with some thousand short entries. Anything longer is not ours."""

_encoder = msgspec.msgpack.Encoder()
_to_worker: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
_from_worker: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)


def bytes_max_of(model: ModelConfig, steps: SharedSteps | None) -> int:
    """Returns the bound on a worker's messages in a run.

    With shared steps a message may have besides what a peer has for one step: the chunks of a step
    travel the ring one by one, but leave the worker together.

    Args:
        steps: how the shared steps are made; None in a run without them.
    """
    if steps is None:
        return MESSAGE_BYTES_MAX
    coder = step_codec(model, steps.top_k, steps.chunks)
    return MESSAGE_BYTES_MAX + coder.encoded_bytes


def encode(message: ToWorker | FromWorker, bytes_max: int = MESSAGE_BYTES_MAX) -> bytes:
    """The whole frame of a message. Raises MessageError: longer than `bytes_max`."""
    return frame(_encoder.encode(message), bytes_max, type(message).__name__)


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

    def __init__(self, bytes_max: int = MESSAGE_BYTES_MAX) -> None:
        """`bytes_max`: bound on a message."""
        self._bytes_max = bytes_max
        self._buffer = bytearray()

    def feed(self, data: bytes | bytearray) -> list[bytes]:
        """Bodies that are complete now.

        Raises:
            MessageError: a length over the limit; the stream is of no use afterwards.
        """
        self._buffer += data
        bodies = []
        while len(self._buffer) >= LENGTH_BYTES:
            end = LENGTH_BYTES + decode_length(self._buffer[:LENGTH_BYTES], self._bytes_max)
            if len(self._buffer) < end:
                break
            bodies.append(bytes(self._buffer[LENGTH_BYTES:end]))
            del self._buffer[:end]
        return bodies
