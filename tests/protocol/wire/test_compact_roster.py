"""Rosters that name the `Ready` of their members."""

from __future__ import annotations

import msgspec
import pytest

from gossamer.protocol.errors import MalformedError
from gossamer.protocol.wire.compact_roster import decode_compact, encode_compact, put_together
from gossamer.protocol.wire.statements import TAG_BYTES
from tests.support.builders import peers, ring_of

RING = ring_of(peers(4))
FOUND = {each.digest[:TAG_BYTES]: each for each in RING.roster.members}


def test_a_roster_is_put_together_byte_for_byte() -> None:
    compact = decode_compact(encode_compact(RING.envelope, RING.roster))
    assert put_together(compact, FOUND) == RING.envelope
    for tag in FOUND:
        assert put_together(compact, {t: one for t, one in FOUND.items() if t != tag}) is None


@pytest.mark.parametrize("tags", [b"", bytes(7), bytes(8 * 257)])
def test_it_names_one_member_to_the_most_of_a_ring(tags: bytes) -> None:
    good = encode_compact(RING.envelope, RING.roster)
    compact = decode_compact(good)
    assert len(compact.tags) == TAG_BYTES * len(RING.members)
    with pytest.raises(MalformedError, match="tags of"):
        decode_compact(msgspec.msgpack.encode(msgspec.structs.replace(compact, tags=tags)))
    with pytest.raises(MalformedError, match="not a compact roster"):
        decode_compact(good[:-1])
