from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.protocol import limits
from gossamer.protocol.codecs.contributions import RECORD_PREFIX_BYTES, add_record
from gossamer.protocol.codecs.sign_codec import Shape, SignCodec, SignUpdate
from gossamer.protocol.codecs.step_codec import StepCodec
from gossamer.protocol.codecs.step_payloads import SignPayloads
from gossamer.protocol.errors import MalformedError
from tests.protocol.codecs.test_sign_codec import random_update

K = 3
SHAPES: list[Shape] = [(5, 64), (1, 2), (4, 100), (2, 7)]
CUTS = [SHAPES[:1], SHAPES[1:3], SHAPES[3:]]
UPDATE = random_update(SHAPES, K, seed=1)
IN_ONE = StepCodec([SignCodec(SHAPES, K)])
CODEC = StepCodec([SignCodec(shapes, K) for shapes in CUTS])


def test_a_step_in_one_chunk_is_a_sign_update_as_ever() -> None:
    assert IN_ONE.encode(UPDATE) == SignCodec(SHAPES, K).encode(UPDATE)
    assert IN_ONE.cut(IN_ONE.encode(UPDATE)) == (IN_ONE.encode(UPDATE),)


def same(one: SignUpdate, other: SignUpdate) -> bool:
    return bool(
        np.array_equal(one.places, other.places)
        and np.array_equal(one.is_positive, other.is_positive)
    )


@given(
    cuts=st.lists(
        st.lists(st.tuples(st.integers(1, 4), st.integers(1, 200)), min_size=1, max_size=3),
        min_size=1,
        max_size=5,
    ),
    k=st.integers(1, 9),
    seed=st.integers(0, 2**32 - 1),
)
def test_updates_come_back_whole_and_chunk_by_chunk(
    cuts: list[list[Shape]], k: int, seed: int
) -> None:
    coder = StepCodec([SignCodec(shapes, k) for shapes in cuts])
    update = random_update([shape for shapes in cuts for shape in shapes], k, seed)
    encoded = coder.encode(update)
    assert len(encoded) == coder.encoded_bytes
    assert same(coder.decode(encoded), update)
    chunks = coder.cut(encoded)
    assert [len(chunk) for chunk in chunks] == [coder.chunk_bytes(n) for n in range(len(cuts))]
    # Chunks are numbered through all steps of a round.
    parts = [coder.decode_chunk(7 * len(cuts) + n, chunk) for n, chunk in enumerate(chunks)]
    assert np.concatenate([part.places for part in parts]).tolist() == update.places.tolist()


def test_what_is_no_update_is_refused() -> None:
    encoded = CODEC.encode(UPDATE)
    for wrong in (encoded[:-1], encoded + b"\0", b""):
        with pytest.raises(ValueError, match="signs in"):
            CODEC.cut(wrong)
    with pytest.raises(ValueError, match="no chunks"):
        StepCodec([])
    with pytest.raises(ValueError, match="signs instead of"):
        CODEC.encode(SignUpdate(UPDATE.places[:-1], UPDATE.is_positive[:-1]))
    moved = UPDATE.places.copy()
    moved[-1] += 1_000
    with pytest.raises(ValueError, match="another tile"):
        CODEC.encode(SignUpdate(moved, UPDATE.is_positive))
    with pytest.raises(MalformedError):
        CODEC.decode_chunk(1, CODEC.cut(encoded)[0])


def test_a_payload_is_checked_as_the_chunk_that_it_is() -> None:
    payloads = SignPayloads(CODEC)
    sizes = [CODEC.chunk_bytes(chunk) for chunk in range(3)]
    assert len(set(sizes)) == 3
    for chunk in range(6):
        part = CODEC.cut(CODEC.encode(UPDATE))[chunk % 3]
        payload = add_record(add_record(None, 0, part), 2, b"")
        payloads.check(payload, 1, 0b101, chunk)
        assert payloads.contributors(payload, 0b101) == 0b001
        assert payloads.is_length(len(payload), 1, 0b101, chunk, is_average=True)
        (update,) = payloads.updates(payload, 0b101, chunk).values()
        assert set(update.places) <= set(UPDATE.places)
        other = chunk + 1
        assert not payloads.is_length(len(payload), 1, 0b101, other, is_average=True)
        with pytest.raises(MalformedError):
            payloads.check(payload, 1, 0b101, other)


def test_the_largest_chunk_bounds_the_ring() -> None:
    shapes: list[Shape] = [(1000, 4096)]
    whole = SignPayloads(StepCodec([SignCodec(shapes, 64)]))
    uneven = SignPayloads(StepCodec([SignCodec([(number, 4096)], 64) for number in (100, 900)]))
    room = limits.BLOCK_BYTES_MAX
    assert whole.members_max(1) == room // (RECORD_PREFIX_BYTES + 104_000) == 40
    assert uneven.members_max(1) == room // (RECORD_PREFIX_BYTES + 93_600) == 44
    assert uneven.part_bytes(1) == RECORD_PREFIX_BYTES + 52_000
