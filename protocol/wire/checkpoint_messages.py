"""The messages of a stream of ``/gossamer/chain-checkpoint/1`` (`policy.heads.chain_checkpoint`).

request: ["path", after round]            reply: signed checkpoints of the serving peer's path after
                                          this round, oldest first, as many as fit
         ["signatures", digest]           reply: the signatures under this checkpoint that it knows
         ["summary", digest]              reply: the summary in bytes; empty without it
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from gossamer.protocol import limits
from gossamer.protocol.decoding import ArrayStruct, decoded, to_msgpack
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import DIGEST_BYTES

CHECKPOINT_PROTOCOL = "/gossamer/chain-checkpoint/1"

CHECKPOINT_REQUEST_BYTES_MAX = 64
"""Bound on a request: a name, a digest or a number, and a few bytes of msgpack."""

PATH_MAX = 64
"""Checkpoints in a path. It grows by one when half of the stake has changed hands since the last
one and no earlier signer is there any more. A run with more keeps its headers from then on."""

PATH_BYTES_MAX = limits.FRAME_MESSAGE_BYTES_MAX // 2
"""Signed checkpoints in one reply: 30 of 64 members. One alone is always below a frame."""


class CheckpointSignature(ArrayStruct, frozen=True):
    """The signature of one member under a checkpoint."""

    author: str
    signature: bytes


class SignedCheckpoint(ArrayStruct, frozen=True):
    """An encoded checkpoint with the signatures under it."""

    checkpoint: bytes
    signatures: tuple[CheckpointSignature, ...]


class PathRequest(ArrayStruct, frozen=True, tag="path"):
    """A question for the checkpoints after a round."""

    after_round: int


class SignaturesRequest(ArrayStruct, frozen=True, tag="signatures"):
    """A question for the signatures under a checkpoint."""

    digest: bytes


class SummaryRequest(ArrayStruct, frozen=True, tag="summary"):
    """A question for the summary with a digest."""

    digest: bytes


CheckpointRequest: TypeAlias = PathRequest | SignaturesRequest | SummaryRequest

_request_decoder: msgspec.msgpack.Decoder[CheckpointRequest] = msgspec.msgpack.Decoder(
    PathRequest | SignaturesRequest | SummaryRequest
)
_path_decoder = msgspec.msgpack.Decoder(list[SignedCheckpoint])
_signatures_decoder = msgspec.msgpack.Decoder(list[CheckpointSignature])
_summary_decoder = msgspec.msgpack.Decoder(bytes)


def decode_checkpoint_request(message: bytes | bytearray) -> CheckpointRequest:
    """A request. Raises MalformedError for anything else."""
    request = decoded(_request_decoder, message, "a request for chain checkpoints")
    if not isinstance(request, PathRequest) and len(request.digest) != DIGEST_BYTES:
        raise MalformedError("request for a chain checkpoint by something that is no digest")
    return request


def encode_path(path: list[SignedCheckpoint]) -> bytes:
    """The msgpack of the checkpoints that fit one reply, one at least if there is one."""
    fitting: list[SignedCheckpoint] = []
    num_bytes = 0
    for each in path:
        num_bytes += len(to_msgpack(each))
        if fitting and num_bytes > PATH_BYTES_MAX:
            break
        fitting.append(each)
    return to_msgpack(fitting)


def encode_signatures(signatures: list[CheckpointSignature]) -> bytes:
    """The msgpack of signatures."""
    return to_msgpack(signatures[: limits.MEMBERS_MAX])


def decode_path(message: bytes | bytearray) -> list[SignedCheckpoint]:
    """Signed checkpoints that are not checked. Raises MalformedError for anything else, or too
    many."""
    path = decoded(_path_decoder, message, "chain checkpoints")
    if len(path) > PATH_MAX:
        raise MalformedError(f"{len(path)} chain checkpoints in one reply")
    return path


def decode_signatures(message: bytes | bytearray) -> list[CheckpointSignature]:
    """Signatures that are not checked. Raises MalformedError for anything else, or too many."""
    signatures = decoded(_signatures_decoder, message, "signatures of a chain checkpoint")
    if len(signatures) > limits.MEMBERS_MAX:
        raise MalformedError(f"{len(signatures)} signatures in one reply")
    return signatures


def decode_summary_reply(message: bytes | bytearray) -> bytes:
    """An encoded summary. Raises MalformedError for anything else."""
    return decoded(_summary_decoder, message, "a summary of a chain")
