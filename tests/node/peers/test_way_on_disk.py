"""Whether a way to a head needs no peer: a thread asks, while the event loop forgets rounds."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gossamer.node.peers.chain.chain_sync import ChainSync
from gossamer.node.storage.chain.chain_store import ChainStore
from gossamer.protocol.ids import Digest, digest_of
from gossamer.protocol.state.run_end import RunEnd
from tests.support.builders import manifest, peer
from tests.support.long_chains import rounds_after

RUN_ID = digest_of(b"run")


class Chain(ChainStore):
    """Its rounds are forgotten when the first way was looked for."""

    is_forgetting = False

    def path_between(self, ancestor: Digest, head: Digest) -> list[Digest] | None:
        path = super().path_between(ancestor, head)
        if self.is_forgetting:
            self.forget_all_but([])
        return path


@pytest.mark.parametrize("is_forgetting", [False, True])
def test_rounds_that_are_forgotten_meanwhile_end_no_node(
    tmp_path: Path, is_forgetting: bool
) -> None:
    chain = Chain(tmp_path / "chain", RUN_ID, Digest(bytes(32)))
    head = RUN_ID
    for commit, header in rounds_after([peer(1)], 5, RUN_ID):
        head = chain.add(commit, header)
    chain.is_forgetting = is_forgetting
    run = manifest()
    blocks = SimpleNamespace(has_state=lambda _head: True, has_averages=lambda _head: True)
    committed = SimpleNamespace(
        chain=chain,
        blocks=blocks,
        is_loaded=False,
        head=RUN_ID,
        end=RunEnd(run.model, run.inner, run.outer),
    )
    unused = cast(Any, None)
    sync = ChainSync(run, unused, unused, cast(Any, committed), unused)
    assert sync.needs_no_peer(head) is not is_forgetting
