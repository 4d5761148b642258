"""A swarm of real daemons, and `tests/benchmarks/losses.py` on the same data: the same bits.

The table of losses drives the trainer, the residuals, the codecs and the outer step in one process.
Here a run's committed headers say who was in which ring and what was trained on; replayed by the
code of that table, every round has to lead to the state that the swarm committed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from _losses_diloco import Swarm
from _parity_training import Text
from replays import Record, one_thread, owners, run_swarm

from gossamer.protocol.chain import Header
from gossamer.protocol.payloads import SPARSE, payloads_of

pytestmark = pytest.mark.e2e

ROUNDS = 6
MANIFEST = """\
preset = "tiny"
name = "replay"
sync = "{sync}"
[tokenizer]
kind = "bytes"
[model]
num_layers = {fragments}
width = 32
num_heads = 2
num_kv_heads = 1
hidden_width = 64
context = 32
[inner]
learning_rate = 2e-3
warmup_steps = 4
total_steps = 40
sequences_per_step = 2
[outer]
inner_steps = 8
warmup_rounds = 2
warmup_inner_steps = 4
codec = "{codec}"
overlap = false
displacement = {displacement}
fragments = {fragments}
chunk_elements = 2048
[rounds]
round_seconds = 600.0
gather_seconds = 600.0
gather_fraction = 600.0
"""
"""So little data a round that a peer has one shard, or a second if two claimed the same at first.
The headers' spans do not name their members: `deals` finds out who trained on what."""


def manifest_text(mode: str, fragments: int, displacement: float) -> str:
    sync, codec = (SPARSE, "fp32") if mode == SPARSE else ("diloco", mode)
    return MANIFEST.format(sync=sync, codec=codec, fragments=fragments, displacement=displacement)


def deals(record: Record) -> Iterator[dict[int, str]]:
    """Every way to give the shards to the peers that agrees with the members' tokens."""
    headers, context = record.headers, record.manifest.model.context
    for owner_of in owners([span for header in headers for span in header.spans], record.peers):
        if all(read_by(header, owner_of) == read_for(header, context) for header in headers):
            yield owner_of


def read_by(header: Header, owner_of: dict[int, str]) -> Counter[str]:
    tokens: Counter[str] = Counter()
    for span in header.spans:
        tokens[owner_of[span.shard]] += span.stop - span.start
    return tokens


def read_for(header: Header, context: int) -> Counter[str]:
    """A sequence of n tokens is read with the one after its last, which is a label only."""
    return Counter(
        {member.peer_id: member.tokens // context * (context + 1) for member in header.members}
    )


def replay(record: Record, text: Text, owner_of: dict[int, str], is_descending: bool) -> int:
    """Rounds whose state is that of the header, from the first one on. Spans are in the order of
    their shards: `is_descending` if a peer that had to leave a shard went on to a lower one."""
    manifest = record.manifest
    outer = manifest.outer
    swarm = Swarm(record.setting(text), len(record.peers))
    worker_of = dict(zip(record.peers, swarm.workers, strict=True))
    assert record.state_digest(swarm.theta, swarm.momentum) == manifest.genesis_digest
    for header in record.headers:
        steps, first = (
            outer.inner_steps_of(header.round),
            outer.first_inner_step_of(header.round),
        )
        members = [worker_of[member.peer_id] for member in header.members]
        for member, worker in zip(header.members, members, strict=True):
            spans = [span for span in header.spans if owner_of[span.shard] == member.peer_id]
            worker.deal_spans(spans[::-1] if is_descending else spans)
        tokens = swarm.train_round(header.round, first, steps, 0, members)
        assert tokens == [member.tokens for member in header.members]
        payloads = payloads_of(manifest.sync, outer)
        swarm.take_round(header.round, members, tokens, outer, payloads)
        if record.state_digest(swarm.theta, swarm.momentum) != header.state_digest:
            return header.round - 1
    return len(record.headers)


@pytest.mark.parametrize(
    ("mode", "num_peers", "fragments", "displacement"),
    [("int8", 2, 1, 1.4), ("int4", 2, 2, 0.0), (SPARSE, 2, 1, 0.0)],
)
def test_the_driver_reaches_the_states_of_a_real_swarm(
    tmp_path: Path,
    corpus: Path,
    mode: str,
    num_peers: int,
    fragments: int,
    displacement: float,
) -> None:
    described = manifest_text(mode, fragments, displacement)
    record = run_swarm(tmp_path, corpus, described, num_peers, ROUNDS)
    text = record.text(tmp_path / "text")
    with one_thread():
        reached = [
            replay(record, text, owner_of, is_descending)
            for owner_of, is_descending in product(deals(record), (False, True))
        ]
    assert max(reached, default=0) == ROUNDS, "no way to deal the shards leads to all states"
