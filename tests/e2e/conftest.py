"""A run that is small enough for many real daemons on two cores.

It is founded once a session, and its state directory is copied where a test wants a founder.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gossamer.node.demo.local_swarm import LocalSwarm
from tests.support.daemons import MANIFEST, OPTIONS, wait_for_round, write_corpus


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of some 250 KB that a small model learns from."""
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder)
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
