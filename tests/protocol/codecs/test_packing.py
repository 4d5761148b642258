"""Packing of chunks on their way: nothing is lost, and nothing that is received can do harm."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from gossamer.protocol import limits
from gossamer.protocol.codecs.contributions import RECORD_PREFIX_BYTES, add_record
from gossamer.protocol.codecs.packing import (
    LAYOUTS,
    FloatPacking,
    Packing,
    PlacePacking,
    packed_place_bytes,
)
from gossamer.protocol.codecs.payloads import SPARSE, AveragedPayloads, SetPayloads, payloads_named
from gossamer.protocol.codecs.record_tree import PATH_BYTES
from gossamer.protocol.codecs.sparse_codec import SparseCodec, pack_places, place_bytes
from gossamer.protocol.codecs.tensor_codecs import codec
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.manifest import Trust

PACKED = ("fp32", "fp16")
SIZE = 8192
ONE = 0b1


def values(seed: int, size: int = SIZE) -> np.ndarray:
    """Values as of a pseudo-gradient: a normal distribution, in rows of different length."""
    random = np.random.default_rng(seed)
    rows = np.exp(random.normal(0.0, 0.3, (size // 64, 1)))
    drawn: np.ndarray = (random.normal(0.0, 1e-3, (size // 64, 64)) * rows).astype(np.float32)
    return drawn.reshape(-1)


def packing_of(payloads: AveragedPayloads, size: int, mask: int = ONE) -> Packing:
    packing = payloads.packing(size, mask)
    assert packing is not None
    return packing


def joined(parts: object) -> bytes:
    return b"".join(bytes(part) for part in parts)  # type: ignore[attr-defined]


def records(name: str, seed: int, num_records: int, size: int = SIZE) -> bytes:
    """A list of so many members' records, at every second ring position."""
    payload: bytes | None = None
    random = np.random.default_rng(seed)
    for record in range(num_records):
        block = bytes(codec(name).encode(values(seed + record, size))) + random.bytes(PATH_BYTES)
        payload = add_record(payload, 2 * record, block)
    assert payload is not None
    return payload


def mask_of(num_records: int) -> int:
    return sum(1 << 2 * record for record in range(num_records))


@pytest.mark.parametrize("name", PACKED)
def test_a_sum_comes_back_and_is_shorter_on_its_way(name: str) -> None:
    payloads = payloads_named(name, is_packing=True)
    payload = bytes(codec(name).encode(values(1)))
    packed = joined(packing_of(payloads, SIZE, ONE).pack(payload))
    assert len(packed) < 0.9 * len(payload)
    assert packing_of(payloads, SIZE, ONE).is_length(len(packed))
    assert not packing_of(payloads, SIZE, ONE).is_length(len(payload))
    assert bytes(packing_of(payloads, SIZE, ONE).unpack(bytearray(packed))) == payload


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("num_records", [1, 2, 5])
def test_a_list_of_records_comes_back(name: str, num_records: int) -> None:
    """Records have an odd number of bytes before their chunk, so each has its values elsewhere."""
    assert RECORD_PREFIX_BYTES % 2 == 1
    payloads, mask = payloads_named(name, trust="open", is_packing=True), mask_of(num_records)
    payload = records(name, 7, num_records)
    assert payloads.is_length(len(payload), SIZE, mask, is_average=False)
    packed = joined(packing_of(payloads, SIZE, mask).pack(payload))
    assert len(packed) < 0.91 * len(payload)
    assert packing_of(payloads, SIZE, mask).is_length(len(packed))
    assert bytes(packing_of(payloads, SIZE, mask).unpack(bytearray(packed))) == payload


@pytest.mark.parametrize("name", PACKED)
def test_what_gets_no_shorter_travels_as_it_is(name: str) -> None:
    """So does a chunk whose bytes are noise, and one that is too short for a frame."""
    payloads = payloads_named(name, is_packing=True)
    for size in (1, 3, SIZE):
        noise = np.random.default_rng(2).bytes(codec(name).encoded_bytes(size))
        assert joined(packing_of(payloads, size, ONE).pack(noise)) == noise


