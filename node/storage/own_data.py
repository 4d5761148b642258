"""The data that a node keeps for itself, in a run where every peer trains on data of its own.

    own/place            where in them this node is, and which folder holds them
    own/FOLDER/index     the shards, as the index of a run lists them
    own/FOLDER/DIGEST    a shard

They are no blocks: the store of blocks, from which other peers are served, never sees them.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from gossamer.node.base.disk_health import sync_files, write_atomically
from gossamer.node.storage.bounded_file import read_bounded, read_record
from gossamer.node.storage.state_dir import StateDirError
from gossamer.protocol import limits
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.shard_index import ShardInfo, decode_index

INDEX_NAME = "index"

_PLACE_NAME = "place"

_PLACE_BYTES_MAX = 4096
"""A place has some 100 bytes."""

_INDEX_BYTES_MAX = limits.BLOCK_BYTES_MAX
"""A founder's index is a block, and this one has no more shards."""

_KEY_DIGITS = 16
"""Hexadecimal digits of a key that name a folder; there are two folders at most."""


class _Place(msgspec.Struct, frozen=True):
    """The contents of `own/place`."""

    key: bytes
    """Digest of the texts, and of all that their shards depend on."""
    position: int
    """Tokens that were trained on, over all epochs."""


class OwnShard(NamedTuple):
    """One shard on this disk."""

    path: Path
    num_tokens: int


class OwnData:
    """The shards of this node, and how far it has trained on them. Not for several threads."""

    def __init__(self, root: Path) -> None:
        """`root`: the folder `own` of the state directory; it need not exist."""
        self._root = root
        self._place: _Place | None = None
        self.shards: Sequence[OwnShard] = ()

    @property
    def position(self) -> int:
        """Tokens that were trained on, over all epochs, when this was last opened or saved."""
        return 0 if self._place is None else self._place.position

    def folder_for(self, key: bytes) -> Path:
        """Returns an empty folder for shards that are to be made; what was begun there is gone."""
        self._root.mkdir(mode=0o700, exist_ok=True)
        folder = self._folder_of(key)
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(mode=0o700)
        return folder

    def begin(self, key: bytes) -> None:
        """Goes over to the shards that were made for `key`, at their beginning; others are gone.

        The new ones survive a power cut before the others go.

        Raises:
            DiskError: the disk does not take it.
            StateDirError: as `open`.
        """
        sync_files(path for path in self._folder_of(key).glob("*") if path.is_file())
        self._write(_Place(key, 0))
        for folder in self._root.iterdir():
            if folder.is_dir() and folder != self._folder_of(key):
                shutil.rmtree(folder, ignore_errors=True)
        self.open()

    def whole_key(self) -> bytes | None:
        """Returns the key of what is here, or None if there is nothing, or nothing whole."""
        try:
            return self._place.key if self.open() and self._place is not None else None
        except StateDirError:
            return None

    def open(self) -> bool:
        """Reads what is here. Returns False if there is nothing.

        Raises:
            StateDirError: a file is damaged or missing.
        """
        try:
            place = read_record(self._root / _PLACE_NAME, _Place, _PLACE_BYTES_MAX)
            if place is None:
                return False
            if place.position < 0:
                raise ValueError("a place before the beginning")
            folder = self._folder_of(place.key)
            index = decode_index(read_bounded(folder / INDEX_NAME, _INDEX_BYTES_MAX) or b"")
            shards = [_shard_of(folder, info) for info in index.shards]
        except (OSError, ValueError, RemoteProtocolError) as error:
            raise StateDirError(
                f"the shards of this machine's own text in {self._root} are damaged ({error}): "
                "join again with --corpus FOLDER, which makes them anew"
            ) from error
        self._place, self.shards = place, shards
        return True

    def save(self, position: int) -> None:
        """Keeps the position. Raises DiskError."""
        assert self._place is not None
        if position != self._place.position:
            self._write(_Place(self._place.key, position))

    def _write(self, place: _Place) -> None:
        write_atomically(self._root / _PLACE_NAME, to_msgpack(place))
        self._place = place

    def _folder_of(self, key: bytes) -> Path:
        return self._root / key.hex()[:_KEY_DIGITS]


def _shard_of(folder: Path, info: ShardInfo) -> OwnShard:
    path = folder / info.digest.hex()
    if path.stat().st_size != info.num_bytes:
        raise ValueError(f"{path.name} has not the {info.num_bytes} bytes that it should have")
    return OwnShard(path, info.num_tokens)
