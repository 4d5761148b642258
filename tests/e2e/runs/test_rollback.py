"""The founder takes rounds back, with real daemons and the command of people."""

from __future__ import annotations

from pathlib import Path

import pytest

from gossamer.node.demo.local_swarm import LocalSwarm
from tests.support.daemons import (
    MANIFEST,
    PATIENCE_SECONDS,
    gossamer,
    in_rounds_of,
    path_on_disk,
    poll,
    said,
    wait_for_round,
)

pytestmark = pytest.mark.e2e


@pytest.mark.long
def test_the_founder_takes_rounds_back_and_both_nodes_go_on_from_there(
    swarm: LocalSwarm, tmp_path: Path, corpus: Path
) -> None:
    manifest = tmp_path / "run.toml"
    manifest.write_text(MANIFEST)
    founder = swarm.found("--manifest", str(manifest), "--corpus", str(corpus))
    other = swarm.join(founder.address())
    for node in (founder, other):
        node.wait_for(in_rounds_of(2), PATIENCE_SECONDS, "round of two")
    newest = wait_for_round(founder, 12).round

    unasked = gossamer("rollback", str(newest - 2), "--state-dir", founder.root)
    assert unasked.status == 2, unasked
    assert "--yes" in unasked.err
    foreign = gossamer("rollback", str(newest - 2), "--yes", "--state-dir", other.root)
    assert foreign.status == 2, foreign
    assert "only the founder" in foreign.err
    unknown = gossamer("rollback", "90000", "--yes", "--state-dir", founder.root)
    assert unknown.status == 2, unknown
    assert "the newest round here is" in unknown.err

    # Meanwhile rounds went on, and states that are older than the disk keeps are gone.
    _, path = path_on_disk(founder)
    newest = len(path)
    undone = path[newest - 2]
    done = gossamer("rollback", str(newest - 2), "--yes", "--state-dir", founder.root)
    assert done.status == 0, done
    assert f"{newest - 1}" in done.out
    for node in (founder, other):
        poll(lambda node=node: said(node, "rounds were taken back"), "word of the rollback")  # type: ignore[misc]

    def has_gone_on() -> bool:
        paths = [path_on_disk(node)[1] for node in (founder, other)]
        return all(len(path) > newest + 2 and undone not in path for path in paths)

    poll(has_gone_on, "rounds of both nodes after the rollback")
