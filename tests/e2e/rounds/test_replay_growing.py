"""A swarm of real daemons whose data grow in the middle of the run, and its algorithm in one
process: the same bits.

The founder's node is held up in the cutting of its corpus until some rounds are committed. Then the
rest is added, and a third peer joins when the swarm trains on it. Replayed in one process
(`replays`), every round of the first two leads to the state that the swarm committed, and the third
peer has the same states and the same data.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from gossamer.node.demo.local_swarm import LocalNode, LocalSwarm
from gossamer.node.telemetry.status import DataStatus, Status
from gossamer.protocol.wire.statements import Span
from tests.e2e.rounds.replays import one_thread, record_of, replayed
from tests.e2e.rounds.test_replay import leads_there, manifest_text
from tests.support.daemons import (
    OPTIONS,
    PATIENCE_SECONDS,
    in_rounds_of,
    path_on_disk,
    poll,
    shared_rounds,
    suspended_cutting_of,
    wait_for_round,
)

pytestmark = pytest.mark.e2e

FILES = 16
FILE_LINES = 1_500
"""Some 125 KB a file, 2 MB in all, which are cut in four parts, each in 0.1 s and more."""

ROUNDS_BEFORE = 2
"""Rounds without the last part."""

ROUNDS_ADDED = 3
"""Rounds that are replayed from the first one on added data on; a longer replay takes longer by the
square."""

TOKENS_OF_A_ROUND = "sequences_per_step = 8"
"""A peer comes to the end of a shard in two rounds, and soon reads what was added."""


@pytest.fixture
def growing_corpus(tmp_path: Path) -> Path:
    folder, draw = tmp_path / "growing", random.Random(1)
    folder.mkdir()
    for number in range(FILES):
        lines = (f"{n} " + "".join(draw.choices("abcdefgh ", k=78)) for n in range(FILE_LINES))
        (folder / f"{number}.txt").write_text("\n".join(lines) + "\n")
    return folder


def spans_of(node: LocalNode) -> list[Span]:
    """What the rounds on a node's disk consumed."""
    chain, path = path_on_disk(node)
    return [span for head in path for span in chain.header(head).spans]


def data_of(status: Status) -> DataStatus:
    assert status.data is not None
    return status.data


def tokens_of(status: Status) -> int:
    return 0 if status.data is None else status.data.num_tokens


def is_cut(status: Status) -> bool:
    return not data_of(status).cutting


def grown_swarm(swarm: LocalSwarm, manifest: Path, corpus: Path) -> tuple[Sequence[LocalNode], int]:
    """Runs a founder, a peer, and a third one that comes when the first two train on added data.
    Returns them, killed, and the number of shards that were there for the first rounds."""
    founder = swarm.found(
        *("--manifest", str(manifest), "--corpus", str(corpus), "--start-after", "256KiB"),
    )
    address = founder.address()
    cutter = poll(lambda: suspended_cutting_of(founder), "a process that cuts a later part")
    nodes = [founder, swarm.join(address)]
    began = wait_for_round(founder, ROUNDS_BEFORE + 1)
    num_first = data_of(began).num_shards
    assert not is_cut(began)
    assert num_first >= record_of(founder, 0).manifest.data.num_shards
    cutter.resume()
    whole = tokens_of(founder.wait_for(is_cut, PATIENCE_SECONDS, "a corpus that is cut"))
    assert whole > tokens_of(began)
    assert whole > 4 * record_of(founder, 0).manifest.data.num_tokens
    nodes[1].wait_for(lambda s: tokens_of(s) == whole, PATIENCE_SECONDS, "all data")
    poll(
        lambda: any(span.partition >= num_first for span in spans_of(founder)),
        "a round on added data",
    )
    nodes.append(swarm.join(address))
    founder.wait_for(in_rounds_of(3), PATIENCE_SECONDS, "a round of three")
    third = nodes[-1].wait_for(lambda s: tokens_of(s) == whole, PATIENCE_SECONDS, "all data")
    wait_for_round(nodes[-1], third.round + 2)
    for node in nodes:
        node.kill()
    return nodes, num_first


@pytest.mark.long
def test_one_process_reaches_the_states_of_a_swarm_whose_data_grow(
    tmp_path: Path, growing_corpus: Path
) -> None:
    manifest = tmp_path / "run.toml"
    described = manifest_text("int8", 1, 1.4, "members", "adamw")
    manifest.write_text(described.replace("sequences_per_step = 2", TOKENS_OF_A_ROUND))
    options = (*OPTIONS, "--device", "cpu", "--wait-for-peers", "1")
    with LocalSwarm(tmp_path / "swarm", options) as swarm:
        nodes, num_first = grown_swarm(swarm, manifest, growing_corpus)
    founder, _, third = nodes

    for one, other in pairwise(nodes):
        assert max(shared_rounds(one, other)) > ROUNDS_BEFORE

    whole = record_of(founder, 2**20)
    added = [any(s.partition >= num_first for s in header.spans) for header in whole.headers]
    first_added = added.index(True)
    assert first_added >= ROUNDS_BEFORE
    num_of_two = next(n for n, header in enumerate(whole.headers) if len(header.members) != 2)
    assert first_added < num_of_two, "the third peer came before the added data"
    num_rounds = min(num_of_two, first_added + ROUNDS_ADDED)
    record = record_of(founder, num_rounds)
    text = record.text(tmp_path / "text")
    assert len(text.index.shards) > num_first
    assert record_of(third, 0).index == text.index
    with one_thread():
        read = replayed(
            [(header.spans, record.peers) for header in record.headers],
            lambda read: leads_there(record, text, read),
        )
    assert len(read) == num_rounds, record.told_of(record.headers[len(read)])
