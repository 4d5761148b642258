"""Values that hold names of files, on their way to another process, to the disk and to people.

A name of a file is bytes. Python shows one that is not UTF-8 as a text with halves of surrogate
pairs, and no encoder takes such a text.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import msgspec

_MARK = "\0"
"""Begins a text that stands for the bytes of a name. No name of a file has this character."""


def pack(value: object) -> bytes:
    """Returns the value in msgpack; `unpack` gives it back.

    It is what msgspec encodes, but for texts that are not UTF-8.
    """
    return msgspec.msgpack.encode(_with_texts(value, _packed))


def unpack(data: bytes, kind: Any) -> Any:
    """Returns the value of a `kind` that was packed.

    Raises:
        msgspec.DecodeError, UnicodeDecodeError: the data is damaged.
    """
    return msgspec.convert(_with_texts(msgspec.msgpack.decode(data), _unpacked), type=kind)


def json_for_people(value: object) -> bytes:
    """Returns the value in JSON. Bytes of a name that are not UTF-8 become escapes in it."""
    return msgspec.json.encode(_with_texts(value, _shown))


def _with_texts(value: object, change: Callable[[str], str]) -> Any:
    """Returns the value as dicts and lists, with each text in it changed."""
    return _changed(msgspec.to_builtins(value, builtin_types=(bytes,)), change)


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: _changed(each, change) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_changed(each, change) for each in value]
    return value


def _packed(text: str) -> str:
    if _is_utf8(text) and not text.startswith(_MARK):
        return text
    return _MARK + os.fsencode(text).decode("latin-1")


def _unpacked(text: str) -> str:
    return os.fsdecode(text[1:].encode("latin-1")) if text.startswith(_MARK) else text


def _shown(text: str) -> str:
    return text if _is_utf8(text) else text.encode("utf-8", "backslashreplace").decode()


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
