"""Values that hold names of files."""

import os

import msgspec
import pytest

from gossamer.node.runs.founding.file_names import json_for_people, pack, unpack
from gossamer.node.runs.planning.draft import SourceDraft

LATIN = os.fsdecode(b"caf\xe9")


class Named(msgspec.Struct, frozen=True, tag="named"):
    names: tuple[str, ...]
    data: bytes
    sources: tuple[SourceDraft, ...] = ()


@pytest.mark.parametrize("name", ["plain", "café", LATIN, "\0", "\0é", ""])
def test_what_is_packed_is_unpacked(name: str) -> None:
    value = Named(("first", name), b"\0\xff", (SourceDraft(path=name, weight=0.1),))
    assert unpack(pack(value), Named) == value


def test_names_that_are_utf8_are_packed_as_msgspec_does() -> None:
    value = Named(("plain", "café"), b"\xff")
    assert pack(value) == msgspec.msgpack.encode(value)
    assert pack((value, [("a", 1)])) == msgspec.msgpack.encode((value, [("a", 1)]))


def test_people_read_a_name_that_is_not_utf8_with_escapes() -> None:
    value = Named((LATIN, "café"), b"\xff")
    read = msgspec.json.decode(json_for_people(value), type=Named)
    assert read == Named((r"caf\udce9", "café"), b"\xff")
