"""The two files of a run's manifest in a state directory.

    manifest.msgpack   the `SignedManifest` of the run
    manifest.copy      the same bytes behind their digest

Without the manifest nothing else in the directory is of use, and a node without peers has nobody to
ask for it. The copy is on the disk before the run begins here. It is read where the first file is
missing, or is not what the founder signed.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gossamer.node.base.disk_health import write_atomically
from gossamer.node.storage.bounded_file import (
    read_bounded,
    read_digested,
    record_in,
    write_digested,
)
from gossamer.protocol import limits
from gossamer.protocol.errors import MalformedError, RemoteProtocolError, VersionError

if TYPE_CHECKING:
    from gossamer.protocol.manifest import SignedManifest

NAMES = ("manifest.copy", "manifest.msgpack")

# Signature and msgpack envelope around the manifest's bytes.
_SIGNED_MANIFEST_BYTES_MAX = limits.MANIFEST_BYTES_MAX + 1024


class ManifestFiles:
    """The two files in one state directory. Creating one touches nothing."""

    def __init__(self, root: Path) -> None:
        self.copy_path, self.path = (root / name for name in NAMES)

    def exist(self) -> bool:
        """Returns whether there is a manifest, in one of the files at least."""
        return self.path.exists() or self.copy_path.exists()

    def read(self) -> SignedManifest | None:
        """Returns the signed manifest, or None without one.

        Its signature may be wrong where the copy is of no use.

        Raises:
            RemoteProtocolError: no file can be used.
            OSError: the first file cannot be read, and the copy is of no use.
        """
        signed, problem = self._first()
        if signed is not None and _is_signed(signed):
            return signed
        copy = self._copy()
        if copy is not None:
            return _decoded(copy)
        if problem is not None:
            raise problem
        if signed is None and self.copy_path.exists():
            raise MalformedError("it is missing, and its copy is damaged")
        return signed

    def write(self, signed: SignedManifest) -> None:
        """Writes both files. Raises DiskError."""
        data = msgspec.msgpack.encode(signed)
        write_digested(self.copy_path, data)
        write_atomically(self.path, data)

    def damaged(self) -> str | None:
        """Returns the name of the file that is damaged or was lost, where the other one is
        whole."""
        path, _ = self._to_write()
        return None if path is None else path.name

    def mend(self) -> str | None:
        """Writes such a file again, and returns its name. Blocks for as long as the disk needs.
        Raises DiskError: the disk does not take it."""
        path, data = self._to_write()
        if path == self.copy_path:
            write_digested(path, data)
        elif path is not None:
            write_atomically(path, data)
        return None if path is None else path.name

    def _to_write(self) -> tuple[Path | None, bytes]:
        """Returns the file that is damaged or missing, if the other one is whole, and the bytes of
        the manifest."""
        signed, _ = self._first()
        first = b"" if signed is None else msgspec.msgpack.encode(signed)
        copy = self._copy()
        if signed is not None and _is_signed(signed):
            return (None if first == copy else self.copy_path), first
        if copy is None or first == copy or _is_of_another_version(copy):
            return None, b""
        return self.path, copy

    def _first(self) -> tuple[SignedManifest | None, Exception | None]:
        """Returns what the first file holds, and why it cannot be used."""
        try:
            data = read_bounded(self.path, _SIGNED_MANIFEST_BYTES_MAX)
            return (None, None) if data is None else (_decoded(data), None)
        except (OSError, RemoteProtocolError) as error:
            return None, error

    def _copy(self) -> bytes | None:
        """Returns the bytes of the copy; None without one that fits its digest."""
        with suppress(OSError, MalformedError):
            return read_digested(self.copy_path, _SIGNED_MANIFEST_BYTES_MAX)
        return None


def _decoded(data: bytes) -> SignedManifest:
    """Raises RemoteProtocolError."""
    # Here: the commands that ask a running node know where it answers, and read no manifest.
    from gossamer.protocol.manifest import SignedManifest, decode_manifest

    signed = record_in(data, SignedManifest, "manifest.msgpack")
    decode_manifest(signed.manifest)
    return signed


def _is_of_another_version(data: bytes) -> bool:
    try:
        _decoded(data)
    except VersionError:
        return True
    except RemoteProtocolError:
        pass
    return False


def _is_signed(signed: SignedManifest) -> bool:
    """Returns whether the manifest is what its founder signed. Raises RemoteProtocolError."""
    from gossamer.node.network.signed_manifests import open_signed_manifest  # here: see `_decoded`
    from gossamer.protocol.errors import ForgedError

    try:
        open_signed_manifest(signed)
    except ForgedError:
        return False
    return True
