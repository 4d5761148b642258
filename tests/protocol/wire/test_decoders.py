"""Arbitrary bytes: a decoder takes them or blames their sender. It raises no other error."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.protocol.accounting.ledger import Ledger, decode_ledger
from gossamer.protocol.codecs.contributions import add_record, split
from gossamer.protocol.codecs.sign_codec import SignCodec, SignUpdate
from gossamer.protocol.codecs.sparse_codec import SparseCodec
from gossamer.protocol.codecs.tensor_codecs import codec
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import PeerId, digest_of, public_key_of
from gossamer.protocol.manifest import decode_manifest, encode_manifest
from gossamer.protocol.policy.plausible_work import WorkBounds
from gossamer.protocol.rounds.commit_proof import open_commit
from gossamer.protocol.rounds.inventory import Held, Inventory, decode_inventory, encode_inventory
from gossamer.protocol.rounds.roster import open_roster
from gossamer.protocol.shard_index import ShardIndex, ShardInfo, decode_index
from gossamer.protocol.state.chain import (
    ChunkAverage,
    UpdateIndex,
    decode_header,
    decode_update_index,
)
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.state.commit_records import decode_commit, encode_commit
from gossamer.protocol.state.digest import StateIndex, decode_state_index
from gossamer.protocol.wire.audit_messages import SumVerdict, Verdict
from gossamer.protocol.wire.block_messages import decode_reply, decode_request, encode_reply
from gossamer.protocol.wire.envelopes import decode_signed, open_signed
from gossamer.protocol.wire.framing import PREFIX_BYTES, decode_prefix
from gossamer.protocol.wire.opening_messages import (
    Closed,
    Open,
    Opened,
    Step,
    decode_answer,
    decode_question,
)
from gossamer.protocol.wire.statements import (
    Extension,
    LinkRate,
    MoreData,
    Rollback,
    Roster,
    Signed,
    Statement,
)
from tests.support.builders import (
    HEAD,
    RING_ID,
    RING_RULES,
    RUN_ID,
    SECRET,
    accusation_of,
    announce,
    commit_of,
    equivocation_of,
    header,
    manifest,
    peer,
    peers,
    ready,
    ring_of,
    sealed,
    vote,
)
from tests.support.mutations import BOMBS, HUGE_HEADERS, anything

Decoder = Callable[[bytes], object]
HEADER = to_msgpack(header(peers(3)))
COMMIT = commit_of(ring_of(peers(3)), sorted(peers(2)))


def anyone_signed(data: bytes) -> Statement:
    """The payload of a statement whose signature is good."""
    return open_signed(Signed(peer(0), data, bytes(64)), RUN_ID, lambda *_: True)


def statement(data: bytes) -> None:
    """A statement as a node takes it: with what the manifest says of work."""
    WorkBounds(manifest()).check_statement(anyone_signed(data), RUN_ID)


def roster(data: bytes) -> None:
    found = anyone_signed(data)
    if isinstance(found, Roster):
        envelope = Signed(peer(0), data, bytes(64))
        open_roster(envelope, found, RUN_ID, lambda *_: True, RING_RULES)


def commit(data: bytes) -> None:
    found = open_commit(decode_commit(data), RUN_ID, lambda *_: True, RING_RULES)
    WorkBounds(manifest()).check_header(found)


ROSTER = ring_of(peers(3), roots=dict.fromkeys(peers(3), HEAD), commitment=SECRET).roster
STATEMENTS: list[Statement] = [
    announce(),
    ready(root=HEAD, commitment=SECRET),
    accusation_of(peer(1)),
    vote(HEAD, removed=[peer(2)]),
    LinkRate(RING_ID, 2, 1e6, 1e6),
    Rollback(HEAD, RING_ID, 7),
    Extension(3, 2_000, 500),
    MoreData(3, HEAD, 2_000, 5_000),
    Verdict(7, HEAD, True, -0.25, 0.5),
    SumVerdict(7, HEAD, SECRET, peer(1), True),
    equivocation_of(peer(2)),
    ROSTER,
]
STEP = Step(1, b"\x03", HEAD, bytes(64), RING_ID)
INVENTORY = Inventory((Held(), Held(5), Held(3, (7, HEAD))))
DECODERS: dict[str, tuple[Decoder, list[bytes]]] = {
    "envelope": (decode_signed, [to_msgpack(sealed(peer(0), s)) for s in STATEMENTS]),
    "statement": (statement, [sealed(peer(0), s).payload for s in STATEMENTS]),
    "roster": (roster, [sealed(peer(0), ring_of(peers(3)).roster).payload]),
    "header": (decode_header, [HEADER]),
    "commit": (
        commit,
        [encode_commit(COMMIT), to_msgpack(COMMIT)],
    ),
    "update": (
        lambda data: decode_update_index(data, 1, 3),
        [to_msgpack(UpdateIndex("fp32", (ChunkAverage(HEAD, b"\x07"),)))],
    ),
    "ledger": (decode_ledger, [to_msgpack(Ledger(((0, 5), (3, 9))))]),
    "state": (
        lambda data: decode_state_index(data, ChunkPlan(10, 10)),
        [to_msgpack(StateIndex((HEAD,), (HEAD,)))],
    ),
    "manifest": (decode_manifest, [encode_manifest(manifest())]),
    "shard index": (
        decode_index,
        [to_msgpack(ShardIndex(shards=(ShardInfo(HEAD, 5, 5),), heldout=()))],
    ),
    "question of an auditor": (
        decode_question,
        [to_msgpack(Open(HEAD, SECRET, with_part=True))],
    ),
    "answer to an auditor": (
        decode_answer,
        [to_msgpack(Opened((STEP,), bytes(480))), to_msgpack(Closed())],
    ),
    "block request": (decode_request, [b"\x91\xc4\x20" + HEAD]),
    "block reply": (decode_reply, [encode_reply(digest_of(b"x"), found=True)]),
}
"""Decoders of MessagePack, each with valid examples."""

OTHERS: dict[str, tuple[Decoder, list[bytes]]] = {
    "fp32": (lambda data: codec("fp32").decode(data, 4), [bytes(16), b"\0\0\xc0\x7f" * 4]),
    "fp16": (lambda data: codec("fp16").decode(data, 4), [b"\0\0\x80\x3f" + bytes(8)]),
    "int8": (lambda data: codec("int8").decode(data, 130), [b"\x80\x3f\x80\x3f" + bytes(130)]),
    "int4": (lambda data: codec("int4").decode(data, 131), [b"\x80\x3f\x80\xbf" + bytes(66)]),
    "sparse": (
        lambda data: SparseCodec(3).decode(data, 5000),
        [SparseCodec(3).encode(np.arange(1, 5001, dtype=np.float32))],
    ),
    "contributions": (
        lambda data: split(data, 0b1001, 50),
        [add_record(add_record(None, 3, b"a block"), 0, b"")],
    ),
    "signs": (
        SignCodec([(3, 50)], 2).decode,
        [
            SignCodec([(3, 50)], 2).encode(
                SignUpdate(np.array([0, 1, 50, 51, 100, 101]), np.ones(6, bool))
            )
        ],
    ),
    "inventory": (
        lambda data: decode_inventory(data, 3, 9),
        [encode_inventory(INVENTORY, 9)],
    ),
    "peer id": (lambda data: public_key_of(PeerId(data.decode("latin-1"))), [peer(0).encode()]),
}

ALL = {**DECODERS, **OTHERS}
every = pytest.mark.parametrize("name", ALL)


def decode(name: str, data: bytes) -> None:
    try:
        ALL[name][0](data)
    except RemoteProtocolError as error:
        assert error.reason  # noqa: PT017  (what is caught is the point of the test)


@every
def test_the_examples_are_valid(name: str) -> None:
    decoder, examples = ALL[name]
    for example in examples:
        try:
            decoder(example)
        except RemoteProtocolError:
            assert name == "commit" or example == ALL["fp32"][1][1]  # no quorum; not a number


@every
@given(data=st.data())
def test_whatever_comes(name: str, data: st.DataObject) -> None:
    decode(name, data.draw(anything(ALL[name][1], is_msgpack=name in DECODERS)))


@every
def test_every_truncation(name: str) -> None:
    for example in ALL[name][1]:
        for stop in range(len(example)):
            decode(name, example[:stop])


@every
@pytest.mark.parametrize("bomb", [*HUGE_HEADERS, *BOMBS, b"\x91" * 100_000])
def test_bombs(name: str, bomb: bytes) -> None:
    decode(name, bomb)
    for example in ALL[name][1]:
        decode(name, example[: len(example) // 2] + bomb)


@given(st.binary(min_size=PREFIX_BYTES, max_size=PREFIX_BYTES))
def test_frame_prefixes(prefix: bytes) -> None:
    try:
        decode_prefix(prefix)
    except RemoteProtocolError as error:
        assert error.reason == "oversized"  # noqa: PT017
