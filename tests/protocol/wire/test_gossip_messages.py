"""Messages without what the receiver has already."""

from __future__ import annotations

import msgspec
import pytest

from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import PeerId
from gossamer.protocol.wire.gossip_messages import (
    decode_compact,
    decode_own,
    encode_compact,
    encode_own,
    put_together,
)
from gossamer.protocol.wire.statements import TAG_BYTES
from tests.support.builders import peers, ring_of

RING = ring_of(peers(4))
FOUND = {each.digest[:TAG_BYTES]: each for each in RING.roster.members}


def test_a_roster_is_put_together_byte_for_byte() -> None:
    compact = decode_compact(encode_compact(RING.envelope, RING.roster))
    assert put_together(RING.organiser, compact, FOUND) == RING.envelope
    for tag in FOUND:
        others = {each: one for each, one in FOUND.items() if each != tag}
        assert put_together(RING.organiser, compact, others) is None


def test_an_envelope_has_the_author_of_its_message() -> None:
    one = RING.roster.members[0]
    assert decode_own(PeerId(one.author), encode_own(one)) == one
    assert len(to_msgpack(one)) - len(encode_own(one)) == len(one.author) + 2
    with pytest.raises(MalformedError, match="not an envelope"):
        decode_own(PeerId(one.author), to_msgpack(one))


@pytest.mark.parametrize("tags", [b"", bytes(7), bytes(8 * 257)])
def test_it_names_one_member_to_the_most_of_a_ring(tags: bytes) -> None:
    good = encode_compact(RING.envelope, RING.roster)
    compact = decode_compact(good)
    assert len(compact.tags) == TAG_BYTES * len(RING.members)
    with pytest.raises(MalformedError, match="tags of"):
        decode_compact(msgspec.msgpack.encode(msgspec.structs.replace(compact, tags=tags)))
    with pytest.raises(MalformedError, match="not a compact roster"):
        decode_compact(good[:-1])
