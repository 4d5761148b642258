"""The manifest of the run in a state directory, with the founder's signature checked, and its
chain."""

from __future__ import annotations

from gossamer.node.network.signed_manifests import open_signed_manifest
from gossamer.node.storage.chain.chain_store import ChainStore
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import Digest
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


def chain_here(
    state_dir: StateDir, manifest: Manifest, at: Digest | None = None
) -> tuple[ChainStore, Digest]:
    """Returns the chain in a state directory, which is only read, and a head in it.

    Args:
        at: the head that is wanted; None: the newest. Without it on the disk it is the one with the
            most tokens.
    """
    # The head before the records: a daemon writes them in the other order.
    head = at or state_dir.newest_head()
    genesis_state = Digest(manifest.genesis_digest)
    chain = ChainStore(state_dir.chain_path, manifest.run_id, genesis_state, read_only=True)
    return chain, head if head is not None and head in chain else chain.heads_by_weight()[0]


def _opened(state_dir: StateDir, signed: SignedManifest) -> Manifest:
    try:
        return open_signed_manifest(signed)
    except RemoteProtocolError as error:
        raise state_dir.damaged_manifest(error) from error
