"""The parts of a shared step that their members sign (`trust = "open"`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.protocol import limits
from gossamer.protocol.codecs.contributions import RECORD_PREFIX_BYTES, add_record, split
from gossamer.protocol.codecs.sign_codec import SignCodec, SignUpdate
from gossamer.protocol.codecs.step_codec import StepCodec
from gossamer.protocol.codecs.step_payloads import SignPayloads
from gossamer.protocol.errors import ForgedError, MalformedError, RemoteProtocolError
from gossamer.protocol.ids import Digest, digest_of

CHUNKS = 3
CODEC = StepCodec([SignCodec([(2, 64)], 2), SignCodec([(1, 3)], 2), SignCodec([(3, 16)], 2)])
STEP = 5
FIRST = STEP * CHUNKS
ALL = 0b111


def sign_as(position: int, step: int, root: Digest) -> bytes:
    return 2 * digest_of(bytes([position, step]), root)


@dataclass
class Members:
    """Three members whose signature is a digest (a `MembersSigned`)."""

    num_checked: int = 0
    roots: Sequence[bytes] = field(default=(b"",) * 3)

    def check_step(self, position: int, step: int, root: Digest, signature: bytes) -> None:
        self.num_checked += 1
        if position >= len(self.roots):
            raise MalformedError("not in the ring")
        if signature != sign_as(position, step, root):
            raise ForgedError(f"member {position} did not sign this")


def update_of(seed: int) -> SignUpdate:
    draw = np.random.default_rng(seed)
    starts = [*range(0, 128, 64), *[128], *range(131, 131 + 48, 16)]
    sizes = [64, 64, 3, 16, 16, 16]
    places = [
        start + np.sort(draw.choice(size, 2, replace=False))
        for start, size in zip(starts, sizes, strict=True)
    ]
    return SignUpdate(np.concatenate(places), draw.random(2 * len(sizes)) < 0.5)


SIGNED = SignPayloads(CODEC, are_signed=True)
UPDATES = [update_of(seed) for seed in range(3)]


def blocks_of(position: int, *, gives: bool = True, step: int = STEP) -> tuple[bytes, ...]:
    parts = CODEC.cut(CODEC.encode(UPDATES[position])) if gives else (b"",) * CHUNKS
    return SIGNED.signed_blocks(parts, lambda root: sign_as(position, step, root))


def set_of(blocks: dict[int, bytes]) -> bytes:
    payload = b""
    for position, block in blocks.items():
        payload = add_record(payload, position, block)
    return payload


def whole_set(chunk: int) -> bytes:
    """Members 0 and 2 have a part, and member 1 abstains."""
    return set_of({each: blocks_of(each, gives=each != 1)[chunk] for each in range(3)})


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_chunk_is_what_its_members_signed(chunk: int) -> None:
    payload = whole_set(chunk)
    members = Members()
    SIGNED.check(payload, 1, ALL, FIRST + chunk, members)
    assert members.num_checked == 3  # one that abstains says so as well
    assert SIGNED.is_length(len(payload), 1, ALL, FIRST + chunk, is_average=True)
    assert not SIGNED.is_length(len(payload) + 2, 1, ALL, FIRST + chunk, is_average=True)
    assert SIGNED.contributors(payload, ALL) == 0b101
    found = SIGNED.updates(payload, ALL, chunk)
    for position in (0, 2):
        wanted = CODEC.decode_chunk(chunk, CODEC.cut(CODEC.encode(UPDATES[position]))[chunk])
        assert found[position].places.tolist() == wanted.places.tolist()
        assert found[position].is_positive.tolist() == wanted.is_positive.tolist()
    assert [*found] == [0, 2]


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_committed_chunk_names_the_members_that_have_a_part(chunk: int) -> None:
    payload = whole_set(chunk)
    SIGNED.check_committed(payload, 0b101, FIRST + chunk, Members())
    for others in (ALL, 0b001, 0b110):
        with pytest.raises(MalformedError, match="update index"):
            SIGNED.check_committed(payload, others, FIRST + chunk, Members())
    forged = set_of({0: blocks_of(0)[chunk], 1: blocks_of(0)[chunk]})
    with pytest.raises(ForgedError):
        SIGNED.check_committed(forged, 0b011, FIRST + chunk, Members())


def test_all_chunks_of_a_step_have_one_signature() -> None:
    signed: list[Digest] = []

    def sign(root: Digest) -> bytes:
        signed.append(root)
        return bytes(64)

    SIGNED.signed_blocks(CODEC.cut(CODEC.encode(UPDATES[0])), sign)
    assert len(signed) == 1


def test_among_members_that_trust_each_other_nothing_is_signed() -> None:
    trusting = SignPayloads(CODEC)
    parts = CODEC.cut(CODEC.encode(UPDATES[0]))
    assert trusting.signed_blocks(parts, lambda _root: b"never") == parts
    trusting.check(add_record(None, 0, parts[1]), 1, 0b1, FIRST + 1)
    assert (trusting.are_signed, trusting.are_audited) == (False, True)
    assert (SIGNED.are_signed, SIGNED.are_audited) == (True, False)


def forgeries() -> dict[str, tuple[int, dict[int, bytes]]]:
    """Chunks with a record that its member did not sign for this place, and their numbers."""
    good = {each: blocks_of(each) for each in range(3)}
    abstains = {each: blocks_of(each, gives=False) for each in range(3)}
    size = CODEC.chunk_bytes(0)
    flipped = bytes([good[1][0][0] ^ 1]) + good[1][0][1:]
    return {
        "another's part": (0, {0: good[0][0], 1: good[0][0]}),
        "a part with another signature": (0, {1: good[1][0][:size] + good[0][0][size:]}),
        "changed signs": (0, {0: good[0][0], 1: flipped}),
        "an abstention that was invented": (0, {1: good[1][0][size:]}),
        "a part behind an abstention's signature": (0, {1: good[1][0][:size] + abstains[1][0]}),
        "the part of another step": (0, {1: blocks_of(1, step=STEP + 1)[0]}),
        "the part of another chunk": (2, {1: good[1][0]}),
    }


@pytest.mark.parametrize("name", forgeries())
def test_what_its_member_did_not_sign_is_refused(name: str) -> None:
    chunk, blocks = forgeries()[name]
    mask = sum(1 << position for position in blocks)
    with pytest.raises(ForgedError):
        SIGNED.check(set_of(blocks), 1, mask, FIRST + chunk, Members())


def test_what_is_no_chunk_of_these_members() -> None:
    payload = whole_set(0)
    with pytest.raises(MalformedError, match="mask"):
        SIGNED.check(payload, 1, 0b011, FIRST, Members())
    with pytest.raises(MalformedError, match="not in the ring"):
        SIGNED.check(payload, 1, ALL, FIRST, Members(roots=(b"", b"")))
    for block in (b"", b"x" * 64):
        with pytest.raises(MalformedError, match="without its signature"):
            SIGNED.check(add_record(None, 0, block), 1, 1, FIRST, Members())
        with pytest.raises(MalformedError, match="without its signature"):
            SIGNED.updates(add_record(None, 0, block))
    noise = b"\xff" * CODEC.chunk_bytes(0)
    parts = (noise, *CODEC.cut(CODEC.encode(UPDATES[0]))[1:])
    signed = SIGNED.signed_blocks(parts, lambda root: sign_as(0, STEP, root))
    with pytest.raises(MalformedError):  # signed, and no update all the same
        SIGNED.check(add_record(None, 0, signed[0]), 1, 1, FIRST, Members())


GOOD = whole_set(2)


@given(noise=st.binary(max_size=200), place=st.integers(0, 10**4), mask=st.integers(0, 15))
def test_any_other_bytes_are_refused(noise: bytes, place: int, mask: int) -> None:
    """Noise alone, and noise somewhere in a good payload under any mask."""
    place %= len(GOOD)
    spoilt = GOOD[:place] + noise + GOOD[place + len(noise) :]
    for payload in (noise, spoilt):
        if (payload == GOOD and mask == ALL) or not (payload or mask):
            continue  # a set of nobody: the length of a mask of 0 is refused by the ring
        with pytest.raises(RemoteProtocolError):
            SIGNED.check(payload, 1, mask, FIRST + 2, Members())


def test_the_price_is_a_signature_and_a_short_path() -> None:
    price = 64 + 2 * 32  # three chunks are at the lowest level of a tree of four
    assert SIGNED.part_bytes(1) == SignPayloads(CODEC).part_bytes(1) + price
    alone = StepCodec([SignCodec([(2, 64)], 2)])
    in_one = SignPayloads(alone, are_signed=True)
    assert in_one.part_bytes(1) == SignPayloads(alone).part_bytes(1) + 64
    (record,) = split(GOOD[: RECORD_PREFIX_BYTES + len(blocks_of(0)[2])], 0b1, 1000)
    assert len(record.block) == CODEC.chunk_bytes(2) + price


def test_a_ring_has_no_more_members_than_a_block_has_room_for() -> None:
    large = StepCodec([SignCodec([(300, 4096)], 64)])
    payloads = SignPayloads(large, are_signed=True)
    members = payloads.members_max(1)
    assert members < limits.RING_MEMBERS_MAX
    assert members * payloads.part_bytes(1) <= limits.BLOCK_BYTES_MAX
    assert (members + 1) * payloads.part_bytes(1) > limits.BLOCK_BYTES_MAX
