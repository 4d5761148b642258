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
from gossamer.protocol.codecs.packing import packing_of
from gossamer.protocol.codecs.payloads import AveragedPayloads, payloads_named
from gossamer.protocol.codecs.record_tree import PATH_BYTES
from gossamer.protocol.codecs.tensor_codecs import codec
from gossamer.protocol.errors import MalformedError

PACKED = ("fp32", "fp16")
SIZE = 8192
ONE = 0b1


def values(seed: int, size: int = SIZE) -> np.ndarray:
    """Values as of a pseudo-gradient: a normal distribution, in rows of different length."""
    random = np.random.default_rng(seed)
    rows = np.exp(random.normal(0.0, 0.3, (size // 64, 1)))
    drawn: np.ndarray = (random.normal(0.0, 1e-3, (size // 64, 64)) * rows).astype(np.float32)
    return drawn.reshape(-1)


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
    packed = joined(payloads.packed(payload, SIZE, ONE))
    assert len(packed) < 0.9 * len(payload)
    assert payloads.is_packed_length(len(packed), SIZE, ONE)
    assert not payloads.is_packed_length(len(payload), SIZE, ONE)
    assert bytes(payloads.unpacked(bytearray(packed), SIZE, ONE)) == payload


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("num_records", [1, 2, 5])
def test_a_list_of_records_comes_back(name: str, num_records: int) -> None:
    """Records have an odd number of bytes before their chunk, so each has its values elsewhere."""
    assert RECORD_PREFIX_BYTES % 2 == 1
    payloads, mask = payloads_named(name, trust="open", is_packing=True), mask_of(num_records)
    payload = records(name, 7, num_records)
    assert payloads.is_length(len(payload), SIZE, mask, is_average=False)
    packed = joined(payloads.packed(payload, SIZE, mask))
    assert len(packed) < 0.91 * len(payload)
    assert payloads.is_packed_length(len(packed), SIZE, mask)
    assert bytes(payloads.unpacked(bytearray(packed), SIZE, mask)) == payload


@pytest.mark.parametrize("name", PACKED)
def test_what_gets_no_shorter_travels_as_it_is(name: str) -> None:
    """So does a chunk whose bytes are noise, and one that is too short for a frame."""
    payloads = payloads_named(name, is_packing=True)
    for size in (1, 3, SIZE):
        noise = np.random.default_rng(2).bytes(codec(name).encoded_bytes(size))
        assert joined(payloads.packed(noise, size, ONE)) == noise


@pytest.mark.parametrize("name", ["int8", "int4", "sparse"])
@pytest.mark.parametrize("trust", ["members", "open"])
def test_other_codecs_have_no_packing(name: str, trust: str) -> None:
    payloads: AveragedPayloads = payloads_named(name, trust=trust, is_packing=True)  # type: ignore[arg-type]
    assert not payloads.is_packing
    payload = bytes(codec("int8").encode(values(3)))
    assert payloads.packed(payload, SIZE, ONE) == (payload,)
    assert not any(payloads.is_packed_length(length, SIZE, ONE) for length in range(SIZE))


@pytest.mark.parametrize("trust", ["members", "open"])
def test_a_run_without_packing_takes_nothing_that_is_packed(trust: str) -> None:
    payloads = payloads_named("fp16", trust=trust)  # type: ignore[arg-type]
    assert not payloads.is_packing
    length = payloads.part_bytes(SIZE)
    assert not any(payloads.is_packed_length(each, SIZE, ONE) for each in range(length))


@given(seed=st.integers(0, 99), size=st.integers(1, 40), num_records=st.integers(1, 4))
def test_lists_of_any_size_come_back(seed: int, size: int, num_records: int) -> None:
    size *= 64
    payloads, mask = payloads_named("fp16", trust="open", is_packing=True), mask_of(num_records)
    payload = records("fp16", seed, num_records, size)
    packed = joined(payloads.packed(payload, size, mask))
    if payloads.is_packed_length(len(packed), size, mask):
        packed = bytes(payloads.unpacked(bytearray(packed), size, mask))
    assert packed == payload


@pytest.mark.parametrize("name", PACKED)
@given(noise=st.binary(max_size=64), at=st.integers(0, 10_000))
def test_damage_is_a_clear_error_or_another_payload_of_that_length(
    name: str, noise: bytes, at: int
) -> None:
    payloads = payloads_named(name, is_packing=True)
    payload = bytes(codec(name).encode(values(4, 1024)))
    packed = bytearray(joined(payloads.packed(payload, 1024, ONE)))
    at %= len(packed)
    packed[at : at + len(noise)] = noise
    if not payloads.is_packed_length(len(packed), 1024, ONE):
        return
    with contextlib.suppress(MalformedError):
        assert len(payloads.unpacked(packed, 1024, ONE)) == len(payload)


def test_frames_of_another_content_are_refused() -> None:
    payloads = payloads_named("fp16", is_packing=True)
    payload = bytes(codec("fp16").encode(values(5)))
    rest, frame = payloads.packed(payload, SIZE, ONE)
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
            payloads.unpacked(bytes(rest) + false_frame, SIZE, ONE)


def test_lengths_that_no_packing_has_are_none() -> None:
    packing = packing_of("fp16")
    assert packing is not None
    whole = 4 + 2 * SIZE
    assert not packing.is_packed_length(4 + SIZE, whole, SIZE)  # without any frame
    assert packing.is_packed_length(5 + SIZE, whole, SIZE)
    assert not packing.is_packed_length(whole, whole, SIZE)
    # More members than any ring has, whose records would take more memory than a frame.
    beyond = limits.BLOCK_BYTES_MAX + 1
    assert not packing.is_packed_length(beyond - 1, beyond, beyond // 2)
