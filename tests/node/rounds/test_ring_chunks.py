"""What a member receives of a packed chunk, with everything around it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import trio

from gossamer.node.rounds.dispatcher import RoundDispatcher
from gossamer.node.rounds.ring_chunks import (
    INLINE_BYTES_MAX,
    ReceivedChunk,
    RingChunks,
    RingReceiver,
)
from gossamer.protocol.codecs.payloads import Payloads, payloads_named
from gossamer.protocol.codecs.tensor_codecs import codec
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.rounds.actions import Send
from gossamer.protocol.rounds.inventory import ArrivedSum
from gossamer.protocol.state.chunk_plan import ChunkPlan
from tests.support.builders import peers, ring_of
from tests.support.node_world import in_no_thread

RING = ring_of(peers(3))
SENDER = RING.members[0]
SIZE = 128 * 1024
SMALL = 4096
PACKING = payloads_named("fp16", is_packing=True)


def payload_of(num_elements: int) -> bytes:
    values = np.random.default_rng(1).normal(0.0, 1e-3, num_elements).astype(np.float32)
    return bytes(codec("fp16").encode(values))


def received_by(payloads: Payloads, num_elements: int, sent: bytes) -> list[ArrivedSum]:
    """What the round of a member gets when a partial sum of one member comes with these bytes."""
    arrived: list[ArrivedSum] = []
    signed = SimpleNamespace(members=SimpleNamespace(take_found=list), check_sum=lambda *_: None)
    dispatcher = SimpleNamespace(
        machine=SimpleNamespace(
            ring=RING, signed_averages=signed, has_to_check=lambda _mask, _finisher: True
        ),
        use_of=lambda _ring_id: "wanted",
        ring_event=lambda _now, _ring, event: arrived.append(event.arrived),
        steps_signed=lambda _found: None,
    )
    chunks = RingChunks(ChunkPlan(num_elements, num_elements), payloads, in_no_thread)
    receiver = RingReceiver(cast(RoundDispatcher, cast(Any, dispatcher)), RING.ring_id, chunks)
    trio.run(receiver.take, ReceivedChunk(SENDER, 0, 0b001, None, bytearray(sent), b""))
    return arrived


def sent_by(payloads: Payloads, num_elements: int, payload: bytes) -> bytes:
    """The bytes that a link sends for a chunk."""
    chunks = RingChunks(ChunkPlan(num_elements, num_elements), payloads, in_no_thread)
    parts = trio.run(chunks.packed, Send(SENDER, 0, 0b001, None, payload))
    return b"".join(bytes(part) for part in parts)


@pytest.mark.parametrize("num_elements", [SMALL, SIZE])
def test_a_round_gets_the_payload_as_it_was(num_elements: int) -> None:
    payload = payload_of(num_elements)
    assert (len(payload) > INLINE_BYTES_MAX) == (num_elements == SIZE)
    sent = sent_by(PACKING, num_elements, payload)
    assert len(sent) < 0.9 * len(payload)
    (arrived,) = received_by(PACKING, num_elements, sent)
    assert bytes(arrived.payload) == payload
    (plain,) = received_by(PACKING, num_elements, payload)
    assert (arrived.digest, arrived.mask) == (plain.digest, plain.mask)


def test_a_run_without_packing_sends_and_takes_none() -> None:
    plain, payload = payloads_named("fp16"), payload_of(SMALL)
    assert sent_by(plain, SMALL, payload) == payload
    with pytest.raises(MalformedError, match="no chunk of such members"):
        received_by(plain, SMALL, sent_by(PACKING, SMALL, payload))


def test_what_cannot_be_unpacked_reaches_no_round() -> None:
    sent = sent_by(PACKING, SMALL, payload_of(SMALL))
    with pytest.raises(MalformedError, match="packed chunk"):
        received_by(PACKING, SMALL, sent[:-1])
    with pytest.raises(MalformedError, match="packed chunk"):
        received_by(PACKING, SMALL, sent[:-40] + bytes(40))


def test_what_is_unpacked_is_checked_like_any_payload() -> None:
    """Halves that are no number, packed as they should be."""
    payload = bytearray(payload_of(SMALL))
    payload[4:6] = b"\x00\x7e"
    with pytest.raises(MalformedError):
        received_by(PACKING, SMALL, sent_by(PACKING, SMALL, bytes(payload)))
