"""Signatures that the nodes of one process check at most once for all of them.

Every node checks what each member has signed, and again where a roster or a commit record names it.
The answer depends on key, signature and data alone, and OpenSSL takes 0.12 ms for it: some
twentieth of the processor's time of a swarm in virtual time. A signature that an identity of this
process made a moment ago is right under its key for its data: OpenSSL is asked about all others.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from unittest import mock

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from gossamer.node.network import identity
from gossamer.node.network.identity import Identity

SIGNATURES_MAX = 4096
"""Signatures that are remembered: those of some rounds of all members. Most have 1 KB of data."""

_made: OrderedDict[tuple[bytes, bytes, bytes], None] = OrderedDict()
"""Keys, signatures and data of the newest signatures that were made here."""

_sign = Identity.sign


def _sign_and_remember(signer: Identity, data: bytes) -> bytes:
    signature = _sign(signer, data)
    _made[signer._public_key, signature, bytes(data)] = None
    if len(_made) > SIGNATURES_MAX:
        _made.popitem(last=False)
    return signature


@lru_cache(SIGNATURES_MAX)
def _check(raw_key: bytes, signature: bytes, data: bytes) -> None:
    """Raises InvalidSignature, every time: only what is right is remembered."""
    if (raw_key, signature, data) not in _made:
        _ask(raw_key, signature, data)


def _ask(raw_key: bytes, signature: bytes, data: bytes) -> None:
    Ed25519PublicKey.from_public_bytes(raw_key).verify(signature, data)


class _PublicKey:
    """What `identity.verify` asks of `Ed25519PublicKey`."""

    def __init__(self, raw_key: bytes) -> None:
        self._raw_key = raw_key

    @classmethod
    def from_public_bytes(cls, raw_key: bytes) -> _PublicKey:
        return cls(raw_key)

    def verify(self, signature: bytes, data: bytes) -> None:
        _check(self._raw_key, bytes(signature), bytes(data))


@contextmanager
def signatures_checked_once() -> Iterator[None]:
    """While the block lasts, `identity.verify` asks OpenSSL at most once about each right
    signature."""
    try:
        with (
            mock.patch.object(identity, "Ed25519PublicKey", _PublicKey),
            mock.patch.object(Identity, "sign", _sign_and_remember),
        ):
            identity._key_of.cache_clear()  # keys of before, and below those of the block
            yield
    finally:
        identity._key_of.cache_clear()
        _check.cache_clear()
        _made.clear()
