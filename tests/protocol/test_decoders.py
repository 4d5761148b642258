"""Whatever bytes come: a decoder takes them or blames their sender; it raises nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from builders import HEAD, RUN_ID, announce, header, manifest, peer, peers, ready, sealed, vote
from hypothesis import given
from hypothesis import strategies as st

from gossamer.protocol.block_messages import decode_reply, decode_request, encode_reply
from gossamer.protocol.chain import (
    ChunkFinal,
    Commit,
    UpdateIndex,
    decode_commit,
    decode_header,
    decode_update_index,
    encode_commit,
    encode_header,
    encode_update_index,
    open_commit,
)
from gossamer.protocol.chunks import ChunkPlan
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.framing import PREFIX_BYTES, decode_prefix
from gossamer.protocol.ids import PeerId, digest_of, public_key_of
from gossamer.protocol.ledger import Ledger, decode_ledger, encode_ledger
from gossamer.protocol.manifest import (
    ShardIndex,
    ShardInfo,
    decode_index,
    decode_manifest,
    encode_index,
    encode_manifest,
)
from gossamer.protocol.messages import Signed, decode_signed, encode_signed, open_signed
from gossamer.protocol.state import StateIndex, decode_state_index, encode_state_index
from gossamer.protocol.tensor_codecs import codec

Decoder = Callable[[bytes], object]
HEADER = encode_header(header(peers(3)))


def anything_signed(data: bytes) -> object:
    """The payload of a statement whose signature is good."""
    return open_signed(Signed(peer(0), data, bytes(64)), RUN_ID, lambda *_: True)


def commit(data: bytes) -> object:
    return open_commit(decode_commit(data), RUN_ID, lambda *_: True)


DECODERS: dict[str, tuple[Decoder, list[bytes]]] = {
    "envelope": (decode_signed, [encode_signed(sealed(peer(0), ready()))]),
    "statement": (
        anything_signed,
        [sealed(peer(0), s).payload for s in (announce(), ready(), vote(HEAD))],
    ),
    "header": (decode_header, [HEADER]),
    "commit": (
        commit,
        [encode_commit(Commit(HEADER, (sealed(peer(0), vote(digest_of(HEADER))),)))],
    ),
    "update": (
        lambda data: decode_update_index(data, 1, 3),
        [encode_update_index(UpdateIndex("fp32", (ChunkFinal(HEAD, b"\x07"),)))],
    ),
    "ledger": (decode_ledger, [encode_ledger(Ledger(((0, 5), (3, 9))))]),
    "state": (
        lambda data: decode_state_index(data, ChunkPlan(10, 10)),
        [encode_state_index(StateIndex((HEAD,), (HEAD,)))],
    ),
    "manifest": (decode_manifest, [encode_manifest(manifest())]),
    "shard index": (
        decode_index,
        [encode_index(ShardIndex(shards=(ShardInfo(HEAD, 5, 5),), heldout=()))],
    ),
    "block request": (decode_request, [b"\x91\xc4\x20" + HEAD]),
    "block reply": (decode_reply, [encode_reply(digest_of(b"x"), found=True)]),
    "fp32": (lambda data: codec("fp32").decode(data, 4), [bytes(16)]),
    "fp16": (lambda data: codec("fp16").decode(data, 4), [b"\0\0\x80\x3f" + bytes(8)]),
    "peer id": (lambda data: public_key_of(PeerId(data.decode("latin-1"))), [peer(0).encode()]),
}

both = pytest.mark.parametrize("name", DECODERS)


def decode(name: str, data: bytes) -> None:
    try:
        DECODERS[name][0](data)
    except RemoteProtocolError as error:
        assert error.reason  # noqa: PT017  (what is caught is the point of the test)


@both
def test_the_examples_are_valid(name: str) -> None:
    decoder, examples = DECODERS[name]
    for example in examples:
        try:
            decoder(example)
        except RemoteProtocolError:
            assert name == "commit"  # one vote of three is no quorum


@both
@given(data=st.binary(max_size=300))
def test_random_bytes(name: str, data: bytes) -> None:
    decode(name, data)


@both
@given(data=st.data())
def test_damaged_examples(name: str, data: st.DataObject) -> None:
    """Truncated, lengthened, and with some bytes changed."""
    example = bytearray(data.draw(st.sampled_from(DECODERS[name][1])))
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.integers(0, len(example) - 1))
        example[place] = data.draw(st.integers(0, 255))
    stop = data.draw(st.integers(0, len(example)))
    decode(name, bytes(example[:stop]) + data.draw(st.binary(max_size=3)))


@both
def test_every_truncation(name: str) -> None:
    for example in DECODERS[name][1]:
        for stop in range(len(example)):
            decode(name, example[:stop])


@both
def test_deep_nesting(name: str) -> None:
    decode(name, b"\x91" * 100_000)


@given(st.binary(min_size=PREFIX_BYTES, max_size=PREFIX_BYTES))
def test_frame_prefixes(prefix: bytes) -> None:
    try:
        decode_prefix(prefix)
    except RemoteProtocolError as error:
        assert error.reason == "oversized"  # noqa: PT017
