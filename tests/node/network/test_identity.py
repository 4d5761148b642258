"""Identity: the key file, the peer id, signatures."""

from __future__ import annotations

import os
import stat
from functools import lru_cache
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.peer.id import ID

from gossamer.node.network import identity
from gossamer.node.network.identity import Identity, IdentityError, verify
from gossamer.node.storage.state_dir import StateDir
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


def test_a_file_whose_kind_of_key_is_damaged_says_what_to_do(tmp_path: Path) -> None:
    """One wrong bit makes an X448 key of it, which is 56 bytes long."""
    path = tmp_path / "identity.pem"
    Identity.load_or_create(path)
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"AwBQYDK2Vw", b"AwBQYDK2Vv"))
    assert path.read_bytes() != whole
    with pytest.raises(IdentityError, match=r"is damaged \(not an Ed25519 key\).*delete it"):
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


def test_a_kill_leaves_no_private_key_beside_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next node of the directory removes what an earlier one left half-written."""

    class Killed(BaseException):
        """The process ends here, and nothing is cleaned up."""

    def killed(*_args: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", killed)
        patch.setattr(Path, "unlink", lambda _self: None)
        with pytest.raises(Killed):
            Identity.load_or_create(tmp_path / "identity.key")
    assert len(list(tmp_path.iterdir())) == 1
    with StateDir(tmp_path).locked():
        assert not list(tmp_path.glob(".identity*"))


class Asked:
    """Keys that note what they are asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.signatures: list[bytes] = []
        self._key_of = identity._key_of
        monkeypatch.setattr(identity, "_key_of", self.key_of)

    def key_of(self, peer_id: PeerId) -> Asked:
        self._key = self._key_of(peer_id)
        return self

    def verify(self, signature: bytes, data: bytes) -> None:
        self.signatures.append(signature)
        self._key.verify(signature, data)


def test_a_right_signature_is_checked_once_and_a_wrong_one_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, asked = Identity.generate(), Asked(monkeypatch)
    right, wrong = ours.sign(b"data"), ours.sign(b"date")
    assert [verify(ours.peer_id, b"data", right) for _ in range(3)] == [True] * 3
    assert [verify(ours.peer_id, b"data", wrong) for _ in range(2)] == [False] * 2
    assert asked.signatures == [right, wrong, wrong]


def test_signatures_are_remembered_for_short_data_and_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(identity, "_right", lru_cache(2)(identity._right.__wrapped__))
    ours, asked = Identity.generate(), Asked(monkeypatch)
    long = bytes(identity.REMEMBERED_BYTES_MAX + 1)
    signatures = [ours.sign(data) for data in (long, long, b"1", b"2", b"3", b"1")]
    for data, signature in zip((long, long, b"1", b"2", b"3", b"1"), signatures, strict=True):
        assert verify(ours.peer_id, data, signature)
    assert asked.signatures == signatures
