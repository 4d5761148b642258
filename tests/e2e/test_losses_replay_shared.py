"""Shared steps (`sync = "distro"`) by real daemons, and by `tests/benchmarks/losses.py`: same bits.

The finals of a round's steps are on disk and say whose part is in which step. The text behind them
is in the next round's header. Replayed by the code of the table of losses, every peer has to offer
the very bytes that it offered then, and every round has to lead to the state that was committed.

A peer takes its gradient where all are when its last part was taken, be it late for the next step
or not. So steps that went on without somebody can be replayed like any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from _losses_distro import SharedPeer, SharedSwarm
from _parity_training import Text
from replays import Record, one_thread, owners, run_swarm

from gossamer.node.storage.shared_theta import sign_payloads
from gossamer.protocol.chain import Header, decode_update_index
from gossamer.protocol.contributions import split
from gossamer.protocol.ids import Digest
from gossamer.protocol.messages import Span
from gossamer.trainer.messages import SharedSteps

pytestmark = pytest.mark.e2e

ROUNDS = 4
STEPS = 6
SEQUENCES = 2
MANIFEST = f"""\
preset = "tiny"
name = "replay"
sync = "distro"
[tokenizer]
kind = "bytes"
[model]
num_layers = 1
width = 32
num_heads = 2
num_kv_heads = 1
hidden_width = 64
context = 32
[inner]
learning_rate = 3e-3
warmup_steps = 4
total_steps = 20
sequences_per_step = {SEQUENCES}
clip_norm = 0.5
[outer]
inner_steps = {STEPS}
top_k = 4
lookahead = {{lookahead}}
chunk_elements = 2048
[rounds]
round_seconds = 600.0
gather_seconds = 600.0
gather_fraction = 600.0
checkpoint_rounds = 1_000
"""
"""Gradients are clipped, the learning rate rises, falls and stays, and most of what a step finds
stays in the momentum. Without checkpoints the disk keeps all finals."""


@dataclass(frozen=True)
class SharedRound:
    """One that was committed."""

    header: Header
    parts: tuple[dict[str, bytes], ...]
    """Of each step, by who has a part in it."""
    spans: tuple[Span, ...]
    """The text that its members took gradients of."""


def rounds_of(record: Record) -> list[SharedRound]:
    """All but the newest one, whose text the next header would have told."""
    following = record.headers[1:]
    return [
        SharedRound(header, parts_of(record, header), after.spans)
        for header, after in zip(record.headers, following, strict=False)
    ]


def parts_of(record: Record, header: Header) -> tuple[dict[str, bytes], ...]:
    members = [member.peer_id for member in header.members]
    payloads = sign_payloads(record.manifest.model, record.manifest.outer)
    data = record.store.get(Digest(header.update_digest))
    finals = decode_update_index(data, STEPS, len(members), may_lack=True).finals
    return tuple(
        {
            members[each.position]: bytes(each.block)
            for each in split(
                record.store.get(Digest(final.digest)), final.mask(), payloads.coder.encoded_bytes
            )
            if each.block
        }
        for final in finals
    )


def deals(rounds: Sequence[SharedRound], record: Record) -> Iterator[dict[int, str]]:
    """Every way to give the shards to the peers that agrees with the parts that they had."""
    spans = [span for each in rounds for span in each.spans]
    for owner_of in owners(spans, record.peers):
        if all(
            gradients_of(each, peer, owner_of, record) in gradients_for(each, peer)
            for each, peer in product(rounds, record.peers)
        ):
            yield owner_of


def gradients_of(
    each: SharedRound, peer: str, owner_of: dict[int, str], record: Record
) -> float:
    """That a peer took in a round, by the text that it read."""
    read = sum(span.stop - span.start for span in each.spans if owner_of[span.shard] == peer)
    return read / (SEQUENCES * (record.manifest.model.context + 1))


def gradients_for(each: SharedRound, peer: str) -> tuple[int, ...]:
    """Where a step went on without a peer, another part of it may have come too late for all."""
    num_parts = sum(peer in parts for parts in each.parts)
    return (num_parts,) if num_parts == STEPS else (num_parts, num_parts + 1)


def replay(
    record: Record,
    rounds: Sequence[SharedRound],
    text: Text,
    owner_of: dict[int, str],
    is_descending: bool,
) -> int:
    """Rounds whose parts and state are those of the swarm, from the first one on. Spans are in the
    order of their shards: `is_descending` if a peer that left a shard went on to a lower one."""
    outer = record.manifest.outer
    steps = SharedSteps(top_k=outer.top_k, lookahead=outer.lookahead)
    swarm = SharedSwarm(record.setting(text), steps, len(record.peers))
    peer_of = dict(zip(record.peers, swarm.peers, strict=True))
    zeros = np.zeros_like(swarm.theta)
    assert record.state_digest(swarm.theta, zeros) == record.manifest.genesis_digest
    for each in rounds:
        first = outer.first_inner_step_of(each.header.round)
        for name, peer in peer_of.items():
            spans = [span for span in each.spans if owner_of[span.shard] == name]
            peer.deal_spans(spans[::-1] if is_descending else spans)
            peer.begin(first, STEPS)
        for step, parts in enumerate(each.parts, first):
            train(swarm.peers)
            if any(peer_of[name].update != part for name, part in parts.items()):
                return each.header.round - 1
            swarm.take_step(step, [peer_of[name] for name in parts])
        train(swarm.peers)  # what was under way at the end, and is too late
        if record.state_digest(swarm.theta, zeros) != each.header.state_digest:
            return each.header.round - 1
    return len(rounds)


def train(peers: Sequence[SharedPeer]) -> None:
    """Who has no part at hand gets one, if it read text for one."""
    for peer in peers:
        if peer.update is None:
            peer.train()


@pytest.mark.parametrize(("num_peers", "lookahead"), [(2, "false"), (3, "true")])
def test_the_driver_reaches_the_states_of_a_real_swarm(
    tmp_path: Path, corpus: Path, num_peers: int, lookahead: str
) -> None:
    described = MANIFEST.format(lookahead=lookahead)
    record = run_swarm(tmp_path, corpus, described, num_peers, ROUNDS + 1)
    rounds = rounds_of(record)
    assert len(rounds) == ROUNDS
    for each, member in product(rounds, record.headers[0].members):
        num_parts = sum(member.peer_id in parts for parts in each.parts)
        print("parts", each.header.round, member.peer_id[-4:], num_parts)
    text = record.text(tmp_path / "text")
    with one_thread():
        ways = list(deals(rounds, record))
        print("ways", len(ways))
        reached = [
            replay(record, rounds, text, owner_of, is_descending)
            for owner_of, is_descending in product(ways, (False, True))
        ]
        print("reached", reached)
    assert max(reached, default=0) == ROUNDS, "no way to deal the shards leads to all states"