@pytest.mark.parametrize("name", ["int8", "int4"])
@pytest.mark.parametrize("trust", ["members", "open"])
def test_other_codecs_have_no_packing(name: str, trust: str) -> None:
    payloads: AveragedPayloads = payloads_named(name, trust=trust, is_packing=True)  # type: ignore[arg-type]
    assert payloads.packing(SIZE, ONE) is None


@pytest.mark.parametrize("trust", ["members", "open"])
def test_a_run_without_packing_takes_nothing_that_is_packed(trust: str) -> None:
    payloads = payloads_named("fp16", trust=trust)  # type: ignore[arg-type]
    assert payloads.packing(SIZE, ONE) is None


@given(seed=st.integers(0, 99), size=st.integers(1, 40), num_records=st.integers(1, 4))
def test_lists_of_any_size_come_back(seed: int, size: int, num_records: int) -> None:
    size *= 64
    payloads, mask = payloads_named("fp16", trust="open", is_packing=True), mask_of(num_records)
    payload = records("fp16", seed, num_records, size)
    packed = joined(packing_of(payloads, size, mask).pack(payload))
    if packing_of(payloads, size, mask).is_length(len(packed)):
        packed = bytes(packing_of(payloads, size, mask).unpack(bytearray(packed)))
    assert packed == payload


@pytest.mark.parametrize("name", PACKED)
@given(noise=st.binary(max_size=64), at=st.integers(0, 10_000))
def test_damage_is_a_clear_error_or_another_payload_of_that_length(
    name: str, noise: bytes, at: int
) -> None:
    payloads = payloads_named(name, is_packing=True)
    payload = bytes(codec(name).encode(values(4, 1024)))
    packed = bytearray(joined(packing_of(payloads, 1024, ONE).pack(payload)))
    at %= len(packed)
    packed[at : at + len(noise)] = noise
    if not packing_of(payloads, 1024, ONE).is_length(len(packed)):
        return
    with contextlib.suppress(MalformedError):
        assert len(packing_of(payloads, 1024, ONE).unpack(packed)) == len(payload)


def test_frames_of_another_content_are_refused() -> None:
    payloads = payloads_named("fp16", is_packing=True)
    payload = bytes(codec("fp16").encode(values(5)))
    rest, frame = packing_of(payloads, SIZE, ONE).pack(payload)
    compress = zstandard.ZstdCompressor().compress
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress
    for false_frame in (
        compress(bytes(SIZE - 1)),
        compress(bytes(SIZE + 1)),
        compress(bytes(2**26)),  # some 2 kB that would take 64 MiB
        unsized(bytes(SIZE)),
        bytes(frame) + b"more",
        bytes(frame) + compress(bytes(SIZE)),
        bytes(frame)[:-1],
        b"",
    ):
        with pytest.raises(MalformedError, match="packed chunk"):
            packing_of(payloads, SIZE, ONE).unpack(bytes(rest) + false_frame)


