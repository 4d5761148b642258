"""Shared steps (`sync = "distro"`) by real daemons, and by `tests/benchmarks/losses.py`: same bits.

The finals of a round's steps are on disk, with everybody's parts; the text behind them is in the
header of the next round. Replayed by the code of the table of losses, every peer has to offer the
very bytes that it offered then, and every round has to lead to the state that was committed.

Where a peer that is late for a step took its gradient no disk tells. So runs with such steps are of
no use here: what then becomes of its part, tests/node/test_shared_steps.py shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from _losses_distro import SharedSwarm
from _parity_training import Text
from replays import Reading, Record, num_replayed, one_thread, run_swarm

from gossamer.node.storage.shared_theta import sign_payloads
from gossamer.protocol.chain import Header, decode_update_index
from gossamer.protocol.contributions import split
from gossamer.protocol.ids import Digest
from gossamer.protocol.messages import Span
from gossamer.trainer.messages import SharedSteps

pytestmark = pytest.mark.e2e

ROUNDS = 4
STEPS = 6
ATTEMPTS = 3
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
sequences_per_step = 2
clip_norm = 0.1
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


def run_in_time(
    root: Path, corpus: Path, manifest_text: str, num_peers: int
) -> tuple[Record, list[SharedRound]]:
    """A run in which nobody was late for a step, on a machine that has other things to do."""
    for attempt in range(ATTEMPTS):
        record = run_swarm(root / str(attempt), corpus, manifest_text, num_peers, ROUNDS + 1)
        rounds = rounds_of(record)
        if all(len(parts) == num_peers for each in rounds for parts in each.parts):
            return record, rounds
    pytest.fail(f"in {ATTEMPTS} runs somebody was late for a step: this machine is too busy")


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


def leads_there(
    record: Record, rounds: Sequence[SharedRound], text: Text, read: Sequence[Reading]
) -> bool:
    """Whether these first rounds have the parts and lead to the states of those on disk."""
    outer = record.manifest.outer
    steps = SharedSteps(top_k=outer.top_k, lookahead=outer.lookahead)
    swarm = SharedSwarm(record.setting(text), steps, len(record.peers))
    peer_of = dict(zip(record.peers, swarm.peers, strict=True))
    momentum = np.zeros_like(swarm.theta)
    assert record.state_digest(swarm.theta, momentum) == record.manifest.genesis_digest
    for each, reading in zip(rounds, read, strict=False):
        first = outer.first_inner_step_of(each.header.round)
        for name, span in reading.items():
            peer_of[name].deal_spans([span])
            peer_of[name].begin(first, STEPS)
        for step, parts in enumerate(each.parts, first):
            for name, part in parts.items():
                assert peer_of[name].train(), "parts of more text than was read"
                if peer_of[name].update != part:
                    return False
            swarm.take_step(step, [peer_of[name] for name in parts])
        if record.state_digest(swarm.theta, momentum) != each.header.state_digest:
            return False
    return True


@pytest.mark.parametrize(("num_peers", "lookahead"), [(2, "false"), (3, "true")])
def test_the_driver_reaches_the_states_of_a_real_swarm(
    tmp_path: Path, corpus: Path, num_peers: int, lookahead: str
) -> None:
    described = MANIFEST.format(lookahead=lookahead)
    record, rounds = run_in_time(tmp_path, corpus, described, num_peers)
    text = record.text(tmp_path / "text")
    with one_thread():
        reached = num_replayed(
            [each.spans for each in rounds],
            record.peers,
            lambda read: leads_there(record, rounds, text, read),
        )
    assert reached == ROUNDS
