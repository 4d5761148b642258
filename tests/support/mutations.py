"""Bytes for decoders: valid ones damaged with a knowledge of what they are, and random ones.

`damaged` changes bytes: flips, cuts, repetitions, pieces of other examples, and msgpack headers
that promise more than there is, or nest. `altered` takes msgpack apart, changes one value to
something that its reader did not expect, and packs it again: the damage lies behind the parser.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import strategies as st

HUGE_HEADERS = (
    b"\xdd\xff\xff\xff\xff",  # array of 2**32 - 1
    b"\xdf\xff\xff\xff\xff",  # map
    b"\xdb\xff\xff\xff\xff",  # text
    b"\xc6\xff\xff\xff\xff",  # bytes
    b"\xc9\xff\xff\xff\xff\x05",  # extension
)
BOMBS = tuple(header * 2000 for header in (b"\x91", b"\x81\xa0", b"\xdc\x00\x01", b"\x92\xc0"))
NUMBERS = (
    b"\xcb" + struct.pack(">d", float("nan")),
    b"\xcb" + struct.pack(">d", float("inf")),
    b"\xca" + struct.pack(">f", float("-inf")),
    b"\xcb" + struct.pack(">d", -0.0),
    b"\xcf" + b"\xff" * 8,
    b"\xd3\x80" + b"\0" * 7,
    b"\xc1",  # a byte that msgpack never uses
    b"\xc7\x0c\xff" + b"\xff" * 12,  # a time stamp
)
TOKENS = HUGE_HEADERS + BOMBS + NUMBERS

EXTREMES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2**31,
    2**48 + 1,
    2**63,
    2**64 - 1,
    -(2**63),
    float("nan"),
    float("inf"),
    -float("inf"),
    1e308,
    "",
    "\0",
    "x" * 300,
    "\U0001f4a9" * 70,
    b"",
    b"\0" * 31,
    b"\xff" * 32,
    b"\xff" * 33,
    b"\0" * 64,
    [],
    [[]],
    {},
    {"": ""},
    [None] * 300,
)


@st.composite
def damaged(draw: st.DrawFn, examples: Sequence[bytes]) -> bytes:
    """One of the examples after a few changes to its bytes."""
    data = bytearray(draw(st.sampled_from(examples)))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        stop = min(len(data), start + draw(st.integers(0, 40)))
        match draw(st.integers(0, 6)):
            case 0 if start < len(data):
                data[start] ^= 1 << draw(st.integers(0, 7))
            case 1:
                del data[start:]
            case 2:
                del data[start:stop]
            case 3:
                data[start:start] = data[start:stop] * draw(st.integers(1, 20))
            case 4:
                data[start:stop] = draw(st.sampled_from(TOKENS))
            case 5:
                data[start:stop] = draw(st.binary(max_size=40))
            case 6:
                other = draw(st.sampled_from(examples))
                begin = draw(st.integers(0, len(other)))
                data[start:stop] = other[begin : begin + 60]
    return bytes(data)


@st.composite
def altered(draw: st.DrawFn, examples: Sequence[bytes]) -> bytes:
    """One of the examples (msgpack) with one value changed, moved, left out or doubled."""
    value = msgspec.msgpack.decode(draw(st.sampled_from(examples)))
    return msgspec.msgpack.encode(_altered(draw, value))


def _altered(draw: st.DrawFn, value: Any) -> Any:
    if isinstance(value, list) and value and draw(st.integers(0, 7)):
        index = draw(st.integers(0, len(value) - 1))
        before, after = value[:index], value[index + 1 :]
        match draw(st.integers(0, 9)):
            case 0:
                return before + after
            case 1:
                return [*before, value[index], value[index], *after]
            case 2:
                return [*after, value[index], *before]
            case _:
                return [*before, _altered(draw, value[index]), *after]
    if isinstance(value, dict) and value and draw(st.integers(0, 7)):
        key = draw(st.sampled_from(sorted(value, key=str)))
        others = {name: one for name, one in value.items() if name != key}
        match draw(st.integers(0, 9)):
            case 0:
                return others
            case 1:
                return {**value, draw(st.text(max_size=5)): value[key]}
            case _:
                return {**others, key: _altered(draw, value[key])}
    if isinstance(value, bytes) and draw(st.booleans()):
        if value and draw(st.booleans()):
            inner = draw(damaged([value]))
            return inner[: len(value)].ljust(len(value), b"\0")
        return draw(damaged([value]))
    if isinstance(value, int) and not isinstance(value, bool) and draw(st.booleans()):
        return max(-(2**63), min(2**64 - 1, value + draw(st.sampled_from((-1, 1, 255, -256)))))
    return draw(st.sampled_from(EXTREMES))


def anything(examples: Sequence[bytes], *, is_msgpack: bool = True) -> st.SearchStrategy[bytes]:
    """Random bytes, damaged examples, and where they are msgpack altered ones."""
    kinds = [st.binary(max_size=300), damaged(examples)]
    if is_msgpack:
        kinds += [altered(examples), altered(examples)]
    return st.one_of(*kinds)
