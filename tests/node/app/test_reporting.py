"""What the log and the links say of the run."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import structlog

from gossamer.node.app.reporting.reporting import SETTLED_ROUNDS, say_hello, settled_head
from gossamer.node.storage.chain.chain_store import ChainStore
from gossamer.protocol.ids import Digest
from tests.node.storage.test_chain_store import PEER, RUN_ID, chain_of
from tests.support.builders import manifest


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


@pytest.mark.parametrize("ends", [True, False])
def test_the_log_says_after_how_many_rounds_the_run_ends(*, ends: bool) -> None:
    """A run of the smallest preset is over in two minutes."""
    inner = msgspec.structs.replace(manifest().inner, ends=ends)
    run = manifest(inner=inner)
    with structlog.testing.capture_logs() as lines:
        say_hello(run, ())
    rounds = run.outer.round_of_inner_step(inner.total_steps)
    assert lines[0]["event"].endswith(f" tokens, {rounds:,} rounds" if ends else " tokens")