def test_lengths_that_no_packing_has_are_none() -> None:
    whole = 4 + 2 * SIZE
    packing = FloatPacking(whole, (0,), SIZE, LAYOUTS["fp16"])
    assert not packing.is_length(4 + SIZE)  # without any frame
    assert packing.is_length(5 + SIZE)
    assert not packing.is_length(whole)
    # More members than any ring has, whose records would take more memory than a frame.
    beyond = limits.BLOCK_BYTES_MAX + 1
    assert not FloatPacking(beyond, (0,), beyond // 2, LAYOUTS["fp16"]).is_length(beyond - 1)


# Places of sparse updates


TRUSTS: tuple[Trust, ...] = ("members", "open")


def sparse_records(top_k: int, seed: int, num_records: int, size: int, tail: int) -> bytes:
    """A list of so many members' sparse updates, with `tail` bytes behind each."""
    payload: bytes | None = None
    random = np.random.default_rng(seed)
    for record in range(num_records):
        drawn = random.normal(0.0, 1e-3, size).astype(np.float32)
        block = SparseCodec(top_k).encode(drawn) + random.bytes(tail)
        payload = add_record(payload, 2 * record, block)
    assert payload is not None
    return payload


def places_of(top_k: int, size: int) -> PlacePacking:
    """The packing of one member's update in a run whose members trust each other."""
    packing = packing_of(payloads_named(SPARSE, top_k, is_packing=True), size)
    assert isinstance(packing, PlacePacking)
    return packing


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("num_records", [1, 2, 5])
@pytest.mark.parametrize(
    ("top_k", "share"), [(1, 1.0), (64, 0.78), (256, 0.57), (1024, 0.43), (2048, 0.35), (4096, 0.2)]
)
def test_places_come_back_and_are_shorter_on_their_way(
    top_k: int, share: float, num_records: int, trust: Trust
) -> None:
    """By about what entropy says: 7.4 of 12 bits of each of 64 places, 3.2 of each of 1,024."""
    size, tail = 40_000, PATH_BYTES if trust == "open" else 0
    payloads = payloads_named(SPARSE, top_k, trust, is_packing=True)
    mask, payload = mask_of(num_records), sparse_records(top_k, 3, num_records, size, tail)
    packing = packing_of(payloads, size, mask)
    packed = joined(packing.pack(payload))
    if packed == payload:
        assert top_k == 1  # ten places are too few for a frame
        return
    whole, sent = (len(each) - num_records * tail for each in (payload, packed))
    assert sent < share * whole
    assert packing.is_length(len(packed))
    assert not packing.is_length(len(payload))
    assert bytes(packing.unpack(bytearray(packed))) == payload


@given(
    seed=st.integers(0, 99),
    size=st.integers(1, 9_000),
    num_records=st.integers(1, 4),
    top_k=st.sampled_from((1, 5, 64, 1000, 2048, 4095, 4096)),
    trust=st.sampled_from(TRUSTS),
)
def test_places_of_any_number_come_back(
    seed: int, size: int, num_records: int, top_k: int, trust: Trust
) -> None:
    tail = PATH_BYTES if trust == "open" else 0
    payloads = payloads_named(SPARSE, top_k, trust, is_packing=True)
    mask, payload = mask_of(num_records), sparse_records(top_k, seed, num_records, size, tail)
    packing = packing_of(payloads, size, mask)
    packed = joined(packing.pack(payload))
    if packing.is_length(len(packed)):
        packed = bytes(packing.unpack(bytearray(packed)))
    assert packed == payload


@pytest.mark.parametrize("first", [0, 254, 255, 256, 509, 510, 511, 4095])
def test_steps_around_a_whole_byte_come_back(first: int) -> None:
    """Those of 255 and more have further bytes."""
    size, top_k = 8 * 4096, 1
    drawn = np.zeros((8, 4096), np.float32)
    drawn[:, first] = 1.0
    drawn[1::2, first] = 0.0
    drawn[1::2, 4095 - first] = -1.0
    payload = add_record(None, 0, SparseCodec(top_k).encode(drawn.reshape(-1)))
    steps = np.diff(SparseCodec(top_k).decode(payload[RECORD_PREFIX_BYTES:], size).places) - 1
    content = b"".join(b"\xff" * (step // 255) + bytes([step % 255]) for step in (first, *steps))
    packing = places_of(top_k, size)
    rest = payload[: -place_bytes(8)]
    frame = zstandard.ZstdCompressor().compress(content)
    assert bytes(packing.unpack(rest + frame)) == payload


@pytest.mark.parametrize("size", [1, 100, 4096, 8192])
def test_noise_in_the_place_of_updates_travels_as_it_is(size: int) -> None:
    """Its places do not ascend. The receiver checks it like any payload."""
    for top_k in (64, 4096):
        packing = places_of(top_k, size)
        noise = np.random.default_rng(2).bytes(packing.num_bytes)
        assert joined(packing.pack(noise)) == noise


def test_bits_behind_the_places_are_not_lost() -> None:
    """A payload that has some is malformed, and a packing that mended it would hide that."""
    size = 101  # of which three values are kept, so half a byte is left
    payload = bytearray(sparse_records(100, 1, 1, size, 0))
    payload[-1] |= 0x80
    assert joined(places_of(100, size).pack(payload)) == bytes(payload)


def test_steps_that_are_no_update_are_refused() -> None:
    size, top_k = 8192, 64
    payload = sparse_records(top_k, 5, 1, size, 0)
    packing = places_of(top_k, size)
    rest, _frame = (bytes(part) for part in packing.pack(payload))
    compress = zstandard.ZstdCompressor().compress
    good = bytes([20] * 128)
    for content, what in (
        (good[:-1], "length"),
        (good + bytes(33), "length"),  # longer than the steps of any update
        (bytes(2**26), "length"),  # some 2 kB that would take 64 MiB
        (good + b"\x00", "number of places"),
        (good + b"\xff", "number of places"),
        (good[:-1] + b"\xff\xff", "number of places"),
        (bytes(128), "outside of their blocks"),  # all in the first block
        (bytes([100] * 128), "outside of their blocks"),  # beyond the last one
        (bytes([0] * 65) + bytes([254] * 16) + bytes([0] * 47), "outside of their blocks"),
    ):
        with pytest.raises(MalformedError, match=what):
            packing.unpack(rest + compress(content))
    for false_frame in (b"", compress(good)[:-1], compress(good) + b"more"):
        with pytest.raises(MalformedError, match="packed chunk"):
            packing.unpack(rest + false_frame)


@given(noise=st.binary(max_size=64), at=st.integers(0, 10_000), num_records=st.integers(1, 3))
def test_damage_of_places_is_a_clear_error_or_another_payload_of_that_length(
    noise: bytes, at: int, num_records: int
) -> None:
    payloads, mask = payloads_named(SPARSE, 256, is_packing=True), mask_of(num_records)
    payload = sparse_records(256, 4, num_records, 5000, 0)
    packing = packing_of(payloads, 5000, mask)
    packed = bytearray(joined(packing.pack(payload)))
    at %= len(packed)
    packed[at : at + len(noise)] = noise
    if not packing.is_length(len(packed)):
        return
    with contextlib.suppress(MalformedError):
        unpacked = packing.unpack(packed)
        assert len(unpacked) == len(payload)
        # What was unpacked has places of an update, so packing it brings it back.
        assert bytes(packing.unpack(joined(packing.pack(unpacked)))) == bytes(unpacked)


@pytest.mark.parametrize("top_k", [16, 64, 256, 1024, 2048, 4096])
def test_the_estimate_of_packed_places_is_near_what_they_take(top_k: int) -> None:
    size = 262_144
    packing = places_of(top_k, size)
    _rest, frame = packing.pack(sparse_records(top_k, 6, 1, size, 0))
    estimate = packed_place_bytes(SparseCodec(top_k), size)
    if top_k == 4096:
        assert memoryview(frame).nbytes < 0.01 * estimate  # all are kept, so nothing has to be said
    else:
        assert memoryview(frame).nbytes == pytest.approx(estimate, rel=0.1)
    assert estimate < place_bytes(SparseCodec(top_k).num_kept(size))


def test_sums_of_sparse_updates_have_no_packing() -> None:
    payloads = payloads_named(SPARSE, 64, sparse_sums_of=SIZE, is_packing=True)
    assert isinstance(payloads, SetPayloads)
    most = payloads.set_members_max
    assert payloads.packing(SIZE, (1 << most) - 1) is not None
    assert payloads.packing(SIZE, (1 << most + 1) - 1) is None


def test_packing_places_is_the_inverse_of_their_encoding() -> None:
    places = np.array([0, 1, 4095], np.uint16)
    assert pack_places(places).hex() == "001000ff0f"
