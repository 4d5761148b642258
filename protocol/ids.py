"""Identities of peers, and digests of bytes.

A peer id is the libp2p id of an Ed25519 key in base58 (``12D3KooW...``). It holds the public key
itself (an "identity" multihash), so a signature can be checked with nothing but the id.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NewType

from blake3 import blake3

from gossamer.protocol import limits
from gossamer.protocol.errors import MalformedError

PeerId = NewType("PeerId", str)
Digest = NewType("Digest", bytes)
"""32 bytes of BLAKE3."""

DIGEST_BYTES = 32
PUBLIC_KEY_BYTES = 32
SIGNATURE_BYTES = 64

# Multihash "identity, 36 bytes" around the protobuf {Type: Ed25519, Data: 32 bytes}
# (libp2p peer-ids spec).
_ED25519_PREFIX = bytes.fromhex("002408011220")
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_BASE58_INDEX = {character: index for index, character in enumerate(_BASE58)}
# 38 bytes in base58 are 52 characters; anything longer is refused before it is decoded.
_PEER_ID_CHARACTERS_MAX = 60
# Every statement names its author, and base58 is slow. Keys of all members are remembered, and of
# as many strangers, at 200 bytes each.
_KEYS_REMEMBERED = 2 * limits.MEMBERS_MAX


def digest_of(*parts: bytes | bytearray | memoryview) -> Digest:
    """BLAKE3 of the parts' concatenation."""
    hasher = blake3()
    for part in parts:
        hasher.update(part)
    return Digest(hasher.digest())


@lru_cache(_KEYS_REMEMBERED)
def peer_id_from_public_key(public_key: bytes) -> PeerId:
    """The libp2p peer id of an Ed25519 public key (32 bytes)."""
    if len(public_key) != PUBLIC_KEY_BYTES:
        raise MalformedError(f"an Ed25519 public key has 32 bytes, not {len(public_key)}")
    raw = _ED25519_PREFIX + public_key
    number = int.from_bytes(raw, "big")
    characters = []
    while number:
        number, remainder = divmod(number, 58)
        characters.append(_BASE58[remainder])
    leading_zeros = len(raw) - len(raw.lstrip(b"\0"))
    return PeerId("1" * leading_zeros + "".join(reversed(characters)))


@lru_cache(_KEYS_REMEMBERED)
def public_key_of(peer_id: PeerId) -> bytes:
    """The Ed25519 public key inside a peer id.

    Raises:
        MalformedError: not base58, or not the id of an Ed25519 key.
    """
    if not 0 < len(peer_id) <= _PEER_ID_CHARACTERS_MAX:
        raise MalformedError("not a peer id: wrong length")
    number = 0
    for character in peer_id:
        value = _BASE58_INDEX.get(character)
        if value is None:
            raise MalformedError(f"not a peer id: {character!r} is not base58")
        number = number * 58 + value
    leading_zeros = len(peer_id) - len(peer_id.lstrip("1"))
    raw = b"\0" * leading_zeros + number.to_bytes((number.bit_length() + 7) // 8, "big")
    if len(raw) != len(_ED25519_PREFIX) + PUBLIC_KEY_BYTES or not raw.startswith(_ED25519_PREFIX):
        raise MalformedError("not the peer id of an Ed25519 key")
    return raw[len(_ED25519_PREFIX) :]


def short(identifier: PeerId | bytes) -> str:
    """A few characters by which a person tells ids apart, for logs and tables."""
    if isinstance(identifier, bytes):
        return identifier.hex()[:10]
    return identifier[-6:]
