"""Shared steps (`sync = "distro"`) by real daemons, and by `tests/benchmarks/losses.py`: same bits.

The averages of a round's steps are on disk, with the parts of all; the text behind them is in the
header of the next round. Replayed by the code of the table of losses, every peer has to offer the
very bytes that it offered then, and every round has to lead to the state that was committed.

Steps may lack the part of a peer that was lost. Where one that was only late took its gradient no
disk tells, so a run with a late peer is of no use here, and is done again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from gossamer.node.demo.local_swarm import LocalSwarm
from gossamer.node.storage.state.shared_parameters import sign_payloads
from gossamer.node.telemetry.status import Status
from gossamer.protocol.codecs.contributions import split
from gossamer.protocol.ids import Digest
from gossamer.protocol.limits import BLOCK_BYTES_MAX
from gossamer.protocol.manifest import Trust
from gossamer.protocol.state.chain import Header, decode_update_index, spans_taken
from gossamer.protocol.wire.statements import Span
from gossamer.trainer.ipc.messages import SharedSteps
from tests.benchmarks._losses_distro import SharedSwarm
from tests.benchmarks._parity_training import Text
from tests.e2e.rounds.replays import Reading, Record, one_thread, replayed, run_swarm
from tests.support.daemons import PATIENCE_SECONDS

pytestmark = pytest.mark.e2e

ROUNDS = 4
STEPS = 12
ATTEMPTS = 3
MANIFEST = f"""\
preset = "tiny"
name = "replay"
sync = "distro"
trust = "{{trust}}"
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
total_steps = 40
ends = false
sequences_per_step = 1
clip_norm = 0.1
[outer]
inner_steps = {STEPS}
top_k = 4
lookahead = {{lookahead}}
step_chunks = {{step_chunks}}
chunk_elements = 2048
[rounds]
round_seconds = 600.0
gather_seconds = 600.0
gather_fraction = 600.0
checkpoint_rounds = 1_000
"""
"""Gradients are clipped, the learning rate rises, falls and stays, and most of what a step finds
stays in the momentum. Without checkpoints the disk keeps all averages."""


@dataclass(frozen=True)
class CommittedRound:
    """One that was committed."""

    header: Header
    parts: tuple[dict[str, bytes], ...]
    """The parts of each step, by the name of their author."""
    spans: tuple[Span, ...]
    """The text that its members took gradients of, as far as a peer told it."""
    tellers: tuple[str, ...]
    """Names of the peers that told it."""


def rounds_of(record: Record) -> list[CommittedRound]:
    """All but the newest one, whose text the next header would have told."""
    rounds: list[CommittedRound] = []
    for header, following in pairwise(record.headers):
        counts = Counter(name for parts in parts_of(record, following) for name in parts)
        tellers = tuple(name for name in sorted(counts) if spans_taken(counts[name], STEPS))
        rounds.append(CommittedRound(header, parts_of(record, header), following.spans, tellers))
    return rounds


def parts_of(record: Record, header: Header) -> tuple[dict[str, bytes], ...]:
    members = [member.peer_id for member in header.members]
    manifest = record.manifest
    payloads = sign_payloads(manifest.model, manifest.outer, manifest.trust)
    data, num_chunks = record.store.get(Digest(header.update_digest)), payloads.coder.num_chunks
    averages = decode_update_index(data, STEPS * num_chunks, len(members), may_lack=True).averages
    chunks = []
    for chunk, average in enumerate(averages):
        records = split(record.store.get(Digest(average.digest)), None, BLOCK_BYTES_MAX)
        part_bytes = payloads.coder.chunk_bytes(chunk)  # a signature may stand behind it
        chunks.append(
            {
                members[each.position]: bytes(each.block[:part_bytes])
                for each in records
                if average.mask() >> each.position & 1
            }
        )
    steps = [chunks[first : first + num_chunks] for first in range(0, len(chunks), num_chunks)]
    assert all(each.keys() == step[0].keys() for step in steps for each in step)
    return tuple(
        {name: b"".join(each[name] for each in step) for name in step[0]} for step in steps
    )


def run_in_time(
    root: Path, corpus: Path, described: str, num_peers: int, *, loses_one: bool
) -> tuple[Record, list[CommittedRound]]:
    """A run in which no peer was late for a step, on a machine that has other things to do."""
    disturb = lose_one if loses_one else lambda _swarm: None
    for attempt in range(ATTEMPTS):
        folder = root / str(attempt)
        record = run_swarm(folder, corpus, described, num_peers, ROUNDS + 1, disturb)
        rounds = rounds_of(record)
        assert len(record.peers) == num_peers
        if is_of_use(rounds, record.peers, loses_one=loses_one):
            return record, rounds
    pytest.fail(f"in {ATTEMPTS} runs a peer was late for a step: this machine is too busy")


def lose_one(swarm: LocalSwarm) -> None:
    """Kills a node in the middle of the steps of a round that is not one of the first two."""

    def is_among_steps(status: Status) -> bool:
        return status.round >= 2 and 1 < status.inner_step <= STEPS // 2

    swarm.nodes[0].wait_for(is_among_steps, PATIENCE_SECONDS, "round among its steps")
    swarm.nodes[-1].kill()


def is_of_use(rounds: Sequence[CommittedRound], peers: Sequence[str], *, loses_one: bool) -> bool:
    """Returns whether all peers have a part in every step, but for the lost one: from some step of
    a ring on it has no part any more."""
    steps = [parts for each in rounds for parts in each.parts]
    lack_some = [peer for peer in peers if not all(peer in parts for parts in steps)]
    comes_back = any(
        peer in later and peer not in parts for parts, later in pairwise(steps) for peer in peers
    )
    is_left_out = any(
        len(parts) < len(each.header.members) for each in rounds for parts in each.parts
    )
    return len(lack_some) == int(loses_one) and is_left_out == loses_one and not comes_back


def leads_there(
    record: Record, rounds: Sequence[CommittedRound], text: Text, read: Sequence[Reading]
) -> bool:
    """Returns whether these first rounds have the parts and lead to the states of those on disk."""
    outer = record.manifest.outer
    steps = SharedSteps(top_k=outer.top_k, chunks=outer.chunks_of_step, lookahead=outer.lookahead)
    swarm = SharedSwarm(record.setting(text), steps, len(record.peers))
    peer_of = dict(zip(record.peers, swarm.peers, strict=True))
    momentum = np.zeros_like(swarm.parameters)
    assert record.state_digest(swarm.parameters, momentum) == record.manifest.genesis_digest
    newest: Reading = {}
    for each, reading in zip(rounds, read, strict=False):
        first = outer.first_inner_step_of(each.header.round)
        for name in {member.peer_id for member in each.header.members}:
            # A peer whose span is not told had gone on in its shard.
            newest[name] = reading.get(name) or [span_after(newest[name][-1])]
            peer_of[name].deal_spans(newest[name])
            peer_of[name].begin(first, STEPS)
        for step, parts in enumerate(each.parts, first):
            for name, part in parts.items():
                assert peer_of[name].train(), "parts of more text than was read"
                if peer_of[name].update != part:
                    return False
            swarm.take_step(step, [peer_of[name] for name in parts])
        if record.state_digest(swarm.parameters, momentum) != each.header.state_digest:
            return False
    return True


def span_after(span: Span) -> Span:
    """The span that follows this one, with its length."""
    return Span(span.partition, span.stop, 2 * span.stop - span.start)


@pytest.mark.long
@pytest.mark.parametrize(
    ("num_peers", "lookahead", "step_chunks", "trust", "loses_one"),
    [
        (2, "true", 3, "members", False),
        (2, "true", 3, "open", False),
        (3, "false", 1, "members", True),
    ],
)
def test_the_driver_reaches_the_states_of_a_real_swarm(
    tmp_path: Path,
    corpus: Path,
    num_peers: int,
    lookahead: str,
    step_chunks: int,
    trust: Trust,
    loses_one: bool,
) -> None:
    described = MANIFEST.format(lookahead=lookahead, step_chunks=step_chunks, trust=trust)
    record, rounds = run_in_time(tmp_path, corpus, described, num_peers, loses_one=loses_one)
    text = record.text(tmp_path / "text")
    with one_thread():
        read = replayed(
            [(each.spans, each.tellers) for each in rounds],
            lambda read: leads_there(record, rounds, text, read),
        )
    assert len(read) == ROUNDS
