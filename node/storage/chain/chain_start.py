"""The start of the chain that is kept, and the proof of it that newcomers get.

    chain/start          what came before the oldest header that is kept
    chain/checkpoints    the path of signed checkpoints, see
    `protocol.policy.heads.chain_checkpoint`

A node keeps the headers after a checkpoint of the chain, and the `STANDING_ROUNDS` before it, which
say who has stake there. The start is written before the headers that it makes needless are removed,
and after those that it needs are on the disk. So a process that is killed in between leaves a chain
that is whole from one start or the other.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import structlog

from gossamer.node.storage.bounded_file import read_digested, record_in, write_digested
from gossamer.protocol.decoding import ArrayStruct, to_msgpack
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import Digest
from gossamer.protocol.policy.heads.chain_summary import (
    ChainSummary,
    decode_summary,
)
from gossamer.protocol.standing import STANDING_ROUNDS
from gossamer.protocol.wire.checkpoint_messages import SignedCheckpoint

START_NAME = "start"
CHECKPOINTS_NAME = "checkpoints"
FILE_NAMES = (START_NAME, CHECKPOINTS_NAME)
"""Names in the folder of the chain that are no round's."""

log = structlog.get_logger("chain")


class ChainStart(ArrayStruct, frozen=True):
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
    return ChainStart(round_number, head, before, before_tokens, to_msgpack(summary), passed)


_Kept = TypeVar("_Kept", bound="ChainStart | KeptCheckpoints")


def _read(directory: Path, name: str, kind: type[_Kept]) -> _Kept | None:
    """Returns what a file in the folder of the chain keeps; None without it. A damaged one counts
    as none, with a warning: other members have the same."""
    path = directory / name
    try:
        kept = record_in(read_digested(path), kind, name)
        decode_summary(kept.summary)
        return kept
    except FileNotFoundError:
        return None
    except (OSError, RemoteProtocolError) as error:
        log.warning(
            "what is kept of the chain's beginning is damaged on disk; peers are asked for it",
            file=str(path),
            error=str(error),
        )
        return None


def read_start(directory: Path) -> ChainStart | None:
    """Returns the start of the chain in a folder; None if it begins with the run, or the file is
    damaged."""
    return _read(directory, START_NAME, ChainStart)


def write_start(directory: Path, start: ChainStart) -> None:
    """Replaces the start of the chain. It survives a power cut. Raises DiskError."""
    write_digested(directory / START_NAME, to_msgpack(start))


class KeptCheckpoints(ArrayStruct, frozen=True):
    """The proven path of signed checkpoints, for newcomers."""

    path: tuple[SignedCheckpoint, ...]
    summary: bytes
    """The encoded summary of the last one."""


def read_checkpoints(directory: Path) -> KeptCheckpoints | None:
    """Returns the path in a folder, whose signatures are not checked; None without one, or if the
    file is damaged."""
    return _read(directory, CHECKPOINTS_NAME, KeptCheckpoints)


def write_checkpoints(directory: Path, kept: KeptCheckpoints) -> None:
    """Replaces the path. Raises DiskError."""
    write_digested(directory / CHECKPOINTS_NAME, to_msgpack(kept))
