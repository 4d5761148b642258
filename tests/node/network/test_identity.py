"""Identity: the key file, the peer id, signatures."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.peer.id import ID

from gossamer.node.network.identity import Identity, IdentityError, verify
from gossamer.protocol.ids import PeerId


def test_created_once_and_loaded_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "identity.pem"
    first = Identity.load_or_create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Identity.load_or_create(path).peer_id == first.peer_id
    assert [entry.name for entry in tmp_path.iterdir()] == ["identity.pem"]


def test_peer_id_is_libp2ps() -> None:
    seed = bytes(range(32))
    theirs = ID.from_pubkey(create_new_key_pair(seed).public_key).to_base58()
    assert Identity.from_seed(seed).peer_id == theirs
    assert Identity.from_seed(seed).private_bytes() == seed


def test_signatures() -> None:
    ours, other = Identity.generate(), Identity.generate()
    signature = ours.sign(b"data")
    assert verify(ours.peer_id, b"data", signature)
    assert not verify(ours.peer_id, b"date", signature)
    assert not verify(other.peer_id, b"data", signature)
    assert not verify(ours.peer_id, b"data", signature[:-1])
    assert not verify(PeerId("nonsense"), b"data", signature)


@pytest.mark.parametrize("content", [b"", b"\x00garbage", b"x" * 5000])
def test_damaged_file_says_what_to_do(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "identity.pem"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(IdentityError, match=r"identity\.pem is damaged.*delete it"):
        Identity.load_or_create(path)
    assert path.read_bytes() == content  # never overwritten: it may be the only copy


def test_other_kind_of_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "identity.pem"
    path.write_bytes(
        Ed448PrivateKey.generate().private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    path.chmod(0o600)
    with pytest.raises(IdentityError, match="not an Ed25519 key"):
        Identity.load_or_create(path)


def test_file_open_to_others_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "identity.pem"
    Identity.load_or_create(path)
    path.chmod(0o640)
    with pytest.raises(IdentityError, match=r"other users \(mode 0640\); run: chmod 600"):
        Identity.load_or_create(path)


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(IdentityError, match="check that the folder exists"):
        Identity.load_or_create(tmp_path / "nowhere" / "identity.pem")


def test_key_never_shows_in_its_representation() -> None:
    identity = Identity.from_seed(b"s" * 32)
    assert repr(identity) == f"Identity({identity.peer_id})"
