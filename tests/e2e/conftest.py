"""A run that is small enough for many real daemons on two cores.

It is founded once a session, and its state directory is copied where a test wants a founder.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # daemons.py, beside this file

from daemons import OPTIONS, wait_for_round

from gossamer.node.local.local_swarm import LocalSwarm

MANIFEST = """\
preset = "tiny"
name = "end-to-end"
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
learning_rate = 2e-3
warmup_steps = 10
total_steps = 2_000
sequences_per_step = 8
[outer]
inner_steps = 40
warmup_rounds = 2
warmup_inner_steps = 20
chunk_elements = 2048
[rounds]
gather_seconds = 5.0
attempt_seconds = 2.0
checkpoint_rounds = 5
"""

WORDS = ("peer", "ring", "round", "chunk", "head", "token", "commit", "swarm", "block", "state")


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some 250 KB of text that a small model learns from."""
    folder = tmp_path_factory.mktemp("corpus")
    randomness = random.Random(1)
    for number in range(16):
        lines = [" ".join(randomness.choices(WORDS, k=12)) for _ in range(250)]
        (folder / f"{number}.txt").write_text("\n".join(lines))
    return folder


@pytest.fixture(scope="session")
def manifest_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("manifest") / "run.toml"
    path.write_text(MANIFEST)
    return path


@pytest.fixture(scope="session")
def founded(tmp_path_factory: pytest.TempPathFactory, manifest_file: Path, corpus: Path) -> Path:
    """State directory of a node that founded the run, trained alone for some rounds and left."""
    with LocalSwarm(tmp_path_factory.mktemp("founded"), OPTIONS) as swarm:
        node = swarm.found("--manifest", str(manifest_file), "--corpus", str(corpus))
        wait_for_round(node, 3)
        assert node.leave() == 0, node.tail()
        return node.root


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[LocalSwarm]:
    """A swarm of this test's own; all its nodes end with it."""
    with LocalSwarm(tmp_path / "swarm", OPTIONS) as local:
        yield local
