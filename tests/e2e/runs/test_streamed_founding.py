"""A run begins with a part of its corpus, and its founder cuts the rest meanwhile, with real
daemons."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from gossamer.node.demo.local_swarm import LocalSwarm
from gossamer.node.network.signed_manifests import open_signed_manifest
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.telemetry.status import DataStatus, Status
from tests.support.daemons import (
    MANIFEST,
    PATIENCE_SECONDS,
    path_on_disk,
    poll,
    said,
    shared_rounds,
    suspended_cutting_of,
    takes_part,
)

pytestmark = pytest.mark.e2e

NUM_FILES = 6
LINES = 60_000
"""Of one file: all of them have some 22 MB, which are cut in eight parts."""


@pytest.fixture(scope="module")
def large_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("large")
    draw = random.Random(1)
    words = ["".join(draw.choices("abcdefghijk", k=draw.randrange(2, 9))) for _ in range(3_000)]
    for number in range(NUM_FILES):
        lines = (" ".join(draw.choices(words, k=12)) for _ in range(LINES))
        (folder / f"{number}.txt").write_text("\n".join(lines))
    return folder


def data_of(status: Status) -> DataStatus:
    assert status.data is not None
    return status.data


def is_whole(status: Status) -> bool:
    data = data_of(status)
    return not data.cutting and data.num_tokens == data.expected_tokens


@pytest.mark.long
def test_a_run_begins_with_a_part_of_its_corpus_and_gets_the_rest(
    swarm: LocalSwarm, tmp_path: Path, large_corpus: Path
) -> None:
    manifest_file = tmp_path / "run.toml"
    manifest_file.write_text(MANIFEST)
    founder = swarm.found(
        *("--manifest", str(manifest_file), "--corpus", str(large_corpus)),
        *("--start-after", "256KiB"),
    )
    # On any machine the run begins, and the joiner is there, before all is cut.
    cutting = poll(lambda: suspended_cutting_of(founder), "the next part that is being cut")
    began = founder.wait_for(lambda s: s.round >= 1, PATIENCE_SECONDS, "the first round")
    assert data_of(began).cutting, "the corpus was cut before the run began"
    signed = StateDir(founder.root).read_manifest()
    assert signed is not None
    manifest = open_signed_manifest(signed)
    first_tokens = manifest.data.num_tokens
    num_bytes = sum(path.stat().st_size for path in large_corpus.iterdir())
    assert first_tokens < num_bytes / 8

    joiner = swarm.join(founder.address())
    joined = joiner.wait_for(takes_part, PATIENCE_SECONDS, "a node that trains")
    cutting.resume()
    poll(lambda: said(founder, "a part of the corpus is cut and added"), "the first added part")
    founder.kill()
    assert (founder.root / "corpus_rest").exists(), "there was nothing left to kill the founder in"
    founder.start("start")
    for node in (founder, joiner):
        whole = node.wait_for(
            lambda s: is_whole(s) and data_of(s).num_tokens > 0.9 * num_bytes,
            2 * PATIENCE_SECONDS,
            "the whole corpus",
        )
        assert data_of(whole).num_tokens <= 1.1 * num_bytes
    assert not (founder.root / "corpus_rest").exists()
    assert not (founder.root / "cutting").exists()

    assert founder.leave() == 0, founder.tail()
    first_added = manifest.data.num_shards  # a partition of a small model is one shard
    seen = joined.round

    def trains_on_added() -> bool:
        chain, path = path_on_disk(joiner)
        headers = [chain.header(head) for head in path if chain.entry(head).round > seen]
        of_joiner = [h for h in headers if {m.peer_id for m in h.members} == {joined.peer_id}]
        return any(s.partition >= first_added for h in of_joiner for s in h.spans)

    poll(lambda: trains_on_added() or None, "a round alone on added data")
    assert joiner.leave() == 0, joiner.tail()
    assert shared_rounds(founder, joiner)
