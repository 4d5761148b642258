"""A member that signs two parts of one shared step, at a node that receives both."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from gossamer.node.rounds.dispatcher import RoundDispatcher
from gossamer.node.rounds.ring_chunks import ReceivedChunk, RingChunks, RingReceiver
from gossamer.protocol.codecs.contributions import add_record
from gossamer.protocol.errors import ForgedError
from gossamer.protocol.ids import PeerId
from gossamer.protocol.policy.conduct.equivocation import open_equivocation
from gossamer.protocol.rounds.actions import Signer
from gossamer.protocol.rounds.ring.ring_signatures import SignedAverages, SignedSteps
from gossamer.protocol.state.chunk_plan import ChunkPlan
from gossamer.protocol.wire.statements import Equivocation
from tests.protocol.codecs.test_step_payloads import CODEC, SIGNED, UPDATES
from tests.support.builders import RUN_ID, peers, ring_of, sign_as, verify
from tests.support.node_world import in_no_thread

RING = ring_of(peers(3))
SENDER, LIAR, ME = RING.members


class Node:
    """A node in a ring that takes everything that comes."""

    def __init__(self) -> None:
        self.proofs: list[Equivocation] = []
        self.num_taken = 0
        self._all_streams = SignedSteps()
        signed = SignedAverages(Signer(ME, RUN_ID, sign_as(ME)), RING, verify, SIGNED)
        dispatcher = SimpleNamespace(
            machine=SimpleNamespace(
                ring=RING, signed_averages=signed, has_to_check=lambda _mask, _finisher: True
            ),
            use_of=lambda _ring_id: "wanted",
            ring_event=self.takes,
            steps_signed=lambda found: self.proofs.extend(self._all_streams.add(found)),
        )
        plan = ChunkPlan(CODEC.num_chunks, 1)
        self.receivers = [
            RingReceiver(
                cast(RoundDispatcher, cast(Any, dispatcher)),
                RING.ring_id,
                RingChunks(plan, SIGNED, in_no_thread),
            )
            for _predecessor in range(2)
        ]

    def takes(self, *_: object) -> None:
        self.num_taken += 1

    def receives(
        self, payload: bytes, chunk: int = 0, finisher: int | None = 0, stream: int = 0
    ) -> None:
        received = ReceivedChunk(SENDER, chunk, 0b010, finisher, payload, b"")
        trio.run(self.receivers[stream].take, received)


def set_of(update: int, chunk: int = 0, author: PeerId = LIAR) -> bytes:
    """A set with the liar's record alone, which has one of its updates."""
    signed = SignedAverages(Signer(author, RUN_ID, sign_as(author)), RING, verify, SIGNED)
    parts = CODEC.cut(CODEC.encode(UPDATES[update]))
    blocks = SIGNED.signed_blocks(parts, lambda root: signed.sign_step(0, root))
    return add_record(None, RING.members.index(LIAR), blocks[chunk])


def test_two_parts_of_one_step_are_told_to_all_and_their_sender_is_not_to_blame() -> None:
    node = Node()
    node.receives(set_of(0), finisher=None)
    node.receives(set_of(0))
    assert not node.proofs
    node.receives(set_of(1))
    assert node.num_taken == 3
    (proof,) = node.proofs
    assert proof.first.author == LIAR
    ready = RING.ready[RING.members.index(LIAR)]
    assert open_equivocation(proof, RUN_ID, verify) == (ready.incarnation, ready.sequence)


def test_it_is_found_in_another_chunk_of_the_step_too() -> None:
    node = Node()
    node.receives(set_of(0, chunk=0))
    node.receives(set_of(1, chunk=2), chunk=2)
    assert len(node.proofs) == 1


def test_it_is_found_where_the_two_come_over_two_streams() -> None:
    node = Node()
    node.receives(set_of(0), stream=0)
    node.receives(set_of(1), stream=1)
    (proof,) = node.proofs
    assert proof.first.author == LIAR


def test_a_part_that_its_member_did_not_sign_is_refused() -> None:
    node = Node()
    with pytest.raises(ForgedError):
        node.receives(set_of(0, author=SENDER))
    assert (node.num_taken, node.proofs) == (0, [])
