"""Notes all that a process of a test sends to peers, before it is encrypted.

Python imports this module at its start where the folder is in PYTHONPATH. `WIRETAP` names the file.
"""

import os
from typing import Any

from cryptography.hazmat.primitives.ciphers import aead

_Real = aead.ChaCha20Poly1305


class _Noting:
    """The cipher of noise, whose plaintexts are appended to the file."""

    def __init__(self, key: bytes) -> None:
        self._real = _Real(key)

    def encrypt(self, nonce: bytes, data: Any, associated_data: Any) -> bytes:
        return self._real.encrypt(nonce, data, associated_data)

    def encrypt_into(self, nonce: bytes, data: Any, associated_data: Any, buffer: Any) -> int:
        with open(os.environ["WIRETAP"], "ab") as file:
            file.write(data)
        return self._real.encrypt_into(nonce, data, associated_data, buffer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


if "WIRETAP" in os.environ:
    aead.ChaCha20Poly1305 = _Noting  # type: ignore[assignment]
