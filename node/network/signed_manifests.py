"""The signature of a run's founder.

Apart from the exchange with peers: commands that read a manifest from the disk need no network.
"""

from __future__ import annotations

from gossamer.node.network.identity import verify
from gossamer.protocol.errors import ForgedError
from gossamer.protocol.ids import PeerId, digest_of
from gossamer.protocol.manifest import Manifest, SignedManifest, decode_manifest, signing_bytes


def open_signed_manifest(signed: SignedManifest) -> Manifest:
    """The manifest inside, after every value and the founder's signature were checked.

    Raises:
        MalformedError: not a manifest, or not one that this version can train.
        ForgedError: not signed by the founder that it names.
    """
    manifest = decode_manifest(signed.manifest)
    run_id = digest_of(signed.manifest)
    if not verify(PeerId(manifest.founder), signing_bytes(run_id), signed.signature):
        raise ForgedError("manifest that its founder did not sign")
    return manifest
