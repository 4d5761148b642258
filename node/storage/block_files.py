"""Files of blocks: their names, their digests, and what can be wrong with them."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import structlog
from blake3 import blake3

from gossamer.protocol import limits
from gossamer.protocol.ids import DIGEST_BYTES, Digest

_READ_BYTES = 256 * limits.KIB
"""Bytes read from a file at once."""

log = structlog.get_logger("state")


class BlockError(Exception):
    """Base of the store's errors. The text is for people."""


class MissingBlockError(BlockError):
    """The store does not have that block."""


class CorruptBlockError(BlockError):
    """The file of a block did not hold its content any more. It has been removed."""


def path_of(root: Path, digest: Digest) -> Path:
    """The file of a block in the folder of a store."""
    name = digest.hex()
    return root / f"{name[:2]}/{name}"


def files_under(root: Path) -> Iterator[tuple[Path, Digest, os.stat_result]]:
    """Yields the files in the folder of a store that have the name of a block in its place.

    What the disk does not tell of is left out, with one warning: its blocks can be fetched again.
    """
    num_unread, problem = 0, ""
    for folder in root.iterdir() if root.exists() else ():
        # The root of a disk has folders that only root may read.
        if not _is_folder_of_blocks(folder.name) or not folder.is_dir():
            continue
        try:
            entries = list(os.scandir(folder))
        except OSError as error:
            num_unread, problem = num_unread + 1, str(error)
            continue
        for entry in entries:
            digest = _digest_from_name(entry.name)
            if digest is None or path_of(root, digest) != Path(entry.path):
                continue  # not a block's
            try:
                status = entry.stat()
            except FileNotFoundError:
                continue  # a reader beside a running node, which has just evicted it
            except OSError as error:
                num_unread, problem = num_unread + 1, str(error)
                continue
            yield Path(entry.path), digest, status
    if num_unread:
        log.warning("blocks on the disk cannot be read", places=num_unread, error=problem)


def pieces_of(file: BinaryIO) -> Iterator[bytes]:
    """Yields the content up to the limit of a block and one piece more, or until the disk fails."""
    num_bytes = 0
    while num_bytes <= limits.BLOCK_BYTES_MAX:
        try:
            piece = file.read(_READ_BYTES)
        except OSError as error:
            if error.errno == errno.EIO:
                return  # the content so far will not fit the digest
            raise
        if not piece:
            return
        num_bytes += len(piece)
        yield piece


def digest_of_file(file: BinaryIO) -> Digest:
    """The digest of a file's content, as far as `pieces_of` reads it."""
    hasher = blake3()
    for piece in pieces_of(file):
        hasher.update(piece)
    return Digest(hasher.digest())


def _is_folder_of_blocks(name: str) -> bool:
    """Returns whether a folder in the folder of a store may hold files of blocks."""
    return len(name) == 2 and set(name) <= set("0123456789abcdef")


def _digest_from_name(name: str) -> Digest | None:
    """The digest that a file's name says; None for another file."""
    try:
        raw = bytes.fromhex(name)
    except ValueError:
        return None
    return Digest(raw) if len(raw) == DIGEST_BYTES else None
