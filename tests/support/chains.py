"""Chains of headers on disk, without the work behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from gossamer.node.network.identity import Identity
from gossamer.node.storage.chain.chain_store import ChainStore
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol import limits
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.ids import Digest, PeerId
from gossamer.protocol.manifest import Manifest, SignedManifest, encode_manifest, signing_bytes
from gossamer.protocol.state.chain import Commit, Header, Member
from gossamer.protocol.wire.envelopes import seal
from tests.support.builders import ready
from tests.support.committed_rounds import IDENTITY, small_manifest

OTHERS = [Identity.from_seed(bytes([number]) * 32) for number in range(1, 5)]
"""Identities besides the founder's."""


def run_in(state_dir: StateDir, name: str = "numbers") -> Manifest:
    """Puts the manifest of a run into a directory."""
    manifest = msgspec.structs.replace(small_manifest(), name=name)
    signature = IDENTITY.sign(signing_bytes(manifest.run_id))
    state_dir.root.mkdir(parents=True, exist_ok=True)
    state_dir.write_manifest(
        SignedManifest(manifest=encode_manifest(manifest), signature=signature)
    )
    return manifest


def commit_rounds(
    state_dir: StateDir, manifest: Manifest, rounds: Sequence[Mapping[PeerId, int]]
) -> list[Digest]:
    """Adds rounds after the head, each with the tokens of its members. Returns their heads."""
    genesis = Digest(manifest.genesis_digest)
    chain = ChainStore(state_dir.chain_path, manifest.run_id, genesis)
    head = chain.heads_by_weight()[0]
    heads: list[Digest] = []
    work = ready(head=head, round=1, tokens=1, norm=1.0, spans=())
    envelope = seal(work, IDENTITY.peer_id, manifest.run_id, IDENTITY.sign)
    for tokens in rounds:
        parent = chain.entry(head)
        header = Header(
            limits.PROTOCOL_VERSION,
            manifest.run_id,
            parent.round + 1,
            head,
            bytes(32),
            tuple(Member(peer, taken, 1.0) for peer, taken in tokens.items()),
            parent.tokens_total + sum(tokens.values()),
            bytes(32),
            bytes(32),
            bytes(32),
            (),
        )
        head = chain.add(Commit(to_msgpack(header), envelope, ()), header)
        heads.append(head)
    state_dir.head_path.write_text(head.hex())
    return heads
