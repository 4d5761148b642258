"""A swarm of real daemons, and `tests/benchmarks/losses.py` on the same data: the same bits.

The table of losses drives the trainer, the residuals, the codecs and the outer step in one process.
Here a run's committed headers say who was in which ring and what was trained on; replayed by the
code of that table, every round has to lead to the state that the swarm committed.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
import torch
from daemons import OPTIONS, chain_of, head_of, wait_for_round

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from _losses_diloco import Setting, Swarm
from _parity_training import Text

from gossamer.node.interface.config import DEFAULT_CACHE_BYTES
from gossamer.node.local.local_swarm import LocalNode, LocalSwarm
from gossamer.node.peers.run_exchange import open_signed_manifest
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.chain import Header
from gossamer.protocol.chunks import ChunkPlan
from gossamer.protocol.ids import Digest
from gossamer.protocol.manifest import Manifest, ShardIndex, decode_index
from gossamer.protocol.payloads import SPARSE, payloads_of
from gossamer.protocol.state import index_of

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


def run_swarm(
    root: Path, corpus: Path, mode: str, num_peers: int, fragments: int, displacement: float
) -> LocalNode:
    """The founder of a run that has ended after `ROUNDS` rounds or a few more."""
    path = root / "run.toml"
    sync, codec = (SPARSE, "fp32") if mode == SPARSE else ("diloco", mode)
    text = MANIFEST.format(sync=sync, codec=codec, fragments=fragments, displacement=displacement)
    path.write_text(text)
    options = (*OPTIONS, "--device", "cpu", "--wait-for-peers", str(num_peers - 1))
    with LocalSwarm(root / "swarm", options) as swarm:
        founder = swarm.found("--manifest", str(path), "--corpus", str(corpus))
        address = founder.address()
        for _ in range(num_peers - 1):
            swarm.join(address)
        wait_for_round(founder, ROUNDS + 1)  # the newest may not be on disk yet
        for node in swarm.nodes:
            node.kill()
    return founder


def headers_of(node: LocalNode) -> list[Header]:
    chain = chain_of(node)
    path = chain.path_between(chain.genesis, head_of(node))
    assert path is not None
    return [chain.header(head) for head in path[:ROUNDS]]


def text_of(node: LocalNode, manifest: Manifest, folder: Path) -> Text:
    """The founder's shards, where the driver looks for them."""
    store = BlockStore(StateDir(node.root).blocks_path, DEFAULT_CACHE_BYTES, read_only=True)
    index: ShardIndex = decode_index(store.get(Digest(manifest.data.index_digest)))
    folder.mkdir()
    for shard in index.shards:
        (folder / shard.digest.hex()).write_bytes(store.get(Digest(shard.digest)))
    return Text(folder, index, manifest.data.token_bytes, 1.0)


def deals(headers: list[Header], context: int) -> Iterator[dict[int, str]]:
    """Every way to give the shards to the peers that agrees with the members' tokens."""
    shards = sorted({span.shard for header in headers for span in header.spans})
    peers = sorted(member.peer_id for member in headers[0].members)
    for owners in product(peers, repeat=len(shards)):
        owner_of = dict(zip(shards, owners, strict=True))
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


def replay(
    manifest: Manifest,
    text: Text,
    headers: list[Header],
    owner_of: dict[int, str],
    is_descending: bool,
) -> int:
    """Rounds whose state is that of the header, from the first one on. Spans are in the order of
    their shards: `is_descending` if a peer that had to leave a shard went on to a lower one."""
    outer = manifest.outer
    rates = (outer.learning_rate, outer.momentum)
    setting = Setting(
        text, manifest.model, manifest.inner, outer, rates, manifest.seed, lambda _: (), 1
    )
    plan = ChunkPlan(manifest.model.num_parameters, 2048)
    peers = sorted(member.peer_id for member in headers[0].members)
    swarm = Swarm(setting, len(peers))
    worker_of = dict(zip(peers, swarm.workers, strict=True))
    assert index_of(swarm.theta, swarm.momentum, plan).digest == manifest.genesis_digest
    for header in headers:
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
        if index_of(swarm.theta, swarm.momentum, plan).digest != header.state_digest:
            return header.round - 1
    return len(headers)


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
    founder = run_swarm(tmp_path, corpus, mode, num_peers, fragments, displacement)
    signed = StateDir(founder.root).read_manifest()
    assert signed is not None
    manifest = open_signed_manifest(signed)
    headers = headers_of(founder)
    assert [len(header.members) for header in headers] == [num_peers] * ROUNDS

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the daemons' trainers
    try:
        text = text_of(founder, manifest, tmp_path / "text")
        ways = deals(headers, manifest.model.context)
        reached = [
            replay(manifest, text, headers, owner_of, is_descending)
            for owner_of, is_descending in product(ways, (False, True))
        ]
    finally:
        torch.set_num_threads(threads)
    assert max(reached, default=0) == ROUNDS, "no way to deal the shards leads to all states"
