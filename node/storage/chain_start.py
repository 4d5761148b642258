"""The start of the chain that is kept, and the proof of it that newcomers get.

    chain/start          what came before the oldest header that is kept
    chain/checkpoints    the path of signed checkpoints, see `protocol.policy.chain_checkpoint`

A node keeps the headers after a checkpoint of the chain, and the `STANDING_ROUNDS` before it, which
say who has stake there. The start is written before the headers that it makes needless are removed,
and after those that it needs are on the disk. So a process that is killed in between leaves a chain
that is whole from one start or the other.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import structlog

from gossamer.node.storage.bounded_file import read_digested, write_digested
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import Digest
from gossamer.protocol.policy.chain_summary import ChainSummary, decode_summary, encode_summary
from gossamer.protocol.standing import STANDING_ROUNDS
from gossamer.protocol.wire.checkpoint_messages import SignedCheckpoint

START_NAME = "start"
CHECKPOINTS_NAME = "checkpoints"
FILE_NAMES = (START_NAME, CHECKPOINTS_NAME)
"""Names in the folder of the chain that are no round's."""

log = structlog.get_logger("chain")


class ChainStart(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The checkpoint with which the kept chain begins."""

    round: int
    """Of the checkpoint."""
    head: bytes
    before: bytes
    """The head that the oldest kept round follows: `STANDING_ROUNDS` before the checkpoint."""
    before_tokens: int
    """Tokens in the chain of `before`."""
    summary: bytes
    """The encoded summary up to and with the checkpoint's round."""
    passed: tuple[bytes, ...] = ()
    """Heads on the way to `before` that the link named by which this node joined, as far as the
    summary does not keep them."""

    @property
    def before_round(self) -> int:
        return self.round - STANDING_ROUNDS

    def decoded_summary(self) -> ChainSummary:
        return decode_summary(self.summary)


def start_after(
    round_number: int,
    head: Digest,
    before: Digest,
    before_tokens: int,
    summary: ChainSummary,
    passed: tuple[bytes, ...] = (),
) -> ChainStart:
    """The start at a checkpoint."""
    return ChainStart(round_number, head, before, before_tokens, encode_summary(summary), passed)


def read_start(directory: Path) -> ChainStart | None:
    """Returns the start of the chain in a folder; None if it begins with the run.

    A file that is damaged counts as none, with a warning: then the node asks its peers.
    """
    path = directory / START_NAME
    try:
        start = msgspec.msgpack.decode(read_digested(path), type=ChainStart)
        decode_summary(start.summary)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, RemoteProtocolError) as error:
        log.warning(
            "the start of the kept chain is damaged on disk; peers are asked for it",
            file=str(path),
            error=str(error),
        )
        return None
    return start


def write_start(directory: Path, start: ChainStart) -> None:
    """Replaces the start of the chain. It survives a power cut. Raises DiskError."""
    write_digested(directory / START_NAME, msgspec.msgpack.encode(start))


class KeptCheckpoints(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The proven path of signed checkpoints, for newcomers."""

    path: tuple[SignedCheckpoint, ...]
    summary: bytes
    """The encoded summary of the last one."""


def read_checkpoints(directory: Path) -> KeptCheckpoints | None:
    """Returns the path in a folder, whose signatures are not checked; None without one. A damaged
    file counts as none, with a warning: other members have the same path."""
    path = directory / CHECKPOINTS_NAME
    try:
        return msgspec.msgpack.decode(read_digested(path), type=KeptCheckpoints)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, RemoteProtocolError) as error:
        log.warning(
            "the signed checkpoints of the chain are damaged on disk; peers are asked for them",
            file=str(path),
            error=str(error),
        )
        return None


def write_checkpoints(directory: Path, kept: KeptCheckpoints) -> None:
    """Replaces the path. Raises DiskError."""
    write_digested(directory / CHECKPOINTS_NAME, msgspec.msgpack.encode(kept))
