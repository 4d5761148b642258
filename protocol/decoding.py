"""Strict decoding of what comes from a peer or from the disk."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from gossamer.protocol.errors import MalformedError

DECODING_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are not the message: the last for lists in lists without
end."""

_T = TypeVar("_T")


def decoded(
    decoder: msgspec.msgpack.Decoder[_T], data: bytes | bytearray | memoryview, what: str
) -> _T:
    """Returns the message in `data`.

    Args:
        what: the kind of message, for people, with its article.

    Raises:
        MalformedError: anything else.
    """
    try:
        return decoder.decode(data)
    except DECODING_ERRORS as error:
        raise MalformedError(f"not {what}: {error}") from error
