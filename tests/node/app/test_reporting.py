"""The settled head that links name."""

from __future__ import annotations

from pathlib import Path

import pytest

from gossamer.node.app.reporting import SETTLED_ROUNDS, settled_head
from gossamer.node.storage.chain_store import ChainStore
from gossamer.protocol.ids import Digest
from tests.node.storage.test_chain_store import PEER, RUN_ID, chain_of


@pytest.mark.parametrize(
    ("rounds", "settled_round"), [(1, 0), (31, 0), (32, 16), (47, 16), (48, 32), (70, 48)]
)
def test_a_link_names_a_head_that_sixteen_rounds_follow(
    tmp_path: Path, rounds: int, settled_round: int
) -> None:
    """It stays the same for sixteen rounds."""
    store = ChainStore(tmp_path / "chain", RUN_ID, Digest(bytes(32)))
    heads = [store.add(commit, header) for commit, header in chain_of(PEER, rounds)]
    expected = heads[settled_round - 1] if settled_round else None
    assert settled_head(store, heads[-1]) == expected
    assert rounds - settled_round >= SETTLED_ROUNDS or not settled_round


def test_a_new_run_has_no_settled_head(tmp_path: Path) -> None:
    store = ChainStore(tmp_path / "chain", RUN_ID, Digest(bytes(32)))
    assert settled_head(store, store.genesis) is None
