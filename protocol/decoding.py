"""The forms of messages in MessagePack, and strict decoding of what comes from a peer or from the
disk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from gossamer.protocol.errors import MalformedError

DECODING_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are not the message: the last for lists in lists without
end."""

_T = TypeVar("_T")
_encoder = msgspec.msgpack.Encoder()


class ArrayStruct(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A struct in the form *array* of SPEC.md: its fields in order, and nothing behind the last
    one."""


def to_msgpack(message: msgspec.Struct | Sequence[object]) -> bytes:
    """The canonical bytes of a message. It says nothing about whether its values are allowed."""
    return _encoder.encode(message)


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
