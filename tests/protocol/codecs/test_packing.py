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
from gossamer.protocol.codecs.packing import LAYOUTS, Packing
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


@pytest.mark.parametrize("name", ["int8", "int4", "sparse"])
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
    packing = Packing(LAYOUTS["fp16"], whole, (0,), SIZE)
    assert not packing.is_length(4 + SIZE)  # without any frame
    assert packing.is_length(5 + SIZE)
    assert not packing.is_length(whole)
    # More members than any ring has, whose records would take more memory than a frame.
    beyond = limits.BLOCK_BYTES_MAX + 1
    assert not Packing(LAYOUTS["fp16"], beyond, (0,), beyond // 2).is_length(beyond - 1)
