"""A node's identity: an Ed25519 key in a file, and the peer id that follows from it.

The file holds the private key as unencrypted PKCS #8 PEM and must be readable by its owner only.
The peer id contains the public key, so anybody can `verify` a signature with nothing but the id.
"""

from __future__ import annotations

import os
import stat
import tempfile
from functools import lru_cache
from pathlib import Path

from cryptography.exceptions import InternalError, InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from gossamer.node.base.disk_health import TEMPORARY_SUFFIX, sync_directory
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import SIGNATURE_BYTES, PeerId, peer_id_from_public_key, public_key_of

# An Ed25519 PKCS #8 PEM file has 119 bytes; whatever is far larger is not one.
IDENTITY_FILE_BYTES_MAX = 4096

_KEYS_MAX = 1024
"""Keys of peers that stay decoded, some 0.5 kB each: more than the members of a run."""

_RIGHT_MAX = 1024
"""Right signatures that are remembered: a member's word comes by gossip, in the roster and in the
record of the same round. With `REMEMBERED_BYTES_MAX` the data of all have at most 2 MiB."""

REMEMBERED_BYTES_MAX = 2048
"""Longer data are checked each time: what members sign of a round is shorter."""


class IdentityError(ValueError):
    """An identity file that cannot be used; the text says what to do."""


class Identity:
    """A private key and the peer id that it proves."""

    def __init__(self, private_key: Ed25519PrivateKey) -> None:
        self._private_key = private_key
        self._public_key = private_key.public_key().public_bytes_raw()
        self._peer_id = peer_id_from_public_key(self._public_key)

    @classmethod
    def generate(cls) -> Identity:
        """A new identity."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_seed(cls, seed: bytes) -> Identity:
        """The identity of a 32-byte seed, for reproducible tests: the seed is the secret."""
        return cls(Ed25519PrivateKey.from_private_bytes(seed))

    @classmethod
    def load_or_create(cls, path: Path) -> Identity:
        """Read the identity in `path`, or make one there (mode 0600, written atomically).

        Raises:
            IdentityError: unreadable, damaged, or open to other users of the machine.
        """
        try:
            return cls.load(path)
        except FileNotFoundError:
            pass
        identity = cls.generate()
        try:
            _write_private(path, identity.pem())
        except FileExistsError:  # another process made one meanwhile: that one counts
            return cls.load(path)
        except OSError as error:
            raise IdentityError(
                f"cannot write the identity file {path}: {error.strerror}; "
                "check that the folder exists and is writable"
            ) from error
        return identity

    @classmethod
    def load(cls, path: Path) -> Identity:
        """Reads the identity in `path`. Raises FileNotFoundError, or as `load_or_create`."""
        try:
            with path.open("rb") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                pem = file.read(IDENTITY_FILE_BYTES_MAX + 1)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise IdentityError(
                f"cannot read the identity file {path}: {error.strerror}"
            ) from error
        if mode & 0o077:
            raise IdentityError(
                f"the identity file {path} can be read by other users (mode {mode:04o}); "
                f"run: chmod 600 {path}  (and make a new one if others may have copied it)"
            )
        return cls._parse(path, pem)

    @classmethod
    def _parse(cls, path: Path, pem: bytes) -> Identity:
        try:
            if len(pem) > IDENTITY_FILE_BYTES_MAX:
                raise ValueError("too long")
            key = serialization.load_pem_private_key(pem, password=None)
            if not isinstance(key, Ed25519PrivateKey):
                raise ValueError("not an Ed25519 key")
        except InternalError as error:
            # One wrong bit names another kind of key, of which these are too few bytes. OpenSSL's
            # own account of that is no help to anybody.
            raise cls._damaged(path, "not an Ed25519 key") from error
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise cls._damaged(path, str(error)) from error
        return cls(key)

    @staticmethod
    def _damaged(path: Path, reason: str) -> IdentityError:
        return IdentityError(
            f"the identity file {path} is damaged ({reason}); restore it from a backup, "
            "or delete it to start as a new peer"
        )

    @property
    def peer_id(self) -> PeerId:
        """The libp2p id of our public key."""
        return self._peer_id

    def sign(self, data: bytes) -> bytes:
        """Ed25519 signature (64 bytes) of `data`."""
        return self._private_key.sign(data)

    def private_bytes(self) -> bytes:
        """The raw 32-byte private key, for the transport's handshake. Never log or send it."""
        return self._private_key.private_bytes_raw()

    def pem(self) -> bytes:
        """The content of an identity file: the secret itself."""
        return self._private_key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )

    def __repr__(self) -> str:
        return f"Identity({self._peer_id})"


def read_backup(path: Path) -> Identity:
    """Reads an identity that lies outside of a state directory, whatever its mode: a stick with
    FAT has none.

    Raises:
        IdentityError: the file cannot be read, or is no identity.
    """
    try:
        with path.open("rb") as file:
            pem = file.read(IDENTITY_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise IdentityError(f"cannot read the back-up {path}: {error.strerror}") from error
    try:
        return Identity._parse(path, pem)
    except IdentityError as error:
        raise IdentityError(
            f"{path} is damaged, or no back-up of an identity; nothing is changed"
        ) from error


def verify(peer_id: PeerId, data: bytes, signature: bytes) -> bool:
    """Returns whether `signature` is `peer_id`'s signature of `data`. False for a malformed id as
    well."""
    if len(signature) != SIGNATURE_BYTES:
        return False
    try:
        if len(data) > REMEMBERED_BYTES_MAX:
            _key_of(peer_id).verify(signature, data)
        else:
            _right(peer_id, bytes(data), bytes(signature))
    except (InvalidSignature, MalformedError, ValueError):
        return False
    return True


@lru_cache(_RIGHT_MAX)
def _right(peer_id: PeerId, data: bytes, signature: bytes) -> None:
    """Raises for a signature that is not right, each time: an error is not remembered."""
    _key_of(peer_id).verify(signature, data)


@lru_cache(_KEYS_MAX)
def _key_of(peer_id: PeerId) -> Ed25519PublicKey:
    """The key in a peer id. Raises MalformedError, or ValueError for bytes that are no key."""
    return Ed25519PublicKey.from_public_bytes(public_key_of(peer_id))


def _write_private(path: Path, content: bytes) -> None:
    """Create `path` with mode 0600, whole or not at all, never over an existing file."""
    descriptor, name = tempfile.mkstemp(  # mode 0600
        TEMPORARY_SUFFIX, f".{path.name}.", path.parent
    )
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)  # unlike rename, fails where the file exists
        sync_directory(path.parent)
    finally:
        temporary.unlink()
