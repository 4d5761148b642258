"""A swarm of real daemons, and its algorithm in one process on the same data: the same bits.

`gossamer.trainer.train` is the algorithm to read, and `tests/benchmarks/losses.py`, the table of
losses, has all its variants. A run's committed headers say who was in which ring, in which order,
and what was trained on. Replayed in one process, every round has to lead to the state that the
swarm committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from gossamer.protocol.codecs.payloads import SPARSE, payloads_of
from gossamer.protocol.ids import Digest
from gossamer.trainer import train
from tests.benchmarks._losses_diloco import Swarm
from tests.benchmarks._parity_training import Text
from tests.e2e.rounds.replays import Reading, Record, one_thread, replayed, run_swarm

pytestmark = pytest.mark.e2e

ROUNDS = 6
MANIFEST = """\
preset = "tiny"
name = "replay"
sync = "{sync}"
trust = "{trust}"
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
ends = false
sequences_per_step = 2
optimizer = "{optimizer}"
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
"""The manifest has so little data that a peer comes to the end of no shard but the last, which is
short."""


def manifest_text(
    mode: str, fragments: int, displacement: float, trust: str, optimizer: str
) -> str:
    sync, codec = (SPARSE, "fp32") if mode == SPARSE else ("diloco", mode)
    return MANIFEST.format(
        sync=sync,
        codec=codec,
        fragments=fragments,
        displacement=displacement,
        trust=trust,
        optimizer=optimizer,
    )


def leads_there(record: Record, text: Text, read: Sequence[Reading]) -> bool:
    """Returns whether these first rounds lead to the state that the header of the last one
    names."""
    manifest = record.manifest
    outer = manifest.outer
    swarm = Swarm(record.setting(text), len(record.peers))
    worker_of = dict(zip(record.peers, swarm.workers, strict=True))
    assert record.state_digest(swarm.parameters, swarm.momentum) == manifest.genesis_digest
    for header, reading in zip(record.headers, read, strict=False):
        steps, first = (
            outer.inner_steps_of(header.round),
            outer.first_inner_step_of(header.round),
        )
        members = [worker_of[member.peer_id] for member in header.members]
        for name, spans in reading.items():
            worker_of[name].deal_spans(spans)
        tokens = swarm.train_round(header.round, first, [steps] * len(members), 0, members)
        assert tokens == [member.tokens for member in header.members]
        payloads = payloads_of(manifest.sync, outer, manifest.trust)
        swarm.take_round(header.round, members, tokens, outer, payloads)
    return record.state_digest(swarm.parameters, swarm.momentum) == header.state_digest


def states_by_train(record: Record, text: Text, read: Sequence[Reading]) -> list[Digest]:
    """The states after the genesis and after each round, by `gossamer.trainer.train`."""
    manifest = record.manifest
    swarm = train.Swarm(manifest, manifest.sync, manifest.seed, manifest.trust)
    worker_of = {
        peer: train.Worker(manifest, manifest.data.token_bytes, "cpu") for peer in record.peers
    }
    states = [record.state_digest(swarm.parameters, swarm.momentum)]
    for header, reading in zip(record.headers, read, strict=True):
        for name, spans in reading.items():
            text.push_spans(worker_of[name].queue.push, spans)
        tokens = swarm.round(header.round, [worker_of[each.peer_id] for each in header.members])
        assert tokens == [member.tokens for member in header.members]
        states.append(record.state_digest(swarm.parameters, swarm.momentum))
    return states


@pytest.mark.parametrize(
    ("mode", "num_peers", "fragments", "displacement", "trust", "optimizer"),
    [
        ("fp32", 3, 1, 0.0, "members", "adamw"),
        ("int8", 2, 1, 1.4, "members", "adamw"),
        ("int4", 2, 2, 0.0, "members", "adamw"),
        (SPARSE, 2, 1, 0.0, "members", "adamw"),
        ("int8", 3, 1, 1.4, "open", "adamw"),
        ("int4", 2, 1, 0.0, "members", "muon"),
        (SPARSE, 2, 1, 0.0, "members", "muon"),
    ],
)
def test_one_process_reaches_the_states_of_a_real_swarm(
    tmp_path: Path,
    corpus: Path,
    mode: str,
    num_peers: int,
    fragments: int,
    displacement: float,
    trust: str,
    optimizer: str,
) -> None:
    described = manifest_text(mode, fragments, displacement, trust, optimizer)
    record = run_swarm(tmp_path, corpus, described, num_peers, ROUNDS)
    assert [len(header.members) for header in record.headers] == [num_peers] * ROUNDS
    text = record.text(tmp_path / "text")
    with one_thread():
        read = replayed(
            [(header.spans, record.peers) for header in record.headers],
            lambda read: leads_there(record, text, read),
        )
        assert len(read) == ROUNDS, record.told_of(record.headers[len(read)])
        if fragments == 1:
            committed = [header.state_digest for header in record.headers]
            genesis = record.manifest.genesis_digest
            assert states_by_train(record, text, read) == [genesis, *committed]
