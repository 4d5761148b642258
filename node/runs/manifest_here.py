"""The manifest of the run in a state directory, with the founder's signature checked."""

from __future__ import annotations

from gossamer.node.network.signed_manifests import open_signed_manifest
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.manifest import Manifest, SignedManifest


def signed_manifest_here(state_dir: StateDir) -> SignedManifest | None:
    """Returns the signed manifest in a state directory, if there is one.

    Raises:
        StateDirError: the manifest is damaged.
    """
    signed = state_dir.read_manifest()
    if signed is not None:
        _opened(state_dir, signed)
    return signed


def manifest_here(state_dir: StateDir) -> Manifest:
    """Returns the manifest in a state directory.

    Raises:
        StateDirError: there is no run, or its manifest is damaged.
    """
    return _opened(state_dir, state_dir.require_manifest())


def _opened(state_dir: StateDir, signed: SignedManifest) -> Manifest:
    try:
        return open_signed_manifest(signed)
    except RemoteProtocolError as error:
        raise state_dir.damaged_manifest(error) from error
