"""The messages of a trainer's first process and those of its further devices.

They go over the stdin and stdout of these processes in frames (`ipc.pipe`), each with one tagged
struct of this module as msgpack.

The first process (rank 0) starts one more for each further device, a follower. Order of a life:
Start -> Started, Connect -> Connected, then any number of
`Take -> Advanced, Advanced, ... Taken, Add` and of Limits. A follower that cannot go on says Failed
and ends. The end of its stdin ends it at once. All of them enter a collective of `group` with
Connect, after Take and with Add: so none waits in one for another that is still at work.
"""

from __future__ import annotations

from typing import IO

import msgspec

from gossamer.protocol.limits import MIB
from gossamer.trainer.ipc import pipe
from gossamer.trainer.ipc.messages import Configure, Limits

MESSAGE_BYTES_MAX = 256 * MIB
"""Of a frame. Take has 4 bytes for each token of a step: 64 million are hours of work."""


class Start(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """The order to train, and where; answered with Started."""

    rank: int
    num_ranks: int
    store_path: str
    """File by which the processes find each other."""
    configure: Configure
    """What is trained, with one device alone and its part of the limits."""
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
    """Writes a message. Errors as `pipe.write`."""
    pipe.write(stream, msgspec.msgpack.encode(message), MESSAGE_BYTES_MAX)


def read(stream: IO[bytes]) -> bytes | None:
    """The next message as msgpack; None at the end. Errors as `pipe.read`."""
    return pipe.read(stream, MESSAGE_BYTES_MAX)
