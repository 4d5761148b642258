"""The messages of a trainer's first process and those of its further devices.

They go over the stdin and stdout of these processes:

    4 bytes   length of the message, big-endian
    ...       one tagged struct of this module, as msgpack

The first process (rank 0) starts one more for each further device, a follower. Order of a life:
Start -> Started, Connect -> Connected, then any number of
`Take -> Advanced, Advanced, ... Taken, Add` and of Limits. A follower that cannot go on says Failed
and ends. The end of its stdin ends it at once.
With Connect, after Take and with Add all of them enter a collective of `group`, and at no other
time: so none waits in one for another that is still at work.
"""

from __future__ import annotations

import struct
from typing import IO

import msgspec

from gossamer.protocol.limits import MIB
from gossamer.protocol.model_config import ModelConfig
from gossamer.trainer.ipc.choices import CompileChoice
from gossamer.trainer.ipc.messages import Limits

MESSAGE_BYTES_MAX = 256 * MIB
"""Of a frame. Take has 4 bytes for each token of a step: 64 million are hours of work."""

_LENGTH = struct.Struct(">I")


class Start(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """The order to train, and where; answered with Started."""

    rank: int
    num_ranks: int
    device: str
    """One device, in torch's words."""
    store_path: str
    """File by which the processes find each other."""
    model: ModelConfig
    sequences_per_step: int
    micro_batch: int
    """The owner's choice, see `Passes`."""
    compiling: CompileChoice
    """The owner's choice, see `Compiler`."""
    passes_path: str
    """File that keeps the size of a pass; empty for none."""
    frozen_paths: tuple[str, ...]
    limits: Limits
    is_confined: bool
    """Whether the network is given up once the processes are connected."""


class Connect(msgspec.Struct, frozen=True, tag="connect"):
    """All processes are there and connect now."""


class Take(msgspec.Struct, frozen=True, kw_only=True, tag="take"):
    """Get the parameters, and take the gradient of these sequences."""

    targets: int
    """Of the whole step, by which losses are divided."""
    num_sequences: int
    tokens: bytes
    """(num_sequences, context + 1) little-endian 32-bit tokens, some with `PROMPT_BIT`."""


class Add(msgspec.Struct, frozen=True, tag="add"):
    """All gradients are taken: add them up."""


class Started(msgspec.Struct, frozen=True, tag="started"):
    """torch is loaded and the device is there."""


class Connected(msgspec.Struct, frozen=True, tag="connected"):
    """The follower is connected, and gave up the network where it was told to."""

    problem: str = ""
    """What the system refused to take from it, for people."""


class Advanced(msgspec.Struct, frozen=True, tag="advanced"):
    """A piece of work is done."""


class Taken(msgspec.Struct, frozen=True, kw_only=True, tag="taken"):
    """The gradient of the sequences is taken."""

    loss: float
    """Their part of the step's mean, in nats."""
    seconds: float


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The follower cannot go on; the text says why, for people."""

    reason: str


ToFollower = Start | Connect | Take | Add | Limits
FromFollower = Started | Connected | Advanced | Taken | Failed

to_follower: msgspec.msgpack.Decoder[ToFollower] = msgspec.msgpack.Decoder(ToFollower)
from_follower: msgspec.msgpack.Decoder[FromFollower] = msgspec.msgpack.Decoder(FromFollower)


def write(stream: IO[bytes], message: ToFollower | FromFollower) -> None:
    """Writes the frame of a message.

    Raises:
        ValueError: longer than `MESSAGE_BYTES_MAX`, or the stream is closed.
        OSError: the other side is gone.
    """
    body = msgspec.msgpack.encode(message)
    if len(body) > MESSAGE_BYTES_MAX:
        raise ValueError(f"a message of {len(body)} bytes; {MESSAGE_BYTES_MAX} is the limit")
    stream.write(_LENGTH.pack(len(body)))
    stream.write(body)
    stream.flush()


def read(stream: IO[bytes]) -> bytes | None:
    """The body of the next frame; None at the end of the stream, also inside of a frame.

    Raises:
        ValueError: longer than `MESSAGE_BYTES_MAX`.
    """
    prefix = stream.read(_LENGTH.size)
    if len(prefix) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(prefix)
    if length > MESSAGE_BYTES_MAX:
        raise ValueError(f"a message of {length} bytes; {MESSAGE_BYTES_MAX} is the limit")
    body = stream.read(length)
    return body if len(body) == length else None
