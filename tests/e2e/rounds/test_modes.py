"""Real daemons in every way of averaging: bit-identical states, also when one is killed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from gossamer.node.demo.local_swarm import LocalNode, LocalSwarm
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.state.digest import FloatVector
from gossamer.trainer.pretrained.config import model_of_config
from gossamer.trainer.pretrained.weights import find_weights
from tests.support.daemons import (
    MANIFEST,
    OPTIONS,
    PATIENCE_SECONDS,
    digests_on_disk,
    gossamer,
    in_rounds_of,
    poll,
    said,
    wait_for_round,
)

pytestmark = pytest.mark.e2e


def write_manifest(folder: Path, top: str, outer: str) -> Path:
    """Writes a manifest with these lines at the top and under [outer]."""
    manifest = folder / "run.toml"
    text = MANIFEST.replace("[tokenizer]", f"{top}\n[tokenizer]", 1)
    for line in outer.splitlines():  # instead of what the file has for that key
        text = re.sub(rf"^{line.split()[0]} = .*\n", "", text, flags=re.MULTILINE)
    if "fragments" in outer:  # a layer for each
        text = text.replace("num_layers = 1", "num_layers = 2", 1)
    manifest.write_text(text.replace("[outer]", f"[outer]\n{outer}", 1))
    return manifest


def exported(node: LocalNode, folder: Path, round_number: int) -> FloatVector:
    """The weights of a node's state after a round, from an export."""
    options = ("--round", str(round_number), "--dtype", "bf16")
    answer = gossamer("export", folder, *options, "--state-dir", node.root)
    assert answer.status == 0, answer
    assert f"| rounds | {round_number}" in (folder / "README.md").read_text()
    model = model_of_config(json.loads((folder / "config.json").read_text()))
    return find_weights(folder, model).read()


@pytest.mark.parametrize(
    ("top", "outer"),
    [
        ("", 'codec = "int4"\noverlap = true'),
        ('sync = "sparse"', "overlap = true"),
        ('sync = "distro"', "inner_steps = 20\nwarmup_rounds = 0"),
        ("", 'codec = "int8"\noverlap = true\nfragments = 2'),
    ],
    ids=["int4", "sparse", "distro", "fragments"],
)
def test_three_agree_and_two_go_on(tmp_path: Path, corpus: Path, top: str, outer: str) -> None:
    manifest = write_manifest(tmp_path, top, outer)
    with LocalSwarm(tmp_path, OPTIONS) as swarm:
        seed = swarm.add()
        seed.start("start", "--manifest", str(manifest), "--corpus", str(corpus))
        first, second = swarm.join(seed.address()), swarm.join(seed.address())
        nodes = [seed, first, second]
        for node in nodes:
            node.wait_for(in_rounds_of(3), PATIENCE_SECONDS, "round of three")
        second.kill()
        for node in (seed, first):
            node.wait_for(in_rounds_of(2), PATIENCE_SECONDS, "round of two")
        reached = max(wait_for_round(node, 1).round for node in (seed, first)) + 3
        for node in (seed, first):
            wait_for_round(node, reached)
        chains = [digests_on_disk(node) for node in nodes]
        for number in range(1, reached + 1):
            assert len({chain[number] for chain in chains if number in chain}) == 1
        assert len(chains[2]) > 0, "the one that was killed had none to compare"
        for node in (seed, first):
            assert node.leave() == 0, node.tail()
        newest = max(set(digests_on_disk(seed)) & set(digests_on_disk(first)))
        weights = [
            exported(node, tmp_path / f"model-{node.root.name}", newest) for node in nodes[:2]
        ]
        np.testing.assert_array_equal(weights[0], weights[1])
        assert "Traceback" not in "".join(node.tail(10_000) for node in nodes)


@pytest.mark.long
def test_a_momentum_outlives_its_daemon(tmp_path: Path, corpus: Path) -> None:
    manifest = write_manifest(tmp_path, 'sync = "distro"', "inner_steps = 20\nwarmup_rounds = 0")
    # Of these short rounds the seed makes many before the other is back.
    text = manifest.read_text().replace("[rounds]", "[rounds]\nstale_rounds = 1000", 1)
    manifest.write_text(text)
    found = "training goes on from the momentum on disk"
    with LocalSwarm(tmp_path, OPTIONS) as swarm:
        seed = swarm.add()
        seed.start("start", "--manifest", str(manifest), "--corpus", str(corpus))
        node = swarm.join(seed.address())
        status = node.wait_for(in_rounds_of(2), PATIENCE_SECONDS, "round of two")
        assert status.num_parameters is not None
        assert node.leave() == 0
        assert not said(node, found)
        size = StateDir(node.root).optimizer_path.stat().st_size
        assert 4 * status.num_parameters < size < 4 * status.num_parameters + 1024
        node.start("start")
        poll(lambda: said(node, found), "word of its momentum")
        node.wait_for(in_rounds_of(2), PATIENCE_SECONDS, "round of two after the restart")
        assert not said(node, "momentum on disk is dropped")
        assert "Traceback" not in node.tail(10_000)
