"""A run ends by its tokens, and its founder extends it, with real daemons and the command of
people."""

from __future__ import annotations

from pathlib import Path

import pytest

from gossamer.node.demo.local_swarm import LocalSwarm
from tests.support.daemons import (
    MANIFEST,
    PATIENCE_SECONDS,
    digests_on_disk,
    gossamer,
    poll,
    said,
    trainer_of,
)

pytestmark = pytest.mark.e2e

ROUND_TOKENS = 40 * 8 * 32
"""Of one peer."""
TOTAL = 8 * ROUND_TOKENS
LONGER = 16 * ROUND_TOKENS
SCHEDULE = f"""
[schedule]
kind = "wsd"
warmup_tokens = {ROUND_TOKENS}
total_tokens = {TOTAL}
cooldown_tokens = {4 * ROUND_TOKENS}
"""


@pytest.mark.long
def test_a_founder_extends_a_run_that_is_finished(
    swarm: LocalSwarm, tmp_path: Path, corpus: Path
) -> None:
    manifest = tmp_path / "run.toml"
    text = MANIFEST.replace("ends = false\n", "") + SCHEDULE
    assert "ends" not in text
    manifest.write_text(text)
    founder = swarm.found(
        "--manifest", str(manifest), "--corpus", str(corpus), "--wait-for-peers", "1"
    )
    other = swarm.join(founder.address())
    for node in (founder, other):
        status = node.wait_for(lambda s: s.phase == "finished", PATIENCE_SECONDS, "the end")
        assert status.final_tokens == TOTAL <= status.swarm_tokens_total
        assert status.final_round is None

    unasked = gossamer("extend", str(LONGER), "--state-dir", founder.root)
    assert unasked.status != 0
    assert "--yes" in unasked.err
    foreign = gossamer("extend", str(LONGER), "--yes", "--state-dir", other.root)
    assert foreign.status == 2
    assert "only the founder" in foreign.err
    near = gossamer("extend", str(TOTAL), "--yes", "--state-dir", founder.root)
    assert near.status == 2
    assert "too near" in near.err
    done = gossamer("extend", str(LONGER), "--yes", "--state-dir", founder.root)
    assert done.status == 0, done

    def is_longer_and_over(node_status: object) -> bool:
        tokens = getattr(node_status, "swarm_tokens_total", 0)
        return tokens >= LONGER and getattr(node_status, "phase", "") == "finished"

    for node in (founder, other):
        poll(lambda node=node: said(node, "set the end of the run"), "word of the extension")  # type: ignore[misc]
        longer = node.wait_for(is_longer_and_over, PATIENCE_SECONDS, "the new end")
        assert longer.final_tokens == LONGER
        assert trainer_of(node) is None
    newcomer = swarm.join(other.address(), "--serve-after", "0")
    assert newcomer.wait(PATIENCE_SECONDS) == 0, newcomer.tail()
    for node in (founder, other):
        assert node.leave() == 0, node.tail()
    assert digests_on_disk(founder) == digests_on_disk(other) == digests_on_disk(newcomer)
