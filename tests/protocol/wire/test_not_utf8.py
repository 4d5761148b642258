"""Text that is not UTF-8 is a malformed message; msgspec raises a UnicodeDecodeError for it."""

from __future__ import annotations

import msgspec
import pytest

from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.wire.envelopes import decode_signed
from gossamer.protocol.wire.statements import Signed


def test_an_author_that_is_no_text() -> None:
    good = to_msgpack(Signed(author="ab", payload=b"p", signature=b"s"))
    bad = good.replace(b"ab", b"\xff\xfe")
    assert bad != good
    with pytest.raises(UnicodeDecodeError):
        msgspec.msgpack.decode(bad, type=Signed)
    with pytest.raises(MalformedError):
        decode_signed(bad)
